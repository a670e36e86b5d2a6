"""Finds the sub-topologies that leave out more than a few percent of their records: a
warning, and a reason of health.

One or two dropped records of a million need no attention; drops are counted anyway. But
if windows drop a third of a backlog as late, the results are wrong, and a count in the
status is easily overlooked.

Invariant: the share is that of the last `WINDOW_S` in which the sub-topology had
records, so a fault that is mended is forgotten after that time. Turned down: the share
since the start (a process that runs for months would never report a loss).
Relies on: `tally` (adds and looks).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Site = tuple[int, str, str]
"""A place where records are dropped: sub-topology, node and reason."""

WINDOW_S = 600.0
"""How long records count. Units: seconds."""
SLICE_S = 10.0
"""The grain of that time: counts are kept in slices of this length."""
LEAST_SHARE = 0.03
"""The share of a sub-topology's records from which on a loss is reported."""
LEAST_RECORDS = 100
"""The least number of dropped records that is reported: of ten records, one is a tenth.
"""
AGAIN_S = 600.0
"""How often a warning is repeated while it holds."""

LATE = (
    "their windows had closed, or what they join was gone. Give the operator more grace. If a backlog is read: have "
    "max.task.idle.ms wait for the other sources, and leave ranges.before.windows false"
)
CURES: Mapping[str, str] = {
    "late": LATE,
    "null-key": "give them a key (select_key), or filter them out above",
    "null-value": "filter them out above, if they mean nothing here",
    "timestamp": "the producer has to date its records, or timestamp= of the source takes the time from them",
    "no-partition": "the partitioner of the topic answered none",
    "deserialization": "the log, or the dead-letter topic, has their errors",
    "processing": "the log, or the dead-letter topic, has their errors",
    "production": "the log, or the dead-letter topic, has their errors",
}
"""What to do about a loss, by reason. Drops for other reasons (`not-the-latest`,
`stale-answer`) lose nothing.
"""


@dataclass(slots=True)
class _Slice:
    """The counts of processed and dropped records of one time slice."""

    since: float
    processed: Counter[int] = field(default_factory=Counter)
    dropped: Counter[Site] = field(default_factory=Counter)


class Losses:
    """The records of a process that were left out lately.

    The owner calls it with its lock held; `known` may be read without.
    """

    def __init__(self, stores: Mapping[str, str]) -> None:
        """Begin without counts.

        `stores`: the name of each node's store.
        """
        self._stores = stores
        self._slices: deque[_Slice] = deque()
        self._said_at: dict[Site, float] = {}
        self.known: tuple[str, ...] = ()
        """The losses, in words, as of the last `look`. Replaced as a whole."""

    def add(
        self,
        subtopology: int,
        processed: int,
        dropped: Mapping[tuple[str, str], int],
        now: float,
    ) -> None:
        """Count processed records of a sub-topology, and the dropped ones among them by
        node and reason.
        """
        if not processed and not dropped:
            return
        if not self._slices or now - self._slices[-1].since >= SLICE_S:
            self._slices.append(_Slice(now))
        latest = self._slices[-1]
        latest.processed[subtopology] += processed
        for (node, reason), count in dropped.items():
            if reason in CURES:
                latest.dropped[subtopology, node, reason] += count

    def look(self, now: float) -> list[str]:
        """Set `known`, the operators that drop many records, from the counts of the
        last `WINDOW_S` seconds. Return those that are to be logged now, as sentences.
        """
        while self._slices and now - self._slices[0].since > WINDOW_S:
            self._slices.popleft()
        found = dict(self._found())
        self.known = tuple(found.values())
        for site in self._said_at.keys() - found.keys():
            del self._said_at[site]
        due = [
            site
            for site in found
            if now - self._said_at.get(site, float("-inf")) >= AGAIN_S
        ]
        for site in due:
            self._said_at[site] = now
        return [found[site] for site in due]

    def _found(self) -> Iterator[tuple[Site, str]]:
        """Yield the losses of the counts that are kept: where, and in words."""
        processed = Counter[int]()
        dropped = Counter[Site]()
        for each in self._slices:
            processed += each.processed
            dropped += each.dropped
        for site, count in sorted(dropped.items()):
            subtopology, node, reason = site
            of = processed[subtopology]
            if count < LEAST_RECORDS or count < LEAST_SHARE * of:
                continue
            store = self._stores.get(node)
            where = f'{node} (store "{store}")' if store else node
            yield (
                site,
                f"sub-topology {subtopology} left out {count:,} of its last {of:,} records at {where}: {reason}. "
                f"{CURES[reason][0].upper()}{CURES[reason][1:]}",
            )
