"""Checks of results after a refusal by Kafka: the topic's limits, and the source record
of a refused result.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    KeyValueStore,
    Processor,
    Record,
    TimeWindows,
    key_value_store,
)
from coopstreams.log.log import TopicSpec
from coopstreams.tasks.refusals import Refusals, TopicLimits, batches
from coopstreams.tasks.tally import Counts
from coopstreams.tasks.task import Task
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.outputs import ANY_PARTITION, Output
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import DeliveryError, ProcessingError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine

NOW = 1_000_000_000
BOTH = pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
HOUR = {
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "7200000",
}


@pytest.mark.parametrize(
    ("config", "key", "size", "ahead_ms", "named"),
    [
        (HOUR, b"k", 1, 3_600_000, None),
        (HOUR, b"k", 1, 3_600_001, "message.timestamp.after.max.ms allows 3,600 s"),
        (HOUR, b"k", 1, -7_200_000, None),
        (HOUR, b"k", 1, -7_200_001, "message.timestamp.before.max.ms"),
        (HOUR | {"message.timestamp.type": "LogAppendTime"}, b"k", 1, 10_000_000, None),
        ({"max.message.bytes": "200"}, b"k", 100, 0, None),
        ({"max.message.bytes": "200"}, b"k", 200, 0, "max.message.bytes allows 200"),
        ({"cleanup.policy": "compact,delete"}, None, 1, 0, "cleanup.policy"),
        ({"cleanup.policy": "compact"}, b"", 1, 0, None),
        ({}, None, 10_000_000, 10**12, None),
    ],
)
def test_a_topic_says_in_its_settings_what_it_does_not_take(
    config: dict[str, str],
    key: bytes | None,
    size: int,
    ahead_ms: int,
    named: str | None,
) -> None:
    reasons = TopicLimits.of(config, compressed=False).reasons(
        key, b"x" * size, None, NOW + ahead_ms, NOW
    )
    assert (reasons == []) if named is None else named in reasons[0]


def test_how_large_a_record_is_when_it_is_compressed_is_not_known() -> None:
    assert (
        TopicLimits.of({"max.message.bytes": "200"}, compressed=True).reasons(
            b"k", b"x" * 1000, None, NOW, NOW
        )
        == []
    )


def test_a_row_that_is_too_large_names_all_settings_that_refuse_it() -> None:
    """It named the topic's setting, and the client's only once the former was raised."""
    narrow: dict[str, Any] = {"producer.message.max.bytes": 2000}
    engine = Engine(doubling(), {"in": 1}, **narrow)
    limits = {"max.message.bytes": "2100", "cleanup.policy": "compact"}
    engine.log.create_topics([TopicSpec("rows", 1, limits)])
    refusals = Refusals(engine.log, engine.config, engine.host)
    both = refusals.reason("rows", b"key", b"x" * 3000, None, 0) or ""
    for part in (
        "max.message.bytes allows 2100",
        "producer.message.max.bytes allows 2000",
    ):
        assert part in both
    one = refusals.reason("rows", b"key", b"x" * 2000, None, 0) or ""
    assert "producer.message.max.bytes allows 2000" in one
    assert "allows 2100" not in one
    assert refusals.reason("rows", b"key", b"x" * 1900, None, 0) is None


@given(st.lists(st.integers(1, 10), min_size=1), st.integers(1, 30))
def test_batches_cover_all_records_in_order_and_are_as_large_as_is_allowed(
    sizes: list[int], most: int
) -> None:
    found = [sizes[at] for at in batches(sizes, most)]
    assert [size for batch in found for size in batch] == sizes
    assert all(sum(batch) <= most or len(batch) == 1 for batch in found)
    assert all(sum(batch) + after[0] > most for batch, after in pairwise(found))


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=2),
            st.none() | st.integers(0, 3),
            st.booleans(),
            st.booleans(),
        )
    )
)
def test_an_output_keeps_its_other_rows_whole_and_in_order(
    rows: list[tuple[bytes, int | None, bool, bool]],
) -> None:
    output, expected = Output("out"), []
    for number, (value, partition, headed, kept) in enumerate(rows):
        output.keys.append(b"k")
        output.values.append(value)
        output.timestamps.append(number)
        if partition is not None:
            output.choose(partition)
        output.give_headers([("h", value)] if headed else None)
        if kept:
            expected.append(
                (
                    value,
                    number,
                    ANY_PARTITION if partition is None else partition,
                    [("h", value)] if headed else None,
                )
            )
    output.keep([number for number, row in enumerate(rows) if row[3]])
    count = len(output)
    columns = (
        output.values,
        output.timestamps,
        output.partitions or [ANY_PARTITION] * count,
        output.headers or [None] * count,
    )
    assert list(zip(*columns, strict=True)) == expected


def doubling() -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.raw).map_values(
        lambda value: value * 2, value=serdes.raw
    ).to("out")
    return builder.build()


def made(guarantee: str, handler: str) -> tuple[Engine, Task]:
    """Records of 1 to 9 bytes, and an output topic whose limit is below twice nine
    bytes, after a refusal.
    """
    engine = Engine(
        doubling(),
        {"in": 1, "dead": 1},
        processing_guarantee=guarantee,
        production_exception_handler=handler,
        errors_dead_letter_queue_topic_name="dead",
    )
    engine.log.create_topics([TopicSpec("out", 1, {"max.message.bytes": "88"})])
    engine.committers[0].expect_refusals()
    engine.write(
        "in",
        [(b"key", b"x" * size, size) for size in range(1, 10)]
        + [(b"key", b"last", 11)],
    )
    return engine, engine.task(WHOLE)


def run(engine: Engine, task: Task) -> None:
    """Let a task process all records, and commit."""
    source, committer = TopicPartition("in", 0), engine.committers[0]
    reader = engine.log.reader()
    reader.assign({source: task.progress.position(source)})
    for run in reader.fetch(1 << 20, 0):
        task.add(run)
    more = True
    while more:
        committer.begin(task)
        more = task.step(single=committer.careful)
        committer.write_outputs(task)
    committer.commit([task])


@BOTH
def test_what_is_refused_is_left_out_and_its_source_record_is_a_dead_letter(
    guarantee: str,
) -> None:
    engine, task = made(guarantee, "dead-letter")
    run(engine, task)
    assert list(engine.read("out").values) == [
        b"x" * 2 * size for size in range(1, 9)
    ] + [b"lastlast"]
    letters = engine.read("dead")
    assert list(letters.values) == [b"x" * 9]
    assert letters.headers is not None
    said = {name: (text or b"").decode() for name, text in letters.headers[0] or ()}
    assert (
        said["__coopstreams.errors.topic"],
        said["__coopstreams.errors.offset"],
    ) == ("in", "8")
    assert "max.message.bytes allows 88" in said["__coopstreams.errors.message"]
    assert (
        sum(
            count
            for (_, reason), count in Counts.of(task).dropped.items()
            if reason == "production"
        )
        == 1
    )


@BOTH
def test_a_handler_that_says_fail_names_record_topic_and_cause(guarantee: str) -> None:
    engine, task = made(guarantee, "fail")
    with pytest.raises(ProcessingError) as caught:
        run(engine, task)
    for part in (
        "task 0_0",
        '"in" partition 0 offset 8',
        'topic "out"',
        "b'key'",
        "max.message.bytes",
        "continue or dead-letter",
    ):
        assert part in str(caught.value)


def test_a_dead_letter_that_cannot_be_written_either_is_no_silent_loss() -> None:
    engine, task = made(EXACTLY, "dead-letter")
    engine.log.delete_topics(["dead"])
    engine.log.create_topics([TopicSpec("dead", 1, {"max.message.bytes": "300"})])
    with pytest.raises(
        DeliveryError,
        match='dead letter that cannot be written cannot be left out either: topic "dead"',
    ):
        run(engine, task)


def test_a_refused_row_of_a_window_names_the_latest_record_of_its_plain_key() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.raw)
    stream.group_by_key().windowed_by(TimeWindows(hours=1)).aggregate(
        bytes, lambda _, value, seen: seen + value, value=serdes.raw, store="rows"
    )
    with pytest.raises(DeliveryError) as caught:
        run(*growing(builder.build()))
    assert (
        'The latest record of its key is the record at offset 2 of "in" partition 0. '
        in str(caught.value)
    )


class OfAll(Processor[str, bytes, str, bytes]):
    """Appends all values to one row, whose key is that of no record."""

    def process(self, record: Record[str, bytes]) -> None:
        rows: KeyValueStore[str, bytes] = self.context.store("rows")
        rows.put("all", (rows.get("all") or b"") + record.value)


def test_a_refused_row_of_another_key_names_the_records_since_the_last_commit() -> None:
    builder = StreamsBuilder("app")
    rows = key_value_store("rows", key=serdes.text, value=serdes.raw)
    builder.stream("in", key=serdes.text, value=serdes.raw).process(
        OfAll, stores=[rows], by_key=False
    )
    with pytest.raises(DeliveryError) as caught:
        run(*growing(builder.build()))
    assert (
        'The record that changed it last is among "in" partition 0 offsets 0 to 3. '
        in str(caught.value)
    )


def growing(topology: Topology) -> tuple[Engine, Task]:
    """Two records of 100 bytes for each of two keys, and a changelog that takes one,
    after a refusal.
    """
    engine = Engine(topology, {"in": 1}, processing_guarantee=EXACTLY)
    changelog = engine.changelog("rows")
    engine.log.delete_topics([changelog])
    engine.log.create_topics([TopicSpec(changelog, 1, {"max.message.bytes": "250"})])
    engine.committers[0].expect_refusals()
    keys = (b"large", b"other", b"large", b"another")
    engine.write("in", [(key, b"x" * 100, 0) for key in keys])
    return engine, engine.task(WHOLE)


@pytest.mark.parametrize("singly", ["all", "none", "now and then"])
def test_single_steps_give_what_large_ones_give(singly: str) -> None:
    engine = Engine(doubling(), {"in": 1, "out": 1}, processing_guarantee=EXACTLY)
    values = [b"%d" % number for number in range(1000)]
    engine.write(
        "in",
        [
            (None if number % 7 == 0 else b"key", value, number)
            for number, value in enumerate(values)
        ],
    )
    task, source, committer = (
        engine.task(WHOLE),
        TopicPartition("in", 0),
        engine.committers[0],
    )
    reader = engine.log.reader()
    reader.assign({source: task.progress.position(source)})
    for run in reader.fetch(1 << 20, 0):
        task.add(run)
    committer.begin(task)
    more, taken = True, 0
    while more:
        before = task.processed
        single = singly == "all" or (singly == "now and then" and taken % 3 > 0)
        more = task.step(single=single)
        taken += 1
        assert not single or task.processed - before <= 1
        committer.write_outputs(task)
        committer.commit([task])
        committer.begin(task)
        assert task.progress.durable(source) == task.processed, (
            "what was taken and not processed is not committed"
        )
    assert list(engine.read("out").values) == [value * 2 for value in values]
