"""A session store of one task: a window store whose windows have an end of their own. They expire by their ends.

Invariant: the sessions of a key do not overlap, so that those in the order of their ends are in the order of their starts, too.
"""

from __future__ import annotations

from bisect import bisect_left

from coopstreams.state.layout import TIMESTAMP
from coopstreams.state.window_table import WindowTable
from coopstreams.topology.stores import Entry


class SessionTable(WindowTable):
    """A `SessionStore`: a `TableStore` of kind `session`; keys are `session_key(...)`. One thread."""

    def sessions(self, key: bytes, earliest_end: int, latest_start: int) -> list[tuple[bytes, Entry]]:
        """Return the sessions of a plain key with earliest_end <= end and start <= latest_start, by their ends."""
        times = self._times_of(key)
        latest = TIMESTAMP.pack(max(latest_start, 0))
        found = []
        for time in times[bisect_left(times, TIMESTAMP.pack(max(earliest_end, self._horizon, 0))) :]:
            if time[8:] <= latest:
                row = key + time
                found.append((row, self.entries.get(row) or self.load(row)))
        return found
