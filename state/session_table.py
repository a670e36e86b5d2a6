"""A session store of one task: a window store whose windows have an end of their own. They expire by their ends.

Invariant: the sessions of a key do not overlap, so that those in the order of their ends are in the order of their starts, too.
"""

from __future__ import annotations

from bisect import bisect_left

from coopstreams.state.layout import SESSION_BYTES, TIMESTAMP
from coopstreams.state.window_table import WindowTable
from coopstreams.topology.stores import Entry


class SessionTable(WindowTable):
    """A `SessionStore`: a `TableStore` of kind `session`; keys are `session_key(...)`. One thread."""

    def put(self, key: bytes, value: object, timestamp: int) -> None:
        """Set the value of a session, None: delete it. What was deleted is not come across again."""
        super().put(key, value, timestamp)
        if self._of_key is not None:
            self._note(key)  # it may have been deleted since the last commit, and so be changed already
            if value is None:
                times = self._of_key[key[:-SESSION_BYTES]].known
                del times[bisect_left(times, key[-SESSION_BYTES:])]

    def sessions(self, key: bytes, earliest_end: int, latest_start: int) -> list[tuple[bytes, Entry]]:
        """Return the sessions of a plain key with earliest_end <= end and start <= latest_start, by their ends."""
        earliest_end = max(earliest_end, self._horizon, 0)
        times, latest = self._times(key, earliest_end).known, TIMESTAMP.pack(max(latest_start, 0))
        rows = [key + time for time in times[bisect_left(times, TIMESTAMP.pack(earliest_end)) :] if time[8:] <= latest]
        found = [(row, self.entries.get(row) or self.load(row)) for row in rows]
        return [(row, entry) for row, entry in found if entry.value is not None]
