"""Outputs that record the order of writes across topics; a program itself keeps it only within each topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from coopstreams.topology.compile.outputs import ANY_PARTITION, Output


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
