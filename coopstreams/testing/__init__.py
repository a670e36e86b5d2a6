"""Testing a topology without a broker."""

from coopstreams.testing.driver import TopologyTestDriver
from coopstreams.testing.engines import check_engine
from coopstreams.testing.views import (
    InputTopic,
    OutputRecord,
    OutputTopic,
    Row,
    StoreView,
)

__all__ = [
    "InputTopic",
    "OutputRecord",
    "OutputTopic",
    "Row",
    "StoreView",
    "TopologyTestDriver",
    "check_engine",
]
