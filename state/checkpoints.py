"""How far the state of each key group stands: in which changelog, at which offset, which window start.

Siblings share a store and its changelog partition but commit apart, so there is a checkpoint for each run of key
groups. A task that opens another range than the last one cuts them: what lies outside its range keeps its own
checkpoint.

Invariant: the checkpoints of a store are disjoint, ascending, and neighbours that say the same are one.
Invariant: replaying the changelog from a checkpoint's offset, filtered by its groups, gives the true state of these
groups: that changelog which the checkpoint names by its topic id, and no other one that has come to have the name.
Turned down: one offset per store (a sibling that lags would lose records, or the others replay for nothing), and one
topic id per store (a sibling that runs while the topic is made anew goes on writing at offsets that mean another one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from coopstreams.topology.errors import StateCorruptError

NOTHING_OBSERVED = -1
"""The observed window start of a store without windows, or of one that has not seen any."""

NEVER_TRUE = 0
"""The time at which state was true of which nobody knows it: no restore goes on from there."""

NO_TOPIC = ""
"""The topic id of state that no changelog has, or whose changelog the brokers do not name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the key groups first..last (inclusive) of a store stand.

    Shape: `offset` is the next one to replay. `observed` is the largest window start that counts for their retention.
    """

    first: int
    last: int
    offset: int
    observed: int = NOTHING_OBSERVED
    true_ms: int = NEVER_TRUE
    """Wall clock when the state was the changelog's at its end. A changelog forgets tombstones: what is too old cannot
    be continued from.
    """
    topic_id: str = NO_TOPIC
    """Which topic the offset is of."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """All checkpoints of a store: an immutable value."""

    runs: tuple[Checkpoint, ...] = ()

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self.runs)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def within(self, first: int, last: int) -> list[Checkpoint]:
        """Return the checkpoints of the groups first..last, cut to them."""
        return [
            replace(run, first=max(run.first, first), last=min(run.last, last))
            for run in self.runs
            if run.first <= last and first <= run.last
        ]

    def at(self, group: int) -> Checkpoint | None:
        """Return the checkpoint that holds for a group."""
        return next((run for run in self.runs if run.first <= group <= run.last), None)

    def without(self, first: int, last: int) -> Checkpoints:
        """Return the checkpoints outside the groups first..last."""
        return Checkpoints((*self.within(0, first - 1), *self.within(last + 1, 255)))

    def put(self, checkpoints: Iterable[Checkpoint]) -> Checkpoints:
        """Return the checkpoints with these in the place of whatever held for their groups."""
        result = self
        for new in checkpoints:
            result = Checkpoints(
                tuple(sorted((*result.without(new.first, new.last).runs, new), key=lambda run: run.first))
            )
        return Checkpoints(tuple(_joined(result.runs)))

    def offset(self, first: int, last: int) -> int | None:
        """Return the offset from which the groups first..last are restored; None if one of them has no checkpoint."""
        runs = self.within(first, last)
        known = sum(run.last - run.first + 1 for run in runs) == last - first + 1
        return min(run.offset for run in runs) if known else None

    def observed(self, first: int = 0, last: int = 255) -> int:
        """Return the window start that all of the groups first..last have observed.

        The smallest counts: a sibling that lags still needs its windows, and one too many is hidden as soon as stream
        time moves.
        """
        return min((run.observed for run in self.within(first, last)), default=NOTHING_OBSERVED)

    def encode(self) -> bytes:
        """Return the checkpoints as bytes.

        Shape: MessagePack, an array of maps by the names of the fields, ascending.
        """
        return _ENCODER.encode(self.runs)

    @staticmethod
    def decode(data: bytes) -> Checkpoints:
        """Return the checkpoints of some bytes.

        Raises:
            StateCorruptError: these bytes are none.
        """
        try:
            return Checkpoints(_DECODER.decode(data))
        except msgspec.DecodeError as error:
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
