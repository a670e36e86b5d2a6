"""A key-value store whose rows expire a given time after their timestamp, in stream
time.

The database orders the rows by timestamp in a family of its own
(`layout.expiry_family`), written in the same batch as the rows. A row is listed there
when it is new, not with each update. At the listed time, a row that was updated since
is listed again under its timestamp. So an update costs nothing, and a row is checked
once in its time to live. The next rows to expire are in a queue in memory, read a few
thousand at a time.

Invariant: each live row is in the queue, or has changed since the last commit, or is
listed under a time that is not after its timestamp. Listed rows that are not in the
queue have a time of at least `_read_to`.
Relies on: `table` (the write buffer), `Database.by_timestamp`; operators call `note` and
`expired` (`stores.ExpiringTableStore`).
Invariant: a listed time is only a time to check the row, and is deleted after the
check. A row may have several: a deleted row is still listed, and is listed again if it
comes back. Turned down: listing each update (a row that is updated every second would
be listed a thousand times), and time segments as windows have them (an update would
move the row from one family to another).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Any

from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.table import ChangelogBatch, PlacedEntry, Table
from coopstreams.topology.keys import KeyGroups
from coopstreams.topology.stores import Entry, StoreSpec

CHUNK = 4096
"""How many listed rows are read at once."""
MOST_QUEUED = 4 * CHUNK
"""The longest queue. Above it, the later rows are removed from the queue; the database
still lists them.
"""
QUEUED_BYTES = 200
"""The memory of a queued row without its key, which the buffer shares."""

_EVER = 1 << 63
"""A time after the last possible timestamp."""


class ExpiringEntry(PlacedEntry):
    """A row of an `ExpiringTable` in its write buffer, with the time of its expiry
    check.

    `listed`: the latest time (ms, as timestamps) under which the database can list the
    row for a check; it may be listed earlier, because an update does not move it. None:
    the database does not list the row.
    """

    __slots__ = ("listed",)

    listed: int | None


class ExpiringTable(Table):
    """The store of one task whose rows expire at their timestamp plus the time to live:
    an `ExpiringTableStore`. Belongs to one thread.
    """

    due_ms: int
    """The stream time at which `expired` has something to do."""

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        groups: KeyGroups,
    ) -> None:
        super().__init__(database, spec, groups)
        assert spec.ttl_ms is not None
        self._ttl_ms = spec.ttl_ms
        self._begin_queue()

    def note(self, key: bytes, entry: Entry) -> None:
        """Queue a changed row for its expiry check, if the queue has all rows up to its
        timestamp.
        """
        if entry.timestamp < self._read_to and entry.value is not None:
            self._queue_up(key, entry.timestamp)
            if len(self._queue) > MOST_QUEUED:
                self._leave_later_rows(CHUNK)
            self._set_due()

    def expired(self, stream_time: int) -> list[tuple[bytes, Any, int]]:
        """Delete the rows that have expired; return their keys, values, and expiry
        times (ms), the earliest first.
        """
        gone: list[tuple[bytes, Any, int]] = []
        last = stream_time - self._ttl_ms
        queue = self._queue
        while True:
            while queue and queue[0][0] <= last:
                time, key = heappop(queue)
                if self._queued.get(key) == time:
                    del self._queued[key]
                entry = self.entries.get(key) or self.load(key)
                assert isinstance(entry, ExpiringEntry)
                self._relisted[layout.expiry_key(entry.at, time)] = None
                entry.listed = None
                if entry.value is None:
                    continue
                if entry.timestamp > last:
                    self._list_anew(key, entry)
                    continue
                at = max(0, entry.timestamp) + self._ttl_ms
                gone.append((key, entry.value, at))
                entry.value = None
                entry.timestamp = at
                if not entry.dirty:
                    self.touch(key, entry)
            if last < self._read_to:
                break
            self._read_more()
        self._set_due()
        gone.sort(
            key=lambda row: (row[2], row[0])
        )  # a row may have been checked before its time
        return gone

    def freeze(self) -> ChangelogBatch | None:
        """Serialise the dirty entries, mark them clean, and return them for the
        changelog; None if there are none: see `Table.freeze`. Rows that get a new time
        for their expiry check are written with them.
        """
        changed = self.dirty()  # first: `freeze` marks all clean
        batch = super().freeze()
        for key, entry in changed:
            assert isinstance(entry, ExpiringEntry)
            if entry.value is None:
                entry.listed = None
            elif entry.listed is None or entry.timestamp < entry.listed:
                self._list_anew(key, entry)
        if self._relisted:
            places = sorted(self._relisted)
            values = [self._relisted[place] for place in places]
            self.frozen.append(
                Change(layout.expiry_family(self.spec.name), places, values)
            )
            self._relisted.clear()
        return batch

    def trim(self, share: float) -> None:
        """Remove clean entries and the later rows of the queue until this share of both
        is left. The database still lists the removed rows.
        """
        super().trim(share)
        if self._queue:
            self._leave_later_rows(int(len(self._queue) * share))

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the buffer and the queue."""
        return super().size_bytes + QUEUED_BYTES * len(self._queue)

    def discard(self) -> None:
        """Clear the buffer and the queue: see `Table.discard`."""
        super().discard()
        self._begin_queue()

    def _begin_queue(self) -> None:
        """Begin with an empty queue: the rows are read when time comes to them."""
        self._queue: list[tuple[int, bytes]] = []
        """A heap of times at which to check rows."""
        self._queued: dict[bytes, int] = {}
        """The earliest time of each row in the queue."""
        self._read_to = 0
        """All rows that are listed before this time are in the queue."""
        self._relisted: dict[bytes, bytes | None] = {}
        """The changes of the expiry family, for the next commit."""
        self._set_due()

    def _entry(self, at: bytes, data: bytes | None) -> ExpiringEntry:
        read = super()._entry(at, data)
        entry = ExpiringEntry(at, read.value, read.timestamp, read.stored)
        entry.listed = None if data is None else max(0, read.timestamp)
        return entry

    def _queue_up(self, key: bytes, timestamp: int) -> None:
        """Queue a row for an expiry check at its timestamp, unless an earlier check of
        it is queued. That check lists the row again.
        """
        if max(0, timestamp) < self._queued.get(key, _EVER):
            self._queue_listed(key, timestamp)

    def _queue_listed(self, key: bytes, timestamp: int) -> None:
        """Queue the expiry check of a listed time, even if an earlier check of the row
        is queued: it deletes the listing.
        """
        time = max(0, timestamp)
        queued = self._queued.get(key, _EVER)
        if time != queued:
            self._queued[key] = min(time, queued)
            heappush(self._queue, (time, key))

    def _list_anew(self, key: bytes, entry: ExpiringEntry) -> None:
        """List a row in the expiry family under its timestamp, with the next commit."""
        self._relisted[layout.expiry_key(entry.at, entry.timestamp)] = b""
        entry.listed = entry.timestamp
        if entry.timestamp < self._read_to:
            self._queue_listed(key, entry.timestamp)

    def _read_more(self) -> None:
        """Read the next rows of the expiry family into the queue, and rows of the same
        times that the next commit will list there.
        """
        rows = self._database.by_timestamp(
            self.spec.name,
            self._groups.numbers,
            self._read_to,
        )
        found = list(islice(rows, CHUNK))
        first = self._read_to
        end = _EVER
        if len(found) == CHUNK:
            latest = found[-1][0]
            found += takewhile(lambda row: row[0] == latest, rows)
            end = latest + 1
        start = layout.START_BYTES + 1
        found += [
            (layout.TIMESTAMP.unpack_from(place, 1)[0], place[start:])
            for place, value in self._relisted.items()
            if value is not None
        ]
        for time, key in found:
            if first <= time < end:
                self._queue_listed(key, time)
        for key, entry in self._dirty.items():
            if entry.value is not None and first <= max(0, entry.timestamp) < end:
                self._queue_up(key, entry.timestamp)
        self._read_to = end

    def _leave_later_rows(self, kept: int) -> None:
        """Remove all but the first `kept` rows from the queue. The expiry family lists
        the others, now or with the next commit.
        """
        self._queue.sort()
        self._read_to = self._queue[kept][0]
        self._queue = [(time, key) for time, key in self._queue if time < self._read_to]
        heapify(self._queue)
        self._queued = {
            key: time for key, time in self._queued.items() if time < self._read_to
        }

    def _set_due(self) -> None:
        """Set the stream time at which a row is to be checked, or more are to be read."""
        self.due_ms = (
            min(self._queue[0][0] if self._queue else _EVER, self._read_to)
            + self._ttl_ms
        )
