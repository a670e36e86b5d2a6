"""Outputs that record the order of writes across topics; a program itself keeps it only within each topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coopstreams.topology.compile.outputs import Output


def ordered(topic: str, order: list[Output]) -> Output:
    """Return the output of a topic that adds itself to `order` for each record that is written to it."""
    output = Output(topic)
    output.keys = _OrderedKeys(lambda: order.append(output))
    return output


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
