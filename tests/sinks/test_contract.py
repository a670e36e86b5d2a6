"""The contract of `topology.external_sinks`, on each external sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from coopstreams.sinks.postgres import PostgresSink
from coopstreams.testing.memory_sink import MemorySink
from coopstreams.topology.errors import ConfigError, FencedError
from coopstreams.topology.external_sinks import (
    ExternalSink,
    SinkPartition,
    SinkRecord,
    SinkSession,
)

NUMBERS = count()
Rows = Callable[[], list[tuple[str, int]]]


class Picky(MemorySink):
    """Refuses negative numbers, as the table of the other sink does."""

    def refuse(self, record: SinkRecord) -> None:
        if record.value < 0:
            raise ValueError("negative")


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.slow)])
def sink(request: pytest.FixtureRequest) -> Iterator[tuple[ExternalSink, Rows]]:
    """Return a sink that appends records, whose values are numbers, and a function that
    returns its rows in order.
    """
    if request.param == "memory":
        made = Picky()
        yield made, lambda: [(record.key, record.value) for _, record in made.records]
        return
    server = request.getfixturevalue("postgres")
    table = f"numbers_{next(NUMBERS)}"
    server.run(
        f"CREATE TABLE {table} (at serial, name text, number bigint CHECK (number >= 0))"
    )
    yield (
        PostgresSink(
            server.dsn, table, columns=lambda key, value: {"name": key, "number": value}
        ),
        lambda: server.run(f"SELECT name, number FROM {table} ORDER BY at"),
    )


def partition(**changed: Any) -> SinkPartition:
    return replace(SinkPartition(f"app-{next(NUMBERS)}", "s", 0, "a"), **changed)


def record(offset: int, value: int = 1) -> SinkRecord:
    return SinkRecord(offset, f"k{offset}", value, 0)


def refuse_nothing(_: SinkRecord, error: Exception) -> None:
    raise error


def apply(session: SinkSession, *offsets: int) -> None:
    session.apply(
        [record(offset) for offset in offsets], offsets[-1] + 1, refuse_nothing, 0
    )


def test_the_next_session_goes_on_where_the_last_one_ended(
    sink: tuple[ExternalSink, Rows],
) -> None:
    target, rows = sink
    mine = partition()
    first = target.open(mine, 5)
    assert first.position == 5
    apply(first, 5, 6)
    apply(first, 9)
    first.close()
    second = target.open(mine, None)
    assert second.position == 10
    assert rows() == [("k5", 1), ("k6", 1), ("k9", 1)]
    second.close()


def test_an_earlier_session_can_apply_nothing_any_more(
    sink: tuple[ExternalSink, Rows],
) -> None:
    target, rows = sink
    mine = partition()
    zombie = target.open(mine, 0)
    apply(zombie, 0)
    owner = target.open(mine, None)
    with pytest.raises(FencedError):
        apply(zombie, 1)
    apply(owner, 1)
    assert rows() == [("k0", 1), ("k1", 1)]
    owner.close()
    zombie.close()


def test_partitions_and_sinks_and_applications_are_apart(
    sink: tuple[ExternalSink, Rows],
) -> None:
    target, _ = sink
    mine = partition()
    others = replace(mine, number=1), replace(mine, sink="t"), partition()
    sessions = [target.open(each, 0) for each in (mine, *others)]
    for at, session in enumerate(sessions):
        apply(session, at)
    assert [session.position for session in sessions] == [1, 2, 3, 4]
    for session in sessions:
        session.close()


def test_refused_records_are_left_out_and_remembered_until_they_are_settled(
    sink: tuple[ExternalSink, Rows],
) -> None:
    target, rows = sink
    mine, told = partition(), []
    session = target.open(mine, 0)
    records = [record(offset, -1 if offset in (3, 8) else 1) for offset in range(10)]
    session.apply(records, 10, lambda record, _: told.append(record.offset), 0)
    assert told == [3, 8]
    assert [name for name, _ in rows()] == [
        f"k{offset}" for offset in range(10) if offset not in (3, 8)
    ]
    again = target.open(mine, None)
    assert (again.position, again.refused) == (10, frozenset((3, 8)))
    again.apply([], 11, refuse_nothing, 8)
    assert target.open(mine, None).refused == {8}
    session.close()
    again.close()


def test_if_the_handler_raises_nothing_counts(sink: tuple[ExternalSink, Rows]) -> None:
    target, rows = sink
    mine = partition()
    session = target.open(mine, 0)
    with pytest.raises(Exception, match=r"negative|numbers_"):
        session.apply([record(0), record(1, -1), record(2)], 3, refuse_nothing, 0)
    again = target.open(mine, None)
    assert (rows(), again.position, again.refused) == ([], 0, frozenset())
    again.close()
    session.close()


def test_a_partition_that_should_be_known_and_is_not_is_an_error(
    sink: tuple[ExternalSink, Rows],
) -> None:
    target, _ = sink
    target.open(partition(), 0).close()
    with pytest.raises(ConfigError):
        target.open(partition(), None)


def test_a_topic_that_was_made_anew_is_an_error(
    sink: tuple[ExternalSink, Rows],
) -> None:
    target, _ = sink
    mine = partition()
    target.open(mine, 0).close()
    with pytest.raises(ConfigError, match="made anew"):
        target.open(replace(mine, topic_id="b"), 0)
