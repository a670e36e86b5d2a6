"""Counts of a process outlive its tasks: they never decrease, and are exact."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coopstreams.common.metrics import Metrics
from coopstreams.tasks.tally import MOST_FAILURES, Counts, Tallies, Tally
from coopstreams.tasks.task import Task
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId
from tests.tasks.engine import EXACTLY, Engine

SOURCE = TopicPartition("in", 0)


def counting() -> Topology:
    """Records without a key are dropped; values that are no JSON fail."""
    builder = StreamsBuilder("app")
    stream = builder.stream(
        "in", key=serdes.text, value=serdes.json, name="read"
    ).filter(lambda _, value: value is not None, name="seen")
    stream.group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()


def made() -> Engine:
    engine = Engine(
        counting(),
        {"in": 1, "out": 1, "dead": 1},
        processing_guarantee=EXACTLY,
        deserialization_exception_handler="dead-letter",
        errors_dead_letter_queue_topic_name="dead",
    )
    rows: list[tuple[bytes | None, bytes | None, int]] = [
        (b"%d" % number, b"1", number) for number in range(20)
    ]
    engine.write(
        "in",
        [*rows, (None, b"1", 21), (b"bad", b"no JSON", 22), (b"bad", b"no JSON", 23)],
    )
    return engine


def process(engine: Engine, task: Task) -> None:
    """Let a task process and commit all records, on this thread."""
    engine.process(task)
    engine.committers[0].commit([task])


def test_the_latest_failures_are_told_without_what_was_in_the_records() -> None:
    tallies, tally = Tallies(Metrics("app", "one")), Tally()
    for offset in range(MOST_FAILURES + 3):
        error = ValueError("secret")
        tallies.failed(
            TaskId(0, 0, WHOLE),
            tally,
            Failure(
                "processing", "mapped", error, SOURCE, offset, b"k", b"secret", 0, None
            ),
            "continue",
        )
    assert [failure.offset for failure in tallies.latest] == list(
        range(3, MOST_FAILURES + 3)
    )
    assert tally.failed == {("mapped", "processing"): MOST_FAILURES + 3}
    assert "secret" not in str(tallies.latest)


def totals(engine: Engine) -> dict[str, float]:
    families = text_string_to_metric_families(engine.metrics.text().decode())
    found: dict[str, float] = {}
    for sample in (
        sample
        for family in families
        for sample in family.samples
        if sample.name.endswith("_total")
    ):
        found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_a_task_that_is_closed_leaves_its_counts_and_its_successor_adds_to_them() -> (
    None
):
    engine = made()
    before: dict[str, float] = {}
    for key_range in (
        WHOLE,
        *KeyRange.split(2),
    ):  # a task, and then two that share its keys
        task = engine.task(key_range)
        engine.tallies.look(task, Counts.of(task))
        process(engine, task)
        engine.tallies.look(task, Counts.of(task))
        engine.tallies.look(task, Counts.of(task))
        task.discard()
        engine.tallies.closed(task)
        engine.metrics.task_closed(task.id)
        engine.tallies.look(task, Counts.of(task))  # the watcher may be a moment behind
        now = totals(engine)
        assert all(now[name] >= value for name, value in before.items())
        before = now
    assert before["coopstreams_processed_records_total"] == 23
    assert before["coopstreams_dropped_records_total"] == 3
    assert before["coopstreams_dead_letters_total"] == 2
    assert len(engine.read("dead")) == 2


@pytest.mark.parametrize("looks", [0, 1])
def test_what_a_task_did_since_the_last_look_is_counted_when_it_is_closed(
    looks: int,
) -> None:
    engine = made()
    task = engine.task(WHOLE)
    for _ in range(looks):
        engine.tallies.look(task, Counts.of(task))
    process(engine, task)
    engine.tallies.closed(task)
    assert totals(engine)["coopstreams_processed_records_total"] == 23


def test_a_task_says_what_it_wrote_dropped_and_buried() -> None:
    engine = made()
    task = engine.task(WHOLE)
    process(engine, task)
    assert task.tally.written == {"out": 20}
    assert task.tally.dead_letters == 2
    assert sum(Counts.of(task).dropped.values()) == 3
    assert {reason for _, reason in Counts.of(task).dropped} == {
        "null-key",
        "deserialization",
    }
