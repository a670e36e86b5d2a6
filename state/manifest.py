"""The manifest of a snapshot, as a value.

    <storage>/<application>/published/<number>      the run whose manifest is published: the highest number counts
    <storage>/<application>/<run>/manifest.json     written last, never changed
    <storage>/<application>/<run>/<store>/…sst      the state, sorted files of RocksDB

A *slice* is a run of key groups of one store and partition, with files of these groups
alone: a task takes only the slices of its range. Each slice has its own changelog
offset, so a manifest may hold slices of several runs.

Invariant: slices of a store and partition do not overlap. A file belongs to one family
and to one slice.
Invariant: a snapshot is a cache: the changelogs alone give the same state. A backfill
writes its result to the changelogs before it publishes.
Invariant: a manifest has the SHA-256 of its own bytes and of every file; readers check
them. Turned down: a snapshot as the only copy of state. A damaged one could not be
refused, and a deleted key would come back once compaction removes its tombstone from
the changelog. Turned down: RocksDB checkpoints (tied to one database and its options; a
range could not be taken out).
Relies on: `snapshot` (writes the slices), `published_snapshot` (which manifest counts),
`snapshot_download` (reads them).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED, Checkpoint
from coopstreams.topology.errors import SnapshotError
from coopstreams.topology.json_text import read_long
from coopstreams.topology.keys import ALL_GROUPS, KeyGroups, KeyRange
from coopstreams.topology.stores import StoreSpec

FORMAT = 1
"""The version of the manifest, of the files' layout and of the key hash."""

SLICE_GROUPS = 8
"""The most key groups in a slice: 32 slices for each partition."""


Kind: TypeAlias = Literal["backfill", "rebuild", "running", "savepoint"]
"""What made a snapshot: a backfill, `coopstreams rebuild`, the running application, or
the running application at the word of `coopstreams savepoint`.
"""


class DamagedManifestError(SnapshotError):
    """A manifest is damaged: no version of coopstreams restores anything from it."""


@dataclass(frozen=True, slots=True)
class File:
    """A sorted file: database keys and values of one family, in the format of `layout`.

    Shape: `name` is relative to the application's folder; `bytes` is its size,
    `entries` the number of its keys; `first_key` and `last_key` are hexadecimal, both
    inclusive.
    """

    family: str
    name: str
    bytes: int
    entries: int
    sha256: str
    first_key: str
    last_key: str


@dataclass(frozen=True, slots=True)
class Slice:
    """The key groups first..last (inclusive) of a store and partition. A slice without
    files has no keys.

    `offset`, `observed` and `true_ms` are as in a `Checkpoint`: a restore continues at
    `offset` of the changelog.
    """

    partition: int
    first: int
    last: int
    offset: int = 0
    observed: int = NOTHING_OBSERVED
    true_ms: int = 0
    files: tuple[File, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last <= ALL_GROUPS.last:
            raise ValueError(
                f"there are no key groups {self.first}..{self.last}: a slice has some of {ALL_GROUPS}"
            )

    def checkpoint(self, topic_id: str) -> Checkpoint:
        """Return the checkpoint of the slice's groups once they are restored, in the
        changelog with that id.
        """
        return Checkpoint(
            self.first,
            self.last,
            self.offset,
            self.observed,
            self.true_ms,
            topic_id,
            ahead=self.observed != NOTHING_OBSERVED,
        )


@dataclass(frozen=True, slots=True)
class StoreSlices:
    """The slices of one store. `changelog`: its changelog topic. `topic_id` identifies
    the changelog to which the offsets belong. `partitions`: how many it has. `shape`:
    the format of the rows in words; see `shape_of`.
    """

    changelog: str
    topic_id: str
    partitions: int
    shape: str
    slices: tuple[Slice, ...]

    def of(self, partition: int, groups: KeyGroups) -> list[Slice]:
        """Return the slices of a partition that have any of these groups, ascending."""
        first, last = groups
        found = [
            each
            for each in self.slices
            if each.partition == partition and each.first <= last and first <= each.last
        ]
        return sorted(found, key=lambda each: each.first)


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far the hashes start..end (inclusive) of a source partition were done when
    the slices of a savepoint were taken.

    The other fields are those of a segment of an individual commit.
    """

    start: int
    end: int
    position: int
    stream_time: int
    runs: tuple[tuple[int, int], ...] = ()
    operator_times: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class InFlight:
    """The records of a repartition partition that were not done when a savepoint was
    taken: a file in the format of `snapshot.InFlightRecord`.

    Shape: `topic` without the application id; `name` is relative to the application's
    folder.
    """

    topic: str
    partition: int
    name: str
    records: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a snapshot of an application: its stores, their slices and files.

    Shape: `cut` has, by source topic and partition, the first offset that is not in the
    state; it is empty for a rebuild, which follows changelogs. `stream_times` has the
    stream time (ms) at that offset. `created` is ISO 8601, UTC. Of a savepoint,
    `positions` has the progress of each source partition at the slices, by topic,
    `source_ids` the ids of these topics, and `in_flight` the records between its tasks;
    of other snapshots they are empty.
    """

    application: str
    run: str
    kind: Kind
    created: str
    stores: Mapping[str, StoreSlices]
    cut: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    stream_times: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    positions: Mapping[str, Mapping[int, tuple[SourcePosition, ...]]] = field(
        default_factory=dict
    )
    source_ids: Mapping[str, str] = field(default_factory=dict)
    in_flight: tuple[InFlight, ...] = ()

    def to_json(self) -> bytes:
        """Return the manifest as a file: see `sealed`."""
        return sealed(self)

    @staticmethod
    def from_json(data: bytes) -> Manifest:
        """Return the manifest of a file.

        Raises:
            DamagedManifestError: its bytes are not those that were written.
            SnapshotError: a newer coopstreams wrote it.
        """
        return unsealed(data, _MANIFESTS)

    @property
    def created_ms(self) -> int:
        """The wall clock at which the snapshot was created, in milliseconds."""
        return int(datetime.fromisoformat(self.created).timestamp() * 1000)

    def files(self) -> Iterator[File]:
        """Yield all files of the snapshot."""
        for store in self.stores.values():
            for each in store.slices:
                yield from each.files


_MANIFESTS = msgspec.json.Decoder(Manifest, strict=False)

T = TypeVar("T")


def sealed(value: Any) -> bytes:
    """Return a value as a file: indented JSON with `format` and `sha256`, the digest of
    the canonical form without `sha256` itself.
    """
    content = {"format": FORMAT, **msgspec.to_builtins(value, str_keys=True)}
    return msgspec.json.format(
        msgspec.json.encode({**content, "sha256": _digest(content)}),
        indent=1,
    )


def unsealed(data: bytes, values: msgspec.json.Decoder[T]) -> T:
    """Return the value of a file that `sealed` made.

    Raises:
        DamagedManifestError: its bytes are not those that were written.
        SnapshotError: a newer coopstreams wrote it.
    """
    try:
        content: Any = read_long(msgspec.json.decode, data)
        version = content.pop("format")
        if isinstance(version, int) and version > FORMAT:
            raise SnapshotError(
                f"it has format {version}, this coopstreams knows up to {FORMAT}: upgrade coopstreams"
            )
        written = content.pop("sha256")
        if written != _digest({"format": version, **content}):
            raise DamagedManifestError(
                "its bytes are not those that were written (SHA-256 differs)"
            )
        return read_long(values.decode, data)
    except (
        msgspec.MsgspecError,
        RecursionError,
        UnicodeDecodeError,
        AttributeError,
        KeyError,
        TypeError,
    ) as error:
        raise DamagedManifestError(f"it is no manifest: {error}") from error


def shape_of(spec: StoreSpec) -> str:
    """Return a description of everything that determines a store's bytes. A store of
    another shape would be misread.
    """
    return f"{layout.shape(spec)}, keys {spec.key.name}, values {spec.value.name}" + (
        f", suffix {spec.suffix_bytes}" if spec.suffix_bytes else ""
    )


def cut(checkpoints: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
    """Yield the checkpoints, divided at the bounds of slices."""
    for run in checkpoints:
        for first, last in pieces(run.groups):
            yield replace(run, first=first, last=last)


def manifest_of(
    application: str,
    run: str,
    kind: Kind,
    now_ms: int,
) -> Manifest:
    """Return a manifest without stores, which is created at this wall-clock time."""
    created = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="seconds")
    return Manifest(application, run, kind, created, {})


def pieces(groups: KeyGroups) -> Iterator[KeyGroups]:
    """Yield the key groups, divided at the bounds of slices."""
    for start in range(
        groups.first - groups.first % SLICE_GROUPS,
        groups.last + 1,
        SLICE_GROUPS,
    ):
        yield KeyGroups(
            max(groups.first, start),
            min(groups.last, start + SLICE_GROUPS - 1),
        )


def whole_slices(key_range: KeyRange) -> KeyRange:
    """Return the range widened to the bounds of slices: only whole slices can be
    replaced.
    """
    first, last = layout.groups_of(key_range)
    return KeyRange.of_groups(
        first - first % SLICE_GROUPS,
        last - last % SLICE_GROUPS + SLICE_GROUPS - 1,
    )


def placed(
    slices: Iterable[Slice],
    offsets: Mapping[int, int],
    true_ms: int,
) -> tuple[Slice, ...]:
    """Return copies of the slices with these changelog offsets, given by partition. A
    backfill knows the offsets only after its tasks.

    Units: `true_ms` is the wall clock at which the offsets were the ends of the
    changelog.
    """
    return tuple(
        replace(each, offset=offsets[each.partition], true_ms=true_ms)
        for each in slices
    )


def merged(older: Iterable[Slice], newer: Iterable[Slice]) -> tuple[Slice, ...]:
    """Return the newer slices, and the older ones that share no group with them.

    An older slice that is partly replaced is left out: the changelog restores a hole,
    but an overlap would be an error.
    """
    result = list(newer)
    taken = {
        (each.partition, group)
        for each in result
        for group in range(each.first, each.last + 1)
    }
    result += [
        each
        for each in older
        if not any(
            (each.partition, group) in taken
            for group in range(each.first, each.last + 1)
        )
    ]
    return tuple(sorted(result, key=lambda each: (each.partition, each.first)))


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
