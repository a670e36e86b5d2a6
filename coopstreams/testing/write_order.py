"""The order of written records over several outputs. A compiled program has one
`Output` for each topic, which keeps only the order within the topic.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import repeat
from typing import NamedTuple, TypeVar

from coopstreams.log.log import Position
from coopstreams.tasks.task import Task
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.compile.outputs import ANY_PARTITION, Output
from coopstreams.topology.keys import partition_of

T = TypeVar("T")
U = TypeVar("U")


def ordered(topic: str, order: list[Output]) -> Output:
    """Return an output for a topic that appends itself to `order` for each record
    written to it.
    """
    output = Output(topic)
    output.keys = _OrderedKeys(lambda: order.append(output))
    return output


class Forwarded(NamedTuple):
    """A record that was written to a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None
    partition: int
    """`ANY_PARTITION`: the key decides."""


def in_order(order: Sequence[Output]) -> Sequence[Forwarded]:
    """Return the records of all outputs in the order in which they were written.
    `order`: the output of each record.
    """
    if not order:
        return ()
    rows = {output: _rows(output) for output in dict.fromkeys(order)}
    if len(rows) == 1:  # the usual case
        return list(rows[order[0]])
    return [next(rows[output]) for output in order]


def _rows(output: Output) -> Iterator[Forwarded]:
    """Yield the records of an output (the columns that a task has written to one topic)
    one by one.
    """
    return map(
        Forwarded,
        repeat(output.topic),
        output.keys,
        output.values,
        output.timestamps,
        output.headers or repeat(None),
        output.partitions or repeat(ANY_PARTITION),
    )


def as_written(
    found: Mapping[TopicPartition, T],
    written: Sequence[Forwarded],
    counts: Mapping[str, int],
) -> dict[TopicPartition, T]:
    """Return the entries of `found`, sorted by the first record in `written` that went
    to their topic, and within a topic to their partition.

    Entries of topics without such a record come first. `counts`: the number of
    partitions of each topic.
    """
    if len(found) < 2:
        return dict(found)
    topics = _places(record.topic for record in written)
    among = {source.topic for source in found}
    partitions: dict[TopicPartition, int] = {}
    if len(among) < len(found):
        partitions = _places(
            _partition(record, counts) for record in written if record.topic in among
        )

    def place(source: TopicPartition) -> tuple[int, int, int]:
        return (
            topics.get(source.topic, -1),
            partitions.get(source, len(written)),
            source.partition,
        )

    return {source: found[source] for source in sorted(found, key=place)}


def _places(some: Iterable[U]) -> dict[U, int]:
    """Return the index of the first occurrence of each value."""
    places: dict[U, int] = {}
    for at, one in enumerate(some):
        places.setdefault(one, at)
    return places


def _partition(record: Forwarded, counts: Mapping[str, int]) -> TopicPartition:
    """Return the partition to which a record went; -1: any, it has no key."""
    partition = record.partition
    if partition == ANY_PARTITION and record.key is not None:
        partition = partition_of(record.key, counts[record.topic])
    return TopicPartition(record.topic, partition)


def by_turn(
    at_hand: Mapping[TopicPartition, Position],
    tasks: Mapping[TopicPartition, Sequence[Task]],
) -> list[TopicPartition]:
    """Return the partitions in the order in which the driver processes their next
    records: by time, and at equal times as in `at_hand`.

    Source partitions of one task that have the same time follow the order of the task's
    sources, as in the task's own queues.
    """
    if len(at_hand) < 2:
        return list(at_hand)
    stands: dict[tuple[int, int], int] = {}
    for number, (source, at) in enumerate(at_hand.items()):
        stands.setdefault((at.stream_time, tasks[source][0].id.subtopology), number)

    def turn(source: TopicPartition) -> tuple[int, int, int]:
        time = at_hand[source].stream_time
        task = tasks[source][0]
        return time, stands[time, task.id.subtopology], task.sources.index(source)

    return sorted(at_hand, key=turn)


class _OrderedKeys(list[bytes | None]):
    """A key column that calls `tell` for each record that is appended."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, key: bytes | None, /) -> None:
        self._tell()
        super().append(key)

    def extend(self, keys: Iterable[bytes | None], /) -> None:
        for key in keys:
            self.append(key)
