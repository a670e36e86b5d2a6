"""Restores a store from its changelog: writes its records to the database in sorted
batches, with checkpoints.

No Kafka here: the caller reads the changelog partition from `position` and feeds what
it has read. Records are filtered by the hash of the plain key, so one changelog
partition serves any cut into ranges, and many ranges at once.

Invariant: every batch is written with its checkpoints, so that a restore can stop or
die at any point and continue from there.
Invariant: a restore ends at an offset, not at a record: control records and compaction
leave offsets without a record.
Invariant: it continues from a checkpoint only in the changelog that the checkpoint
names. That changelog must still have all offsets from the checkpoint on, and all
tombstones since the state was true.

A store without a changelog of its own holds what its tasks have read of a source topic.
It is restored from that topic, each range exactly up to its task's position: the task
will process the records from there on. A record that the task dropped because it could
not be deserialised is dropped again.

Compaction of a source topic knows no positions. A record above the task's position may
have removed an earlier row of its key, which the task still needs. So restored offsets
are not `proven` until the caller has checked for that. A restore may end before, so
checkpoints store where the unproven offsets begin.

Turned down: one offset for all groups (a group that was ahead would go back, and other
ranges would start over).
Relies on: `checkpoints` (what one promises), `layout` (keys, families, when windows have
expired).
"""

from __future__ import annotations

import logging
import time
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from itertools import groupby

from coopstreams.state import layout
from coopstreams.state.checkpoints import (
    NO_TOPIC,
    NOTHING_OBSERVED,
    PROVEN,
    Checkpoint,
    Checkpoints,
)
from coopstreams.state.database import Database
from coopstreams.state.engine import Change
from coopstreams.state.layout import GROUP_SHIFT, PREFIXES
from coopstreams.state.manifest import cut
from coopstreams.topology.columns import Columns
from coopstreams.topology.errors import LogError, SerdeError
from coopstreams.topology.keys import (
    GROUPS,
    KeyGroups,
    KeyRange,
    key_hashes,
    without_suffix,
)
from coopstreams.topology.schemas import registry_is_away
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

TOMBSTONES_MS = 24 * 60 * 60 * 1000
"""Kafka's default `delete.retention.ms`: how long compaction keeps a tombstone."""
MARGIN_MS = 60 * 60 * 1000
"""The most time that is reserved for the replay, which must pass a tombstone before
compaction removes it.
"""

TRUSTED_MS = TOMBSTONES_MS - MARGIN_MS
"""The age up to which a restore may continue from a checkpoint if the settings of its
changelog are unknown.
"""

AHEAD_MS = 5 * 60 * 1000
"""How far the `true_ms` of a checkpoint may be in the future: clocks differ a little,
and are corrected in small steps.
"""

NO_STOPS: Mapping[KeyRange, int] = {}
NO_TIMES: Mapping[KeyRange, int] = {}

_NEVER = 1 << 63
_EVER = -(1 << 63)


def trusted_ms(settings: Mapping[str, str]) -> int:
    """Return the age (ms) up to which a restore may continue from a checkpoint, given
    the settings of the changelog.

    Older state may have missed a tombstone that compaction has removed since. A tenth
    of the time, at most an hour, is reserved for the replay. The expired records of a
    window changelog are deleted as well; that moves its log start, and a checkpoint
    below the log start is refused whatever its age.
    Source: KIP-534; Kafka's `delete.retention.ms`.
    """
    kept_ms = int(settings.get("delete.retention.ms", TOMBSTONES_MS))
    return kept_ms - min(kept_ms // 10, MARGIN_MS)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A changelog partition as it is now: decides from which checkpoints a restore may
    continue.

    Shape: `log_start` and `target` are offsets: the first offset in the log, and the
    end to reach. The topic id was requested before them. `begins` is the stream time at
    which the restored task begins; None if unknown.
    Units: `asked_ms` is the wall clock just before the first request: state at the
    target is true as of then. `trusted_ms`: see the function of that name.
    """

    log_start: int
    target: int
    topic_id: str
    asked_ms: int
    trusted_ms: int = TRUSTED_MS
    begins: int | None = None

    def refusal(self, at: Checkpoint) -> str:
        """Return why a restore cannot continue from a checkpoint; empty if it can."""
        if self.topic_id == NO_TOPIC:
            return (
                "the brokers give topics no ids, so it is unknown whether its changelog is still the same "
                "(inter.broker.protocol.version 2.8)"
            )
        if at.topic_id == NO_TOPIC:
            return "its checkpoint is of no topic: it had no changelog then, or the brokers gave topics no ids"
        if at.topic_id != self.topic_id:
            return (
                f"its checkpoint is of another topic than its changelog is now (id {at.topic_id}, not "
                f"{self.topic_id}): that was made anew"
            )
        # The broker may have deleted all records by age, with the marker that ended the
        # last transaction behind them.
        only_a_marker = self.log_start == self.target == at.offset + 1
        if at.offset < self.log_start and not only_a_marker:
            return f"its checkpoint {at.offset} is below the log start {self.log_start}"
        if at.offset > self.target:
            return f"its checkpoint {at.offset} is above the log end {self.target}: has the changelog lost records?"
        if self.begins is not None and at.observed > self.begins:
            return (
                f"windows had expired there by stream time {at.observed}, and its task begins at {self.begins}: the "
                "owner before ended without a commit"
            )
        if at.true_ms < self.asked_ms - self.trusted_ms:
            return "it is older than the changelog keeps tombstones"
        if at.true_ms > self.asked_ms + min(AHEAD_MS, self.trusted_ms // 10):
            ahead_s = (at.true_ms - self.asked_ms) // 1000
            return (
                f"its checkpoint is dated {ahead_s} s ahead of the clock of this host: one of both is wrong, and its "
                "age is not known"
            )
        return ""


def lacking(
    known: Checkpoints,
    key_range: KeyRange,
    bounds: Bounds,
) -> list[int]:
    """Return the key groups of a range, ascending, that a restore must begin from the
    start.

    They have no checkpoint, or `bounds` refuses it.
    """
    of_group = known.by_group()
    return [
        group
        for group in _groups(key_range)
        if (at := of_group[group]) is None or bounds.refusal(at)
    ]


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """The progress of the restore of one store.

    Units: `passed` and `remaining` in offsets, `rate` in offsets per second; `read` in
    records; `kept` in rows that were written; `eta_s` None: not known yet. The caller
    may have left records of other key ranges out of `read`.
    """

    store: str
    passed: int
    read: int
    kept: int
    position: int
    target: int
    remaining: int
    rate: float
    eta_s: float | None


class Restore:
    """The restore of some key ranges of one store of a database. One thread.

    Making one reads the checkpoints. Key groups without a checkpoint, or with one that
    `Bounds.refusal` refuses, are emptied and start at the log start.

    Shape: `stops` has the ranges that end before the target, with their ends. `times`
    has the stream time at which the task of each range begins. Under at-least-once, a
    changelog may be ahead of its task, and a task that repeats records needs windows
    that had expired for the writer. When a snapshot is made, these times are unknown.
    """

    def __init__(
        self,
        database: Database,
        spec: StoreSpec,
        ranges: Iterable[KeyRange],
        bounds: Bounds,
        *,
        stops: Mapping[KeyRange, int] = NO_STOPS,
        times: Mapping[KeyRange, int] = NO_TIMES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.bounds = bounds
        self.database = database
        self._clock = clock
        self._need = [_NEVER] * GROUPS
        """The next offset that each group needs; `_NEVER` for groups that are not
        restored.
        """
        self._stops = [bounds.target] * GROUPS
        """The offset at which each group ends."""
        self._unproven_from = [PROVEN] * GROUPS
        """The offset from which each group was read from its source topic and is not
        proven.
        """
        self._times = [_NEVER] * GROUPS
        """The stream time at which the task of each group begins; `_NEVER`: not known.
        """
        self._seen = [NOTHING_OBSERVED] * GROUPS
        """The largest window start of each group. It is kept by group, because siblings
        lag, and a group's windows must not expire by another group's time.
        """
        self._true_ms = [0] * GROUPS
        """The time at which the state of each group was last known to equal its
        changelog. The age limit counts from it.
        """
        self._position = bounds.log_start
        self._read = self._kept = self._moved = 0
        self._began = clock()
        self.retarget(ranges, stops=stops, times=times)

    @property
    def position(self) -> int:
        """The next offset to read. After `retarget`, the caller seeks to it if it has
        changed.
        """
        return self._position

    @property
    def done(self) -> bool:
        """Whether the store has reached the target."""
        return self._position >= self.bounds.target

    def retarget(
        self,
        ranges: Iterable[KeyRange],
        *,
        bounds: Bounds | None = None,
        stops: Mapping[KeyRange, int] = NO_STOPS,
        times: Mapping[KeyRange, int] = NO_TIMES,
    ) -> None:
        """Change the ranges to restore, and optionally the target.

        Groups that were restored keep their offsets; new groups are read from their own
        checkpoints.

        `bounds`: later bounds of the same topic; None: unchanged.
        """
        if bounds is not None:
            self.bounds = bounds
        self._stops = [self.bounds.target] * GROUPS
        _set(self._stops, stops)
        _set(self._times, times)
        wanted = {group for key_range in ranges for group in _groups(key_range)}
        new = sorted(group for group in wanted if self._need[group] == _NEVER)
        for group in range(GROUPS):
            if group not in wanted:
                self._need[group] = _NEVER
        self._admit(new)
        at_end = [group for group in new if self._need[group] == self._stops[group]]
        if at_end:  # nothing to feed, but their state is now known to be true
            self.database.write([], {self.spec.name: list(self._checkpoints(at_end))})
        self._move()

    def feed(self, columns: Columns, next_offset: int) -> None:
        """Apply the records that were read from `position` to `next_offset`; skip those
        that no restored group needs.

        Shape: the records of a key in offset order. Records of groups that are not
        restored may be left out.

        Raises:
            StateError: the write failed, and no checkpoint was written.
            SerdeError: the schema registry is away, and nothing was written: feed the
                same records again later.
        """
        keep = (
            self._windows(columns)
            if self.spec.kind in layout.SEGMENTED
            else self._entries(columns)
        )
        moved = [
            group
            for group in range(GROUPS)
            if self._need[group] < min(next_offset, self._stops[group])
        ]
        for group in moved:
            self._need[group] = min(next_offset, self._stops[group])
        changes = list(self._changes(keep))
        self.database.write(changes, {self.spec.name: list(self._checkpoints(moved))})
        self._read += len(columns)
        self._kept += len(keep)
        self._moved += max(0, next_offset - self._position)
        self._move()

    @property
    def unproven(self) -> dict[int, tuple[int, int]]:
        """The offsets [start, end) that each unproven group has read from the source
        topic.
        """
        return {
            group: (start, self._need[group])
            for group, start in enumerate(self._unproven_from)
            if PROVEN != start < self._need[group] != _NEVER
        }

    def prove(self) -> None:
        """Mark all restored offsets as proven: compaction has removed no row that the
        store needs.
        """
        groups = list(self.unproven)
        for group in groups:
            self._unproven_from[group] = self._need[group]
        if groups:
            self.database.write([], {self.spec.name: list(self._checkpoints(groups))})

    def start_over(self, groups: Iterable[int], reason: str) -> None:
        """Empty these groups, and restore them from the start of the log. `reason`: for
        the log line.
        """
        for run in _runs(sorted(groups)):
            self._empty(run, reason)
        self._move()

    def progress(self) -> RestoreProgress:
        """Return the progress of the restore."""
        seconds = self._clock() - self._began
        remaining = max(0, self.bounds.target - self._position)
        eta_s = (
            remaining * seconds / self._moved
            if self._moved and seconds > 0
            else None
            if remaining
            else 0.0
        )
        rate = self._moved / seconds if seconds > 0 else 0.0
        return RestoreProgress(
            self.spec.name,
            self._moved,
            self._read,
            self._kept,
            self._position,
            self.bounds.target,
            remaining,
            rate,
            eta_s,
        )

    def _move(self) -> None:
        """Set `position` to the lowest offset that an unfinished group needs."""
        unfinished = (
            need
            for need, stop in zip(self._need, self._stops, strict=True)
            if need < stop
        )
        self._position = min(unfinished, default=self.bounds.target)

    def _entries(self, columns: Columns) -> dict[bytes, bytes | None]:
        """Return the new value of each database key, from the records that a restored
        group needs. None: the key is deleted.
        """
        need = self._need
        stops = self._stops
        pack = layout.TIMESTAMP.pack
        as_row = None if self.spec.source is None else self._row
        keep: dict[bytes, bytes | None] = {}
        hashes = key_hashes(
            without_suffix(columns.keys, layout.suffix_bytes(self.spec)),
            columns.offsets,
        )
        for key, hash_, value, timestamp, offset in zip(
            columns.keys,
            hashes,
            columns.values,
            columns.timestamps,
            columns.offsets,
            strict=True,
        ):
            group = hash_ >> GROUP_SHIFT
            if need[group] <= offset < stops[group] and key is not None:
                if as_row is not None:
                    if timestamp < 0:
                        # the task has dropped it: see `topology.compile.timestamps`
                        continue
                    try:
                        value = as_row(key, value)
                    except SerdeError as error:
                        if registry_is_away(error):
                            raise
                        # the task's failure handler dropped it; otherwise the task's
                        # position would be below it
                        continue
                keep[PREFIXES[group] + key] = (
                    None if value is None else pack(timestamp) + value
                )
        return keep

    def _row(self, key: bytes, value: bytes | None) -> bytes | None:
        """Return the store's value for a record of its source topic; None if the
        record's value deserialises to null.

        Raises:
            SerdeError: the value cannot be deserialised, or the key is refused.
        """
        if self.spec.key.check_key is not None:
            self.spec.key.check_key(key)
        read = None if value is None else self.spec.value.deserialize(value)
        return None if read is None else self.spec.value.encode(read)

    def _windows(self, columns: Columns) -> dict[bytes, bytes | None]:
        """Return the new value of each database key of a window or session store,
        without expired windows. None: the window is deleted.
        """
        need = self._need
        stops = self._stops
        seen = self._seen
        pack = layout.TIMESTAMP.pack
        keep: dict[bytes, bytes | None] = {}
        suffix = layout.suffix_bytes(self.spec)
        keys = [
            None if key is None else layout.store_key(self.spec.kind, key)
            for key in columns.keys
        ]
        hashes = key_hashes(without_suffix(keys, suffix), columns.offsets)
        for key, hash_, value, timestamp, offset in zip(
            keys,
            hashes,
            columns.values,
            columns.timestamps,
            columns.offsets,
            strict=True,
        ):
            group = hash_ >> GROUP_SHIFT
            if need[group] <= offset < stops[group] and key is not None:
                if len(key) < suffix:
                    raise LogError(
                        f'the changelog of "{self.spec.name}" has a key of {len(key)} bytes at offset {offset}: a '
                        f"window's key ends with {suffix} bytes of its time, so another program wrote it. Take the "
                        "right to write to the topic from that, and rebuild the store"
                    )
                seen[group] = max(seen[group], layout.time_of(self.spec.kind, key))
                keep[PREFIXES[group] + key] = (
                    None if value is None else pack(timestamp) + value
                )
        horizons = [
            _EVER
            if (observed := self._observed(group)) == NOTHING_OBSERVED
            else layout.horizon(self.spec, observed)
            for group in range(GROUPS)
        ]
        return {
            key: value
            for key, value in keep.items()
            if layout.time_of(self.spec.kind, key) >= horizons[key[0]]
        }

    def _observed(self, group: int) -> int:
        """Return the time (ms) by which windows of a key group expire: the start of the
        newest window in the records read so far, but at most the stream time at which
        the group's task begins.
        """
        return min(self._seen[group], self._times[group])

    def _changes(self, keep: dict[bytes, bytes | None]) -> Iterator[Change]:
        """Yield the changes of each family. `keep`: the new value of each database key;
        None: it is deleted.
        """
        keys = sorted(keep)
        if self.spec.kind not in layout.SEGMENTED:
            if keys:
                yield Change(
                    layout.family_of(self.spec.name),
                    keys,
                    [keep[key] for key in keys],
                )
            if self.spec.ttl_ms is not None:
                rows = [(key, row) for key, row in keep.items() if row is not None]
                places = sorted(
                    layout.expiry_key(key, layout.unpack(row)[1]) for key, row in rows
                )
                if places:
                    yield Change(
                        layout.expiry_family(self.spec.name),
                        places,
                        [b""] * len(places),
                    )
            return
        length = layout.segment_ms(self.spec)
        segments: dict[int, list[bytes]] = {}
        for key in keys:
            segments.setdefault(
                layout.time_of(self.spec.kind, key) // length,
                [],
            ).append(key)
        for segment, of_segment in segments.items():
            yield Change(
                layout.segment_family(self.spec.name, segment),
                of_segment,
                [keep[key] for key in of_segment],
            )

    def _checkpoints(self, groups: Sequence[int]) -> Iterator[Checkpoint]:
        """Yield the checkpoints of these groups, one for each run of groups with equal
        offsets.
        """

        def reached(group: int) -> tuple[int, int]:
            return self._need[group], self._unproven_from[group]

        for (offset, unproven_from), alike in groupby(
            sorted(groups, key=lambda group: (*reached(group), group)),
            key=reached,
        ):
            for run in _runs(list(alike)):
                at_end = all(offset >= self._stops[group] for group in run)
                true_ms = (
                    self.bounds.asked_ms
                    if at_end
                    else min(self._true_ms[group] for group in run)
                )
                yield from self._observing(
                    Checkpoint(
                        run[0],
                        run[-1],
                        offset,
                        true_ms=true_ms,
                        topic_id=self.bounds.topic_id,
                        unproven_from=unproven_from
                        if unproven_from < offset
                        else PROVEN,
                    )
                )

    def _observing(self, run: Checkpoint) -> Iterator[Checkpoint]:
        """Yield a checkpoint with the window start that its groups have observed.

        For tasks, this is the smallest window start of the groups that have windows. It
        is at most the stream time at which any of the groups begins, because other
        groups may have older windows. For a snapshot or a standby, each slice
        gets its largest window start: windows that had expired by then are missing
        there.
        """
        seen, times = (
            each[run.first : run.last + 1] for each in (self._seen, self._times)
        )
        starts = [start for start in seen if start != NOTHING_OBSERVED]
        if not starts:
            yield run
        elif _NEVER not in times:
            yield replace(run, observed=min(*starts, *times))
        else:
            for part in cut([run]):
                of_part = max(seen[part.first - run.first : part.last + 1 - run.first])
                yield replace(
                    part,
                    observed=min(starts) if of_part == NOTHING_OBSERVED else of_part,
                    ahead=True,
                )

    def _admit(self, groups: Sequence[int]) -> None:
        """Set the next offset of these groups from their checkpoints; empty groups
        whose checkpoint cannot be used.
        """
        known = self.database.checkpoints(self.spec.name).by_group()
        reasons: dict[int, str] = {}
        for group in groups:
            at = known[group]
            reason = "" if at is None else self._refusal(group, at)
            if at is None or reason:
                reasons[group] = reason
            else:
                next_offset = max(at.offset, self.bounds.log_start)
                self._need[group] = next_offset
                self._seen[group] = at.observed
                self._true_ms[group] = at.true_ms
                if self.spec.source is not None:
                    proven = at.unproven_from == PROVEN
                    self._unproven_from[group] = (
                        next_offset
                        if proven
                        else max(at.unproven_from, self.bounds.log_start)
                    )
        for reason, of_reason in groupby(
            sorted(reasons, key=lambda group: (reasons[group], group)),
            key=reasons.__getitem__,
        ):
            for run in _runs(list(of_reason)):
                self._empty(run, reason)

    def _refusal(self, group: int, at: Checkpoint) -> str:
        """Return why a group's checkpoint cannot be used; empty if it can."""
        same = at.topic_id == self.bounds.topic_id
        if same and self.spec.source is not None and at.offset > self._stops[group]:
            return (
                f"its checkpoint {at.offset} is above the position {self._stops[group]} of its task: were the offsets "
                "of the group reset?"
            )
        begins = self._times[group]
        if same and at.ahead and at.observed > begins:
            return f"windows have expired there by {at.observed}, which the changelog has, and its task begins at {begins}"
        return self.bounds.refusal(at)

    def _empty(self, groups: Sequence[int], reason: str) -> None:
        """Delete the rows of a run of groups, which begin at the log start. `reason`:
        why their checkpoint is not used; empty: they have none.
        """
        run = KeyGroups(groups[0], groups[-1])
        if reason or self.database.has_keys(self.spec.name, run):
            log.warning(
                'store "%s", key groups %s: %s; restoring them from the beginning',
                self.spec.name,
                run,
                reason or "keys without a checkpoint",
            )
        bounds = self.bounds
        self.database.wipe(
            self.spec.name,
            Checkpoint(
                *run,
                bounds.log_start,
                true_ms=bounds.asked_ms,
                topic_id=bounds.topic_id,
            ),
        )
        for group in groups:
            self._need[group] = bounds.log_start
            self._seen[group] = NOTHING_OBSERVED
            self._true_ms[group] = bounds.asked_ms
            if self.spec.source is not None:
                self._unproven_from[group] = bounds.log_start


def _set(by_group: list[int], values: Mapping[KeyRange, int]) -> None:
    """Set the value of each key group of these ranges."""
    for key_range, value in values.items():
        for group in _groups(key_range):
            by_group[group] = value


def _groups(key_range: KeyRange) -> range:
    return layout.groups_of(key_range).numbers


def _runs(groups: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ascending groups in contiguous runs."""
    for _, run in groupby(
        enumerate(groups),
        key=lambda numbered: numbered[1] - numbered[0],
    ):
        yield [group for _, group in run]
