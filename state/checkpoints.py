"""Checkpoints: for each key group of a store, the changelog, offset and window start of
its state.

Siblings share a store and its changelog partition but commit separately, so each run of
key groups has a checkpoint. If a task opens another range than the last one, it cuts
the checkpoints: those outside its range stay.

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
"""The observed window start of a store without windows, or of one that has observed
none.
"""

NEVER_TRUE = 0
"""A `true_ms` for state that was never known to be true: no restore continues from it.
"""

PROVEN = -1
"""The `unproven_from` of state of which no row can be missing."""

NO_TOPIC = ""
"""The topic id of state without a changelog, or whose changelog has no topic id."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The changelog position of the state of a store's key groups first..last
    (inclusive).

    Shape: `offset` is the next one to replay. `observed` is the largest window start
    that counts for retention.
    """

    first: int
    last: int
    offset: int
    observed: int = NOTHING_OBSERVED
    true_ms: int = NEVER_TRUE
    """Wall clock at which the state was equal to the end of the changelog. Compaction
    removes tombstones, so a restore cannot continue from state that is too old.
    """
    topic_id: str = NO_TOPIC
    """The id of the topic to which the offset belongs."""
    unproven_from: int = PROVEN
    """The offset from which a source topic was read up to `offset`, while it is not
    known yet whether compaction had removed rows there.
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
        """Return the checkpoints of some groups, cut to them."""
        first, last = groups
        return [
            run
            if first <= run.first and run.last <= last
            else replace(run, first=max(run.first, first), last=min(run.last, last))
            for run in self.runs
            if run.first <= last and first <= run.last
        ]

    def by_group(self) -> list[Checkpoint | None]:
        """Return the checkpoint of each group, None for those that have none."""
        found: list[Checkpoint | None] = [None] * len(ALL_GROUPS.numbers)
        for run in self.runs:
            found[run.first : run.last + 1] = [run] * (run.last + 1 - run.first)
        return found

    def without(self, groups: KeyGroups) -> Checkpoints:
        """Return the checkpoints of all other groups."""
        below = KeyGroups(0, groups.first - 1)
        above = KeyGroups(groups.last + 1, ALL_GROUPS.last)
        return Checkpoints((*self.within(below), *self.within(above)))

    def put(self, checkpoints: Iterable[Checkpoint]) -> Checkpoints:
        """Return the checkpoints with these in place of those of their groups."""
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
        """Return the offset from which these groups are restored; None if one of them
        has no checkpoint.
        """
        runs = self.within(groups)
        known = sum(len(run.groups.numbers) for run in runs) == len(groups.numbers)
        return min(run.offset for run in runs) if known else None

    def observed(self, groups: KeyGroups = ALL_GROUPS) -> int:
        """Return the window start that all of these groups have observed.

        That is the smallest one: a lagging sibling still needs its windows, and a
        surplus window is hidden as soon as stream time advances.
        """
        return min(
            (run.observed for run in self.within(groups)), default=NOTHING_OBSERVED
        )

    def encode(self) -> bytes:
        """Return the checkpoints as bytes.

        Shape: MessagePack, an array of maps by the names of the fields, ascending.
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
