"""The application of `test_mixed_releases`: that of the fault tests, and windows behind a
repartition topic, which is timed from release 0.2 on.

orders ── join customers ── by city (repartition) ── count in windows ─> TEST_WINDOWS

All records are in one window, so that the updates of each city are 1, 2, 3, ...
"""

import os
from datetime import timedelta

from coopstreams import TimeWindows, serdes
from tests.broker.chaos_app import builder, customers, orders

(
    orders.join(customers, lambda _, city: city, value=serdes.text)
    .group_by(lambda _, city: city, key=serdes.text, name="windowed")
    .windowed_by(TimeWindows(size=timedelta(days=10_000)))
    .count(store="windows")
    .to_stream()
    .map(lambda window, count: (window.key, count), key=serdes.text, value=serdes.int64)
    .to(os.environ["TEST_WINDOWS"])
)
topology = builder.build()
