"""Decides when the stream time of a silent partition advances, and how far
(`idle_advance`). Pure: batches and a clock in.

A partition is silent from the moment at which its reader has come to its end, until the
next record of any key range. After each `idle_advance` of silence, stream time becomes
that of the last record plus the length of the silence. So its lag behind the wall clock
stays the same.

Invariant: time marks do not end a silence; without a record there is no stream time to
advance. Turned down: the wall clock itself as stream time (a topic that is read with an
hour's delay would lose that hour).
Relies on: `instance.dispatch` (feeds each fetch, and has the mark written).
"""

from __future__ import annotations

from dataclasses import dataclass

from coopstreams.log.log import RecordBatch


@dataclass(slots=True)
class Silence:
    """The silence of one partition, as one reader sees it: how long it has been read to
    its end without a record. `idle_ms`: the silence after which its stream time
    advances. Units: `now` in seconds of a monotonic clock.
    """

    idle_ms: int
    since: float | None = None
    """When the silence began; None: records come, or the reader has not reached the
    end.
    """
    _stream_time: int = -1
    _due: float = 0.0

    def heard(self, batch: RecordBatch, now: float) -> None:
        """Take in the result of a fetch: one batch of the partition, of any key range."""
        if batch.busy:
            self.since = None
        if self.since is None and batch.at_end and batch.stream_time >= 0:
            self.since = now
            self._stream_time = batch.stream_time
            self._due = now + self.idle_ms / 1000

    def broken(self) -> None:
        """End the silence, because the reader has moved to another offset."""
        self.since = None

    def due_in(self, now: float) -> float | None:
        """Return the seconds until stream time is due to advance; None: the partition
        is not silent.
        """
        return None if self.since is None else max(0.0, self._due - now)

    def advance(self, now: float) -> int | None:
        """Return the stream time that is due, once for each `idle_advance`; None: it is
        not due. Units: milliseconds.
        """
        if self.since is None or now < self._due:
            return None
        self._due = now + self.idle_ms / 1000
        return self._stream_time + int((now - self.since) * 1000)
