"""The program that `time_costs` and `time_that_waits` measure: a count by a new key in
windows of an hour, behind a repartition topic. Earlier versions of coopstreams run it
as well.

    updates    every change of a window
    sessions   every change of a session, which takes records in the order of births;
               with keys as those of windows
    final      one result of a window, when it has closed
"""

import os
from datetime import timedelta

from coopstreams import (
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_window_closes,
)

NAME = os.environ["BENCH_APPLICATION"]
SOURCE = os.environ["BENCH_SOURCE"]
SINK = os.environ["BENCH_SINK"]
GRACE = timedelta(hours=float(os.environ.get("BENCH_GRACE_HOURS", "0")))

_updates = StreamsBuilder(NAME)
_counts = (
    _updates.stream(SOURCE, key=serdes.text, value=serdes.text)
    .group_by(lambda _, value: value, key=serdes.text)
    .windowed_by(TimeWindows(hours=1, grace=GRACE))
    .count(store="hours")
)
_counts.to_stream().to(SINK)
updates = _updates.build()

_sessions = StreamsBuilder(NAME)
_by_session = (
    _sessions.stream(SOURCE, key=serdes.text, value=serdes.text)
    .group_by(lambda _, value: value, key=serdes.text)
    .windowed_by(SessionWindows(timedelta(hours=1), grace=GRACE))
    .count(store="hours")
)
_by_session.to_stream().filter(lambda _, count: count is not None).select_key(
    lambda session, _: session.key.encode() + session.start_ms.to_bytes(8, "big"),
    key=serdes.raw,
).to(SINK)
sessions = _sessions.build()

_final = StreamsBuilder(NAME)
(
    _final.stream(SOURCE, key=serdes.text, value=serdes.text)
    .group_by(lambda _, value: value, key=serdes.text)
    .windowed_by(TimeWindows(hours=1, grace=GRACE))
    .count(store="hours")
    .suppress(until_window_closes())
    .to_stream()
    .to(SINK)
)
final = _final.build()
