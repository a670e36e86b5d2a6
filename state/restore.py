"""A store is brought up to its changelog: records in, sorted batches and checkpoints into the database.

No Kafka here: the caller reads the changelog partition from `position` and feeds what comes, whatever it reads besides. Records are
filtered by the hash of the plain key, so one changelog partition serves any cut into ranges, and many ranges at once.

Invariant: every batch is written with the checkpoints it stands for, so that a restore can stop or die anywhere and goes on from there.
Invariant: it ends on the position, never on a record: control records and compaction leave offsets that no record has.
A store without a changelog of its own is what its tasks have read of a source topic. It is restored from there, each range up to where
its task stands and not a record further: what comes behind, the task will process. What the task dropped because it could not be read, is
dropped again.
Turned down: one offset for all groups (a group that was ahead would go back in time, and another cut would start over).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED, NOW, Checkpoint, Checkpoints
from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.layout import GROUP_SHIFT, PREFIXES
from coopstreams.topology.columns import Columns
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.keys import GROUPS, KeyRange, key_hashes
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

TOMBSTONES_MS = 24 * 60 * 60 * 1000
"""Kafka's default `delete.retention.ms`: so long compaction keeps a tombstone."""
MARGIN_MS = 60 * 60 * 1000
"""What is left for a replay at most: it has to come past a tombstone before that is removed."""

TRUSTED_MS = TOMBSTONES_MS - MARGIN_MS
"""For how long a checkpoint can be continued from if nobody knows how its changelog is set."""

NO_STOPS: Mapping[KeyRange, int] = {}

_NEVER = 1 << 63
_EVER = -(1 << 63)


def trusted_ms(settings: Mapping[str, str]) -> int:
    """Return for how long a checkpoint can be continued from, given the settings of the changelog.

    What is older may have missed a tombstone that compaction has removed since. A tenth of the time, an hour at most, is for the replay.
    What a changelog of windows deletes besides, by age, moves its start: a checkpoint below that is refused whatever its age.
    Source: KIP-534; Kafka's `delete.retention.ms`.
    """
    kept_ms = int(settings.get("delete.retention.ms", TOMBSTONES_MS))
    return kept_ms - min(kept_ms // 10, MARGIN_MS)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What state can be continued from: at an offset that the changelog has, and true since it last forgot tombstones."""

    log_start: int
    target: int
    oldest_ms: int

    def refusal(self, at: Checkpoint) -> str:
        """Return why a restore cannot go on from a checkpoint; empty if it can."""
        if at.offset < self.log_start:
            return f"its checkpoint {at.offset} is below the log start {self.log_start}"
        if at.offset > self.target:
            return f"its checkpoint {at.offset} is above the log end {self.target}: was the topic made anew?"
        if at.true_ms < self.oldest_ms:
            return "it is older than the changelog keeps tombstones"
        return ""


def lacking(known: Checkpoints, key_range: KeyRange, bounds: Bounds) -> list[int]:
    """Return the key groups of a range, ascending, that a restore cannot go on from: without a checkpoint, or with one out of bounds."""
    return [group for group in _groups(key_range) if (at := known.at(group)) is None or bounds.refusal(at)]


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How far a restore is.

    Units: `read` and `kept` in records, `remaining` in offsets, `rate` in records read per second; `eta_s` None: cannot be told yet.
    """

    store: str
    read: int
    kept: int
    position: int
    target: int
    remaining: int
    rate: float
    eta_s: float | None


class Restore:
    """Restores some key ranges of one store of a database. One thread.

    Making one looks at the checkpoints. Key groups whose checkpoint cannot be continued from are emptied and start at the log start: below
    the log start, above the log end (the topic was made anew), older than the changelog keeps tombstones, or none at all.

    Shape: `log_start` and `target` are offsets of the changelog partition: the first it has, and the end to reach. `stops` are the ranges
    that end before the target, and where.
    Units: `trusted_ms` as of the function of that name.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        ranges: Iterable[KeyRange],
        *,
        log_start: int,
        target: int,
        stops: Mapping[KeyRange, int] = NO_STOPS,
        trusted_ms: int = TRUSTED_MS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.spec = spec
        self.target = target
        self._database = database
        self._log_start = log_start
        self._trusted_ms = trusted_ms
        self._clock, self._wall_clock = clock, wall_clock
        self._need = [_NEVER] * GROUPS
        """The next offset that each group needs; never, for those that are not restored."""
        self._stops = [target] * GROUPS
        """The offset at which each group ends."""
        self._seen = [NOTHING_OBSERVED] * GROUPS
        """The largest window start of each group. Not of the store: siblings lag, and theirs must not expire by another's."""
        self._true_ms = [0] * GROUPS
        """When the state of each group was last known to be true: the time a restore may take is counted from there."""
        self._position = log_start
        self._read = self._kept = self._moved = 0
        self._began = clock()
        self.retarget(ranges, stops=stops)

    @property
    def position(self) -> int:
        """The next offset to read. After `retarget` it may lie elsewhere than where the last `feed` ended: seek."""
        return self._position

    @property
    def done(self) -> bool:
        """Whether the store stands at the target."""
        return self._position >= self.target

    def retarget(self, ranges: Iterable[KeyRange], *, target: int | None = None, stops: Mapping[KeyRange, int] = NO_STOPS) -> None:
        """Restore these ranges from now on. What was restored counts; what is new is read from its own checkpoint."""
        if target is not None:
            self.target = target
        self._stops = [self.target] * GROUPS
        for key_range, stop in stops.items():
            for group in _groups(key_range):
                self._stops[group] = stop
        wanted = {group for key_range in ranges for group in _groups(key_range)}
        new = sorted(group for group in wanted if self._need[group] == _NEVER)
        for group in range(GROUPS):
            if group not in wanted:
                self._need[group] = _NEVER
        self._admit(new)
        if at_end := [group for group in new if self._need[group] == self._stops[group]]:  # nothing to feed, but it is known to be true now
            self._database.write([], {self.spec.name: list(self._checkpoints(at_end))})
        self._move()

    def feed(self, columns: Columns, next_offset: int) -> None:
        """Apply what was read from `position` on, up to `next_offset`; records that no restored group needs are skipped.

        Raises:
            StateError: nothing of it was written.
        """
        keep = self._windows(columns) if self.spec.kind in layout.SEGMENTED else self._entries(columns)
        moved = [group for group in range(GROUPS) if self._need[group] < min(next_offset, self._stops[group])]
        for group in moved:
            self._need[group] = min(next_offset, self._stops[group])
        changes = list(self._changes(keep))
        self._database.write(changes, {self.spec.name: list(self._checkpoints(moved))})
        self._read += len(columns)
        self._kept += sum(len(change.keys) for change in changes)
        self._moved += max(0, next_offset - self._position)
        self._move()

    def progress(self) -> RestoreProgress:
        """Return how far the restore is."""
        seconds = self._clock() - self._began
        remaining = max(0, self.target - self._position)
        eta_s = remaining * seconds / self._moved if self._moved and seconds > 0 else None if remaining else 0.0
        rate = self._read / seconds if seconds > 0 else 0.0
        return RestoreProgress(self.spec.name, self._read, self._kept, self._position, self.target, remaining, rate, eta_s)

    def _move(self) -> None:
        unfinished = (need for need, stop in zip(self._need, self._stops, strict=True) if need < stop)
        self._position = min(unfinished, default=self.target)

    def _entries(self, columns: Columns) -> dict[bytes, bytes | None]:
        """Return the last value of each database key that a restored group needs."""
        need, stops, pack = self._need, self._stops, layout.TIMESTAMP.pack
        as_row = None if self.spec.source is None else self._row
        keep: dict[bytes, bytes | None] = {}
        suffix = layout.suffix_bytes(self.spec)
        plain = columns.keys if not suffix else [None if key is None else key[:-suffix] for key in columns.keys]
        hashes = key_hashes(plain, columns.offsets)
        for key, hash_, value, timestamp, offset in zip(columns.keys, hashes, columns.values, columns.timestamps, columns.offsets, strict=True):
            group = hash_ >> GROUP_SHIFT
            if need[group] <= offset < stops[group] and key is not None:
                if as_row is not None and value is not None:
                    try:
                        value = as_row(value)
                    except SerdeError:
                        continue  # a handler said so when the task read it, else the task would stand below it
                keep[PREFIXES[group] + key] = None if value is None else pack(timestamp) + value
        return keep

    def _row(self, value: bytes) -> bytes | None:
        """Return what the store keeps of a value in its source topic; None if that reads as null.

        Raises:
            SerdeError: it cannot be read.
        """
        read = self.spec.value.deserialize(value)
        return None if read is None else self.spec.value.encode(read)

    def _windows(self, columns: Columns) -> dict[bytes, bytes | None]:
        """The same for windows, less those that have expired."""
        need, stops, seen, pack = self._need, self._stops, self._seen, layout.TIMESTAMP.pack
        keep: dict[bytes, bytes | None] = {}
        keys = [None if key is None else layout.store_key(self.spec.kind, key) for key in columns.keys]
        hashes = key_hashes([None if key is None else layout.plain_key(self.spec, key) for key in keys], columns.offsets)
        for key, hash_, value, timestamp, offset in zip(keys, hashes, columns.values, columns.timestamps, columns.offsets, strict=True):
            group = hash_ >> GROUP_SHIFT
            if need[group] <= offset < stops[group] and key is not None:
                seen[group] = max(seen[group], layout.time_of(self.spec.kind, key))
                keep[PREFIXES[group] + key] = None if value is None else pack(timestamp) + value
        horizons = [layout.horizon(self.spec, start) if start != NOTHING_OBSERVED else _EVER for start in seen]
        return {key: value for key, value in keep.items() if layout.time_of(self.spec.kind, key) >= horizons[key[0]]}

    def _changes(self, keep: dict[bytes, bytes | None]) -> Iterator[Change]:
        keys = sorted(keep)
        if self.spec.kind not in layout.SEGMENTED:
            if keys:
                yield Change(layout.family_of(self.spec.name), keys, [keep[key] for key in keys])
            return
        length = layout.segment_ms(self.spec)
        segments: dict[int, list[bytes]] = {}
        for key in keys:
            segments.setdefault(layout.time_of(self.spec.kind, key) // length, []).append(key)
        for segment, of_segment in segments.items():
            yield Change(layout.segment_family(self.spec.name, segment), of_segment, [keep[key] for key in of_segment])

    def _checkpoints(self, groups: Sequence[int]) -> Iterator[Checkpoint]:
        """Where groups stand now, in runs. Of the window starts the smallest counts, of groups that have windows at all."""
        for offset, alike in groupby(sorted(groups, key=lambda group: (self._need[group], group)), key=self._need.__getitem__):
            for run in _runs(list(alike)):
                observed = min((self._seen[group] for group in run if self._seen[group] != NOTHING_OBSERVED), default=NOTHING_OBSERVED)
                true_ms = NOW if all(offset >= self._stops[group] for group in run) else min(self._true_ms[group] for group in run)
                yield Checkpoint(run[0], run[-1], offset, observed, true_ms)

    def _admit(self, groups: Sequence[int]) -> None:
        """Learn from the checkpoints what these groups need; empty those that cannot go on from there."""
        known = self._database.checkpoints(self.spec.name)
        bounds = Bounds(self._log_start, self.target, self._now_ms() - self._trusted_ms)
        reasons: dict[int, str] = {}
        for group in groups:
            at = known.at(group)
            reason = "" if at is None else self._refusal(group, at, bounds)
            if at is None or reason:
                reasons[group] = reason
            else:
                self._need[group], self._seen[group], self._true_ms[group] = at.offset, at.observed, at.true_ms
        for reason, of_reason in groupby(sorted(reasons, key=lambda group: (reasons[group], group)), key=reasons.__getitem__):
            for run in _runs(list(of_reason)):
                self._empty(run, reason)

    def _refusal(self, group: int, at: Checkpoint, bounds: Bounds) -> str:
        if self.spec.source is not None and at.offset > self._stops[group]:
            return f"its checkpoint {at.offset} is above the position {self._stops[group]} of its task: were the offsets of the group reset?"
        return bounds.refusal(at)

    def _empty(self, groups: Sequence[int], reason: str) -> None:
        first, last = groups[0], groups[-1]
        if reason or self._database.has_keys(self.spec.name, first, last):
            log.warning(
                'store "%s", key groups %d..%d: %s; restoring them from the beginning',
                self.spec.name,
                first,
                last,
                reason or "keys without a checkpoint",
            )
        self._database.wipe(self.spec.name, Checkpoint(first, last, self._log_start))
        for group in groups:
            self._need[group], self._seen[group], self._true_ms[group] = self._log_start, NOTHING_OBSERVED, self._now_ms()

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)


def _groups(key_range: KeyRange) -> range:
    first, last = layout.groups_of(key_range)
    return range(first, last + 1)


def _runs(groups: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ascending groups in contiguous runs."""
    for _, run in groupby(enumerate(groups), key=lambda numbered: numbered[1] - numbered[0]):
        yield [group for _, group in run]
