"""Checkpoints: the changelog offset and the observed window start of each key group of
a store.

Sibling tasks share a store and its changelog partition but commit separately, so each
run of key groups has a checkpoint of its own. A task that opens another key range than
the previous task replaces only the checkpoints of its own range.

Invariant: the checkpoints of a store are disjoint and ascending; equal neighbours are
merged.
Invariant: replaying the changelog from a checkpoint's offset, filtered by its groups,
gives the true state of these groups. This holds for the changelog whose topic id the
checkpoint names, not for a later topic of the same name. Turned down: one offset for
each store (a lagging sibling would lose records, or the others would replay in vain),
and one topic id for each store (a sibling that runs while the topic is recreated keeps
writing offsets of the old topic).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from coopstreams.topology.errors import StateCorruptError
from coopstreams.topology.keys import ALL_GROUPS, KeyGroups

NOTHING_OBSERVED = -1
"""The value of `observed` for a store without windows, or before its first window."""

NEVER_TRUE = 0
"""The value of `true_ms` for state that was never known to equal its changelog. No
restore continues from it.
"""

PROVEN = -1
"""The value of `unproven_from` for state of which no row can be missing."""

NO_TOPIC = ""
"""The topic id of state without a changelog, or whose changelog has no topic id."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The changelog position of the state of a store's key groups first..last
    (inclusive).

    Shape: `offset` is the next offset to replay. `observed` is the start (ms) of the
    newest window that the groups have observed: older windows expire by it.
    """

    first: int
    last: int
    offset: int
    observed: int = NOTHING_OBSERVED
    true_ms: int = NEVER_TRUE
    """The wall clock at which the state was last known to equal the end of the
    changelog. Compaction removes tombstones, so a restore cannot continue from state
    that is too old.
    """
    topic_id: str = NO_TOPIC
    """The id of the topic to which the offset belongs."""
    unproven_from: int = PROVEN
    """For a store that is restored from a source topic: the offset from which the topic
    was read up to `offset` while compaction may have removed rows that the store needs.
    """
    ahead: bool = False
    """Whether windows have expired by the times in the changelog (up to `observed`), and
    not by the time of a task: under at-least-once, a task may begin earlier than its
    changelog ends, and need them.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last <= ALL_GROUPS.last:
            raise ValueError(
                f"there are no key groups {self.first}..{self.last}: a checkpoint has some of {ALL_GROUPS}"
            )

    @property
    def groups(self) -> KeyGroups:
        """The key groups first..last."""
        return KeyGroups(self.first, self.last)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """All checkpoints of a store: an immutable value."""

    runs: tuple[Checkpoint, ...] = ()

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self.runs)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def within(self, groups: KeyGroups) -> list[Checkpoint]:
        """Return the checkpoints that overlap these key groups, cut to the groups."""
        first, last = groups
        return [
            run
            if first <= run.first and run.last <= last
            else replace(run, first=max(run.first, first), last=min(run.last, last))
            for run in self.runs
            if run.first <= last and first <= run.last
        ]

    def by_group(self) -> list[Checkpoint | None]:
        """Return a list with the checkpoint of each key group, None for a group without
        one.
        """
        found: list[Checkpoint | None] = [None] * len(ALL_GROUPS.numbers)
        for run in self.runs:
            found[run.first : run.last + 1] = [run] * (run.last + 1 - run.first)
        return found

    def without(self, groups: KeyGroups) -> Checkpoints:
        """Return the checkpoints of all key groups but these."""
        below = KeyGroups(0, groups.first - 1)
        above = KeyGroups(groups.last + 1, ALL_GROUPS.last)
        return Checkpoints((*self.within(below), *self.within(above)))

    def put(self, checkpoints: Iterable[Checkpoint]) -> Checkpoints:
        """Return a copy in which the new checkpoints replace those of their key groups."""
        result = self
        for new in checkpoints:
            result = Checkpoints(
                tuple(
                    sorted(
                        (*result.without(new.groups).runs, new),
                        key=lambda run: run.first,
                    )
                )
            )
        return Checkpoints(tuple(_joined(result.runs)))

    def offset(self, groups: KeyGroups) -> int | None:
        """Return the offset from which these key groups are restored; None if one of
        them has no checkpoint.
        """
        runs = self.within(groups)
        known = sum(len(run.groups.numbers) for run in runs) == len(groups.numbers)
        return min(run.offset for run in runs) if known else None

    def observed(self, groups: KeyGroups = ALL_GROUPS) -> int:
        """Return the start of the newest window that all of these key groups have
        observed: the smallest `observed` of their checkpoints.

        It is the smallest, because a lagging sibling still needs its windows. A window
        that is kept too long is hidden as soon as stream time advances.
        """
        return min(
            (run.observed for run in self.within(groups)), default=NOTHING_OBSERVED
        )

    def encode(self) -> bytes:
        """Return the checkpoints as bytes.

        Shape: a MessagePack array of maps by field name, ascending by key group.
        """
        return _ENCODER.encode(self.runs)

    @staticmethod
    def decode(data: bytes) -> Checkpoints:
        """Return the checkpoints that the bytes encode.

        Raises:
            StateCorruptError: the bytes are no checkpoints. Delete the folder: the
            changelog restores it.
        """
        try:
            return Checkpoints(_DECODER.decode(data))
        except (msgspec.DecodeError, RecursionError) as error:
            raise StateCorruptError(
                f"{len(data)} bytes are no checkpoints ({error}): delete the folder, the changelog restores it"
            ) from error


def _joined(runs: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
    previous: Checkpoint | None = None
    for run in runs:
        if (
            previous is not None
            and previous.last + 1 == run.first
            and replace(run, first=previous.first) == replace(previous, last=run.last)
        ):
            previous = replace(previous, last=run.last)
            continue
        if previous is not None:
            yield previous
        previous = run
    if previous is not None:
        yield previous


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[Checkpoint, ...])
