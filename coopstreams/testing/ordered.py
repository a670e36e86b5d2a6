"""Outputs that record the order of writes across topics; a program itself keeps it only within each topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.outputs import ANY_PARTITION, Output

T = TypeVar("T")


def ordered(topic: str, order: list[Output]) -> Output:
    """Return the output of a topic that adds itself to `order` for each record that is written to it."""
    output = Output(topic)
    output.keys = _OrderedKeys(lambda: order.append(output))
    return output


def taken(order: list[Output]) -> Iterator[tuple[Any, ...]]:
    """Yield the records of all outputs in the order in which they were written, and remove them from the outputs.

    Shape: topic, key, value, timestamp, headers, partition.
    """
    rows: Counter[Output] = Counter()
    for output in order:
        i, headers, partitions = rows[output], output.headers, output.partitions
        rows[output] += 1
        yield (
            output.topic,
            output.keys[i],
            output.values[i],
            output.timestamps[i],
            headers[i] if headers is not None else None,
            partitions[i] if partitions is not None else ANY_PARTITION,
        )
    for output in rows:
        output.clear()
    order.clear()


def as_written(found: Mapping[TopicPartition, T], topics: Sequence[str]) -> dict[TopicPartition, T]:
    """Return entries in the order in which their topics were first written. Those that were not written come first."""
    first = {topic: at for at, topic in reversed(list(enumerate(topics)))}
    return {source: found[source] for source in sorted(found, key=lambda source: first.get(source.topic, -1))}


class _OrderedKeys(list[bytes | None]):
    """A key column that calls `tell` whenever a record is written."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, key: bytes | None, /) -> None:
        self._tell()
        super().append(key)

    def extend(self, keys: Iterable[bytes | None], /) -> None:
        for key in keys:
            self.append(key)
