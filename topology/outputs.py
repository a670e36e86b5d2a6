"""What a program wrote, waiting for whoever writes it to a log.

Invariant: a record is a row of the columns; the columns of one topic are one `Output`.
"""

from __future__ import annotations

from coopstreams.topology.columns import Headers


class Output:
    """What a program wrote to one topic since `take`: columns, in the order in which the records were forwarded.

    Shape: the lists stay the same objects for ever, because compiled code holds their `append`.
    """

    __slots__ = ("_headers", "keys", "timestamps", "topic", "values")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self._headers: list[Headers | None] = []  # may be shorter than the others: the rest has none

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def headers(self) -> list[Headers | None] | None:
        """The headers column; None if no record has any."""
        if not any(self._headers):
            return None
        self.give_headers(None)
        return self._headers

    def give_headers(self, headers: Headers | None) -> None:
        """Give these headers to the records that were written since the last call."""
        missing = len(self.keys) - len(self._headers)
        if missing:
            self._headers += [headers] * missing

    def clear(self) -> None:
        """Forget the records: somebody has them now."""
        self.keys.clear()
        self.values.clear()
        self.timestamps.clear()
        self._headers.clear()
