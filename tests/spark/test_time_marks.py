"""Time marks in the history of a source: a backfill closes windows, calls punctuations
and lets rows expire where the live application did.

Without Spark: workers take and return Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.log.time_marks import headers_of
from coopstreams.spark.history.arrow_rows import HISTORY, batch
from coopstreams.spark.native.sql_eligibility import translated
from coopstreams.spark.routing import Routing
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.keys import key_hash
from tests.durations import ms
from tests.spark.test_task_rows import worked

SETTINGS = {"statestore.cache.max.bytes": 0}
Log = list[tuple[bytes | None, int]]
"""The key and time of a record, or of a mark, which has no key."""
Found = dict[tuple[str, bytes | None], list[bytes | None]]
"""By topic and key, the results in their order."""


class Alarms(Processor[bytes, bytes, bytes, bytes]):
    """Forwards, every four seconds of stream time, the time and the key of the record
    before.
    """

    def init(self, context: ProcessorContext[bytes, bytes]) -> None:
        super().init(context)
        self.latest = b""
        context.schedule(ms(4000), "stream_time", self.tell)

    def process(self, record: Record[bytes, bytes]) -> None:
        self.latest = record.key

    def tell(self, now_ms: int) -> None:
        self.context.forward(
            Record(b"alarm", b"%d behind %s" % (now_ms, self.latest), now_ms)
        )


def alarms() -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream(
        "in", key=serdes.raw, value=serdes.raw, idle_advance=timedelta(seconds=1)
    )
    stream.process(Alarms, key=serdes.raw, value=serdes.raw, by_key=True).to("out")
    return builder.build()


def windows() -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream(
        "in", key=serdes.raw, value=serdes.raw, idle_advance=timedelta(seconds=1)
    )
    counted = (
        stream.group_by_key()
        .windowed_by(TimeWindows(seconds=10, grace=ms(3000)))
        .count(store="counts")
    )
    counted.suppress(until_window_closes()).to_stream().to("out")
    lasting = Materialized("lasting", ttl=ms(7000))
    stream.group_by_key().count(store=lasting).to_stream().to("lasting")
    return builder.build()


def live(topology: Topology, log: Log) -> Found:
    """Return the test driver's results of the records, where it has marked the silences
    between them.
    """
    found: Found = {}
    with TopologyTestDriver(topology, 1, SETTINGS) as driver:
        stream_time = -1
        for key, time in log:
            if key is None:
                driver.advance(ms(time - stream_time))
            else:
                driver.input("in").send(key, b"", time)
            stream_time = max(stream_time, time)
        for topic in topology.sink_topics:
            for record in driver.output(topic, serdes.raw, serdes.raw).records():
                found.setdefault((topic, record.key), []).append(record.value)
    return found


def backfilled(topology: Topology, log: Log, ranges: int) -> Found:
    times = [time for _, time in log]
    keys, values = (
        [key for key, _ in log],
        [None if key is None else b"" for key, _ in log],
    )
    headers = [
        None
        if key is not None
        else [{"name": name, "value": value} for name, value in headers_of(time)]
        for key, time in log
    ]
    columns = [
        ["in"] * len(log),
        [0] * len(log),
        list(range(len(log))),
        times,
        keys,
        values,
        headers,
    ]
    history = batch(HISTORY, columns)
    rows = [
        row
        for routed in Routing(topology, 0, "in", ranges)(iter([history]))
        for row in routed.to_pylist()
    ]
    found: Found = {}
    for row in worked(topology, rows, ranges, SETTINGS):
        found.setdefault((row["topic"], row["key"]), []).append(row["value"])
    return found


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Records, and marks at least a second ahead of all before them."""
    log, stream_time = list[tuple[bytes | None, int]](), -1
    for _ in range(draw(st.integers(5, 20))):
        if stream_time >= 0 and draw(st.booleans()):
            log.append((None, stream_time + 1000 * draw(st.integers(1, 30))))
        else:
            log.append(
                (
                    draw(st.sampled_from([b"a", b"b", b"c", b"d"])),
                    draw(st.integers(0, 60_000)),
                )
            )
        stream_time = max(stream_time, log[-1][1])
    return log


@pytest.mark.ci
@pytest.mark.parametrize(("made", "ranges"), [(windows, 1), (windows, 4), (alarms, 1)])
@settings(max_examples=10, deadline=None)
@given(logs())
def test_a_backfill_closes_windows_calls_punctuations_and_lets_rows_expire_at_the_marks_of_the_history(
    made: Callable[[], Topology], ranges: int, log: Log
) -> None:
    assert backfilled(made(), log, ranges) == live(made(), log)


def test_the_engine_of_spark_itself_leaves_such_a_program_to_python() -> None:
    (part,) = windows().subtopologies
    assert (
        translated(part)
        == "KSTREAM-SOURCE-0000000000 advances time where its topic is silent"
    )


def test_it_leaves_rows_that_expire_to_python() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.raw, value=serdes.raw)
    stream.group_by_key().count(store=Materialized("lasting", ttl=ms(7000)))
    (part,) = builder.build().subtopologies
    assert translated(part) == "KSTREAM-AGGREGATE-0000000001 has rows that expire"


def test_the_keys_lie_in_several_ranges() -> None:
    assert len({key_hash(key) >> 61 for key in (b"a", b"b", b"c", b"d")}) > 1
