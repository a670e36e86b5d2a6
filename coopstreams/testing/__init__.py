"""Tools for testing a topology without a broker."""

from coopstreams.testing.driver import TopologyTestDriver
from coopstreams.testing.driver_views import (
    InputTopic,
    OutputRecord,
    OutputTopic,
    Row,
    StoreView,
)
from coopstreams.testing.engine_checks import check_engine

__all__ = [
    "InputTopic",
    "OutputRecord",
    "OutputTopic",
    "Row",
    "StoreView",
    "TopologyTestDriver",
    "check_engine",
]
