"""A snapshot by the running application: who writes what, and when it is published.

    <application>/ROUND                     the round that the publisher has begun last: its run, and what it follows
    <application>/<run>/parts/<task>.json   what the owner of a task has written for the run: a `Part`
    <application>/SAVEPOINT                 the savepoint that `coopstreams savepoint` wants now

The publisher begins a round. Each owner of a task that sees it writes the slices that
have changed and then its part. The publisher puts the parts together once they cover all
key groups of all stores, or after a while: then slices of the snapshot before stay.

Invariant: a round is published only as the successor of the publication that it began
behind. So two publishers never mix: the files that a part takes over from the snapshot
before are those of one snapshot, which nobody has swept meanwhile.
Invariant: each slice is the state at its own changelog offset. So it does not matter at
which of a task's commits it is taken, nor whether the task moves or is cut anew during
the round: of the slices of parts with the same key group, the one furthest in the
changelog counts (`furthest`). A slice of the snapshot before gives way to any of these, wherever
it is in the changelog (`assembled`).
Relies on: `manifest` (`merged`), `published_snapshot` (`misfit`); `instance/snapshot_taker.py` acts.
Turned down: to wait for one commit of all tasks (a restore replays each slice from its
own offset), and messages between the processes (the storage is where the files are).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from coopstreams.state.manifest import (
    Manifest,
    Slice,
    SourcePosition,
    StoreSlices,
    merged,
    sealed,
    shape_of,
    unsealed,
)
from coopstreams.state.published_snapshot import Changelog, misfit
from coopstreams.state.snapshot import NOTHING_PUBLISHED, Publication
from coopstreams.topology.keys import GROUPS, WHOLE
from coopstreams.topology.stores import StoreSpec

ROUND = "ROUND"
SAVEPOINT = "SAVEPOINT"
PATIENCE_S = 60.0
"""The least time for which a publisher waits for parts."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round of a publisher. `behind`: the number of the publication that it follows,
    and from whose manifest parts may take files over.
    """

    run: str
    behind: int

    def to_json(self) -> bytes:
        """Return the round as a file."""
        return sealed(self)

    @staticmethod
    def from_json(data: bytes) -> Round:
        """Return the round of a file.

        Raises:
            DamagedManifestError: its bytes are not those that were written.
        """
        return unsealed(data, _ROUNDS)


@dataclass(frozen=True, slots=True)
class PartStore:
    """The slices of a store in a part, with the id of the changelog to which their
    offsets belong.
    """

    topic_id: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """The request for a savepoint. `behind`: as of a `Round`. `until_ms`: the wall clock
    at which nobody waits for it any more.
    """

    run: str
    behind: int
    until_ms: int

    def to_json(self) -> bytes:
        """Return the request as a file."""
        return sealed(self)

    @staticmethod
    def from_json(data: bytes) -> SavepointRequest:
        """Return the request of a file.

        Raises:
            DamagedManifestError: its bytes are not those that were written.
        """
        return unsealed(data, _REQUESTS)


@dataclass(frozen=True, slots=True)
class TaskPositions:
    """The progress of a task at the slices of its part, by source topic, and the ids of
    these topics. The task has the hashes start..end (inclusive).
    """

    subtopology: int
    partition: int
    start: int
    end: int
    positions: Mapping[str, tuple[SourcePosition, ...]]
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """What the owner of a task has written for a run, by store.

    `at`: of a savepoint: the progress of the task. All slices are as of that moment.
    """

    stores: Mapping[str, PartStore]
    at: TaskPositions | None = None

    def to_json(self) -> bytes:
        """Return the part as a file."""
        return sealed(self)

    @staticmethod
    def from_json(data: bytes) -> Part:
        """Return the part of a file.

        Raises:
            DamagedManifestError: its bytes are not those that were written.
        """
        return unsealed(data, _PARTS)


_ROUNDS = msgspec.json.Decoder(Round)
_REQUESTS = msgspec.json.Decoder(SavepointRequest)
_PARTS = msgspec.json.Decoder(Part)


class Act(Enum):
    """What a process does about the rounds of its application next."""

    NOTHING = "nothing"
    BEGIN = "begin"
    """Begin a round behind the present publication."""
    PUBLISH = "publish"
    """Publish the parts that have come."""


class Rounds:
    """The rounds of one process, which may be the publisher. Times are those of one
    monotonic clock, in seconds.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._began = 0.0
        self._due: float | None = None
        """The time of the next round; None: this process was not the publisher."""
        self.open: Round | None = None
        """The round of this process that is not published yet."""

    def look(
        self,
        now: float,
        last: Publication,
        age_s: float,
        *,
        publisher: bool,
        missing: int,
    ) -> Act:
        """Return what to do now.

        `last`: the publication that counts, `age_s` its age by the wall clock.
        `publisher`: whether this process is the publisher. `missing`: the number of key
        groups that the parts of the open round do not cover.
        """
        if not publisher:
            self.open = self._due = None
            return Act.NOTHING
        if self._due is None:
            wait_s = self._interval_s - age_s if last != NOTHING_PUBLISHED else 0.0
            self._due = now + min(max(wait_s, 0.0), self._interval_s)
        if self.open is not None and self.open.behind != last.number:
            self.open = None  # another process, or an operator, has published
        if self.open is not None:
            patience_s = max(PATIENCE_S, self._interval_s)
            over = now - self._began >= patience_s
            return Act.NOTHING if missing and not over else Act.PUBLISH
        return Act.BEGIN if now >= self._due else Act.NOTHING

    def begun(self, round_: Round, now: float) -> None:
        """Note that a round has begun."""
        self.open = round_
        self._began = now
        self._due = now + self._interval_s

    def ended(self) -> None:
        """Note that the open round has ended, published or not."""
        self.open = None


def missing(parts: Iterable[Part], partitions: Mapping[str, int]) -> int:
    """Return how many key groups no part covers. `partitions`: the number of partitions
    of each store.
    """
    covered = {
        (name, each.partition, group)
        for part in parts
        for name, store in part.stores.items()
        for each in store.slices
        for group in range(each.first, each.last + 1)
        if each.partition < partitions.get(name, 0)
    }
    return sum(partitions.values()) * GROUPS - len(covered)


def tiled(parts: Iterable[Part]) -> list[Part] | None:
    """Return parts of one partition of a sub-topology whose tasks tile the hash space;
    None if no parts do.

    A task may have been cut anew meanwhile: then there are parts of both cuts, which
    must not be mixed where they overlap.
    """
    of_start: dict[int, list[Part]] = {}
    for part in parts:
        if part.at is not None:
            of_start.setdefault(part.at.start, []).append(part)
    ways: list[list[Part]] = [[]]
    reached = {0}
    while ways:
        way = ways.pop()
        start = 0 if not way or way[-1].at is None else way[-1].at.end + 1
        for part in of_start.get(start, ()):
            assert part.at is not None
            longer = [*way, part]
            if part.at.end == WHOLE.end:
                return longer
            if part.at.end + 1 not in reached:
                reached.add(part.at.end + 1)
                ways.append(longer)
    return None


def furthest(slices: Iterable[Slice]) -> list[Slice]:
    """Return slices of which no two have a key group in common: those that are furthest
    in their changelogs.
    """
    found: list[Slice] = []
    taken: set[tuple[int, int]] = set()
    for each in sorted(slices, key=lambda each: each.offset, reverse=True):
        groups = {(each.partition, group) for group in range(each.first, each.last + 1)}
        if taken.isdisjoint(groups):
            taken |= groups
            found.append(each)
    return found


def of_parts(
    run: str,
    parts: Iterable[Part],
    older: Manifest | None,
    now: Mapping[str, Changelog],
) -> dict[str, list[Slice]]:
    """Return the slices of parts by store, without those that cannot be published:
    their changelog is not that of `now`, or they have files that are neither of this
    run nor of the older manifest, and may be gone.
    """
    kept = frozenset(file.name for file in older.files()) if older else frozenset()
    found: dict[str, list[Slice]] = {}
    for part in parts:
        for name, store in part.stores.items():
            if name in now and store.topic_id == now[name].topic_id:
                found.setdefault(name, []).extend(
                    each for each in store.slices if _is_there(each, run, kept)
                )
    return {name: furthest(slices) for name, slices in found.items()}


def _is_there(
    each: Slice,
    run: str,
    kept: Collection[str],
) -> bool:
    """Return whether all files of a slice are of this run, or among the files `kept`."""
    return all(
        file.name.startswith(f"{run}/") or file.name in kept for file in each.files
    )


def assembled(
    of: Manifest,
    older: Manifest | None,
    found: Mapping[str, Sequence[Slice]],
    specs: Mapping[str, StoreSpec],
    now: Mapping[str, Changelog],
) -> Manifest:
    """Return a copy of the manifest `of`, which has no stores yet, with the new slices
    (`found`), and the older manifest's slices that still fit the topology and the
    changelogs (`now`) and share no key group with a new one (`merged`). A store whose
    changelog does not exist is left out.
    """
    stores: dict[str, StoreSlices] = {}
    for name, topic in now.items():
        new = found.get(name, ())
        before = older.stores.get(name) if older is not None else None
        kept = (
            before.slices
            if before is not None and not misfit(before, specs[name], topic)
            else ()
        )
        if new or kept:
            stores[name] = StoreSlices(
                topic.topic,
                topic.topic_id,
                topic.partitions,
                shape_of(specs[name]),
                merged(kept, new),
            )
    return replace(of, stores=stores)
