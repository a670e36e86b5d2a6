"""The individual commits of one group, and the rule that resolves them and the plain
offset to positions.

For each hash the record of the highest term counts. The plain offset is a record for
all hashes, at the term in its metadata. At equal terms the larger position counts.

Invariant: `live` has the last value of each key and no tombstoned key. Which record
counts for which hash changes only when a key is added or removed.
Relies on: `record` (keys, terms, segments, `ahead`). When it may be asked, `follower`
and `positions` say.
The proof, and what breaks without each part of the rule: docs/internals/positions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from coopstreams.commit.offset_runs import Runs, above
from coopstreams.commit.packed_map import Packed
from coopstreams.commit.record import (
    MADE_ANEW,
    PARTITION,
    TAIL_BYTES,
    Ahead,
    CommitKey,
    Committed,
    Segment,
    decode_key,
    decode_payload,
    encode_key,
    encode_text,
    key_of,
    payload_of,
    tail_of,
    topic_and_text,
    topic_number,
)
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.operator_time import latest
from coopstreams.topology.keys import WHOLE, KeyRange


class Hole(NamedTuple):
    """A range of hashes without an individual commit."""

    key_range: KeyRange


class Winner(NamedTuple):
    """A segment of the individual commit that counts for its hashes, and the term of
    that commit.
    """

    segment: Segment
    term: int

    @property
    def key_range(self) -> KeyRange:
        """The hashes of the segment."""
        return self.segment.key_range


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """The progress with which a task begins on one source partition.

    Shape: `segments` tile the range. `committed` is the plain offset that was found.
    `claim`: the task writes individual commits; under at-least-once, these segments
    must be in the log under this term before the first record is processed.
    """

    term: int
    segments: tuple[Segment, ...]
    committed: Committed | None
    claim: bool
    begins: bool = False
    """Whether some of these hashes have no visible commit at all: they begin at
    `auto.offset.reset`.
    """
    anew: bool = False
    """Whether nothing was committed since a reset with which the topic was made anew:
    `CommitView.anew`.
    """
    named: frozenset[str] = frozenset()
    """The topic ids that are named by the individual commits which count."""


@dataclass(frozen=True, slots=True)
class LiveCommit:
    """One individual commit, without its writer, which only `hidden_commits` needs and
    reads from the log.

    Shape: `metadata` is the user's; in an application's commit, the topic's id.
    """

    key: CommitKey
    segments: tuple[Segment, ...]
    metadata: str = ""


class _Tiling(NamedTuple):
    """The individual commit that counts for each hash of a partition."""

    tiles: list[tuple[KeyRange, CommitKey | None]]
    """Key ranges that tile the hash space, ascending, each with the key that counts;
    None: no key.
    """
    silent: list[CommitKey]
    """The keys that count for no hash."""


TILINGS = 1024
"""The most tilings that are cached. The partitions that this process commits need
theirs again and again.
"""
WHOLES = 1024
"""The most resolved partitions that are cached. Units: 1 kB for each key range."""


class CommitView:
    """The individual commits of one group that were read so far. Not thread-safe: a
    `follower.Follower` guards it.

    Commits are kept packed as they were written, and decoded on demand: 50 bytes per
    key range instead of 990 (measured).
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self._name = encode_text(group)
        self.taken = 0
        """The number of the group's records that were applied, unreadable ones
        included.
        """
        self._live: dict[str, Packed] = {}
        """The commits by topic: the tail of the key -> the payload of the value."""
        self._topic_ids: dict[str, str] = {}
        """The ids of source topics that `tell` was called with."""
        self._tilings: dict[TopicPartition, _Tiling] = {}
        self._wholes: dict[TopicPartition, tuple[Winner | Hole, ...]] = {}
        """The results of `whole` since the partition's last record."""
        self._mirrors: dict[
            TopicPartition, tuple[Committed | None, Committed | None]
        ] = {}
        """The last argument and result of `mirror` for each partition, since the
        partition's last record: tasks call it at each interval.
        """

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the group's partition, in log order; records of other
        groups change nothing.

        Raises:
            LogError: this version cannot read a record of this group.
        """
        if not key.startswith(self._name, 1):
            return
        self.taken += 1
        parsed = decode_key(key)
        partition = TopicPartition(parsed.topic, parsed.partition)
        self._mirrors.pop(partition, None)
        self._wholes.pop(partition, None)
        live = self._live.setdefault(parsed.topic, Packed(TAIL_BYTES))
        tail = tail_of(parsed)
        changed = (
            live.remove(tail)
            if value is None
            else live.put(tail, payload_of(value, parsed.key_range))
        )
        if changed:
            self._tilings.pop(partition, None)

    def tell(self, topic: str, topic_id: str) -> None:
        """Set the id of a source topic: consumers' commits that name another id count
        no more.
        """
        if self._topic_ids.get(topic) != topic_id:
            self._topic_ids[topic] = topic_id
            self._mirrors.clear()
            self._wholes.clear()

    def of_this_topic(
        self,
        partition: TopicPartition,
        committed: Committed | None,
    ) -> Committed | None:
        """Return the plain offset; None if it names another topic id than the known
        one.
        """
        number = topic_number(self._topic_ids.get(partition.topic, ""))
        return (
            None
            if committed and number and committed.topic not in (0, number)
            else committed
        )

    def outlived(self, partition: TopicPartition, key_range: KeyRange) -> bool:
        """Return whether the commit that counts for some of these hashes is a
        consumer's, in a deleted topic of the same name.
        """
        return any(
            self._is_other(partition.topic, metadata)
            for metadata in self._named(partition, key_range)
        )

    def sources(self) -> list[TopicPartition]:
        """Return the source partitions that have individual commits."""
        found = {
            (topic, *PARTITION.unpack_from(tail))
            for topic, live in self._live.items()
            for tail, _ in live.items()
        }
        return sorted(TopicPartition(*at) for at in found)

    def live(self, partition: TopicPartition) -> list[LiveCommit]:
        """Return the individual commits that are neither tombstoned nor replaced, the
        highest rank last.
        """
        found = []
        for key, said in self._entries(partition):
            segments, metadata = decode_payload(said, key.key_range)
            other = self._is_other(partition.topic, metadata)
            found.append(
                LiveCommit(key, segments, "" if other else topic_and_text(metadata)[1])
            )
        return sorted(found, key=lambda said: _rank(said.key))

    def resolve(
        self,
        partition: TopicPartition,
        key_range: KeyRange,
    ) -> list[Winner | Hole]:
        """Return the winners and holes that tile a key range, ascending: the individual
        commits that count.
        """
        resolved: list[Winner | Hole] = []
        for tile, key in self._tiling(partition).tiles:
            part = tile.intersect(key_range)
            if part is None:
                continue
            said = self._live[partition.topic].get(tail_of(key)) if key else None
            if key is None or said is None:
                resolved.append(Hole(part))
                continue
            segments, metadata = decode_payload(said, key.key_range)
            if self._is_other(partition.topic, metadata):
                resolved.append(Hole(part))
                continue
            for segment in segments:
                common = segment.key_range.intersect(part)
                if common is not None:
                    resolved.append(
                        Winner(
                            segment
                            if common == segment.key_range
                            else replace(segment, key_range=common),
                            key.term,
                        )
                    )
        return resolved

    def whole(self, partition: TopicPartition) -> Sequence[Winner | Hole]:
        """Return the segments that count for the whole hash space of a partition, and
        the holes between them, as `resolve` does. The result is cached until the
        partition's next commit record, for callers that ask again and again.
        """
        resolved = self._wholes.get(partition)
        if resolved is None:
            if len(self._wholes) >= WHOLES:
                del self._wholes[next(iter(self._wholes))]
            resolved = self._wholes[partition] = tuple(self.resolve(partition, WHOLE))
        return resolved

    def next_term(self, partition: TopicPartition, committed: Committed | None) -> int:
        """Return the term for a task that opens now: above all terms of the partition."""
        plain = max(committed.term or 0, committed.beside) if committed else 0
        return 1 + max(plain, self.highest(partition))

    def highest(self, partition: TopicPartition) -> int:
        """Return the highest term of an individual commit on a partition; 0 without any
        commit. It never falls.
        """
        return max((key.term for key, _ in self._entries(partition)), default=0)

    def anew(self, partition: TopicPartition, committed: Committed | None) -> bool:
        """Return whether nothing was committed since a reset with which the topic was
        made anew.

        The position of such a reset is the beginning of the new topic. No task has been
        there, and no plain offset was committed before it.
        """
        last = max(
            (key for key, _ in self._entries(partition)), key=_rank, default=None
        )
        if last is None or last.generation != MADE_ANEW:
            return False
        return committed is None or committed.term == last.term

    def lacks(self, partition: TopicPartition, committed: Committed | None) -> bool:
        """Return whether individual commits that this plain offset names are gone,
        because their topic or records were deleted.
        """
        return (
            committed is not None
            and committed.beside >= max(1, committed.term or 0)
            and self.highest(partition) < committed.beside
        )

    def open(
        self,
        partition: TopicPartition,
        key_range: KeyRange,
        committed: Committed | None,
        reset: Position,
        *,
        in_birth_order: bool = False,
    ) -> PartitionStart:
        """Return where a task with this range begins.

        Call it only behind the barrier, with a plain offset fetched after the barrier
        was taken. `reset`: where `auto.offset.reset` begins. `in_birth_order`: whether
        records are done in the order of births.
        """
        resolved = self.resolve(partition, key_range)
        segments = combine(resolved, committed, reset, in_birth_order=in_birth_order)
        claim = not key_range.is_whole or any(self._entries(partition))
        begins = committed is None and any(isinstance(one, Hole) for one in resolved)
        return PartitionStart(
            self.next_term(partition, committed),
            tuple(segments),
            committed,
            claim,
            begins,
            self.anew(partition, committed),
            frozenset(
                topic_and_text(metadata)[0] or metadata
                for metadata in self._named(partition, key_range)
            ),
        )

    def stable(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        own: Sequence[Segment] = (),
    ) -> Position | None:
        """Return the stable position: below it everything is done over the whole hash
        space.

        None: a hash has never committed.

        Shape: `own` are committed segments of the caller, whether they were read back
        or not.
        """
        found = self._stable(partition, committed, own)
        return None if found is None else Position(found.position, found.stream_time)

    def _stable(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        own: Sequence[Segment] = (),
        *,
        in_birth_order: bool = False,
    ) -> Segment | None:
        others = WHOLE.minus(segment.key_range for segment in own)
        resolved = [
            one for key_range in others for one in self.resolve(partition, key_range)
        ]
        if committed is None and any(isinstance(one, Hole) for one in resolved):
            return None
        combined = combine(
            resolved,
            committed,
            Position(0),
            in_birth_order=in_birth_order,
        )
        segments = [*combined, *own]
        return earliest(segments) if in_birth_order else lowest(segments)

    def mirror(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        *,
        in_birth_order: bool = False,
    ) -> Committed | None:
        """Return the plain offset that the owner of hash 0 has to write now; None: none
        yet.

        `committed` is the plain offset that it last wrote, or found. A foreign offset
        is replaced only when every hash has passed it: our own offset would no longer
        count as the larger of both. `in_birth_order`: whether records are done in the
        order of births; the same in each call.
        """
        last = self._mirrors.get(partition)
        if last is None or last[0] != committed:
            last = self._mirrors[partition] = (
                committed,
                self._mirror(partition, committed, in_birth_order=in_birth_order),
            )
        return last[1]

    def _mirror(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        *,
        in_birth_order: bool,
    ) -> Committed | None:
        """Compute `mirror`."""
        stable = self._stable(partition, committed, in_birth_order=in_birth_order)
        if stable is None:
            return None
        if committed and committed.term is None:  # a foreign one
            for one in self.resolve(partition, WHOLE):
                if isinstance(one, Hole) or one.segment.position < committed.offset:
                    return None
        beside = max(self.highest(partition), committed.beside if committed else 0)
        term, topic = (committed.term or 0, committed.topic) if committed else (0, 0)
        return Committed(
            stable.position,
            stable.stream_time,
            term,
            beside,
            stable.operator_times,
            topic,
        )

    def garbage(
        self,
        partition: TopicPartition,
        mine: Sequence[KeyRange],
    ) -> list[bytes]:
        """Return the keys that may be tombstoned and whose first hash is in one of
        these ranges.

        The first hash has one owner, so one task tombstones each key.
        """
        return [
            encode_key(key)
            for key in self._tiling(partition).silent
            if any(key.key_range.start in key_range for key_range in mine)
        ]

    def _is_other(self, topic: str, metadata: str) -> bool:
        """Return whether a commit's metadata names another id than that of the topic."""
        named = topic_and_text(metadata)[0]
        known = self._topic_ids.get(topic, "")
        return "" not in (named, known) and named != known

    def _named(self, partition: TopicPartition, key_range: KeyRange) -> frozenset[str]:
        """Return the metadata of the individual commits that count for some of these
        hashes.
        """
        keys = {
            key
            for tile, key in self._tiling(partition).tiles
            if key and tile.overlaps(key_range)
        }
        return frozenset(
            metadata
            for key, said in self._entries(partition)
            if key in keys and (metadata := decode_payload(said, key.key_range)[1])
        )

    def _entries(self, partition: TopicPartition) -> Iterator[tuple[CommitKey, bytes]]:
        """Yield the individual commits of a source partition that no later commit has
        made void: the key, and the encoded value, of each.
        """
        topic, number = partition
        if topic in self._live:
            for tail, said in self._live[topic].items(PARTITION.pack(number)):
                yield key_of(self.group, topic, tail), said

    def _tiling(self, partition: TopicPartition) -> _Tiling:
        """Return the tiling of a partition, cached until a key is added or removed. A
        running task's commits change no key.
        """
        tiling = self._tilings.get(partition)
        if tiling is None:
            if len(self._tilings) >= TILINGS:
                del self._tilings[next(iter(self._tilings))]
            tiling = self._tilings[partition] = _tiled(
                [key for key, _ in self._entries(partition)]
            )
        return tiling


def _tiled(keys: Iterable[CommitKey]) -> _Tiling:
    """Return which of these keys counts for each hash: the one of the highest rank."""
    tiles: list[tuple[KeyRange, CommitKey | None]] = []
    silent: list[CommitKey] = []
    free = [WHOLE]
    for key in sorted(keys, key=_rank, reverse=True):
        left: list[KeyRange] = []
        heard = False
        for gap in free:
            part = gap.intersect(key.key_range)
            if part is None:
                left.append(gap)
            else:
                heard = True
                tiles.append((part, key))
                left += gap.minus([part])
        free = left
        if not heard:
            silent.append(key)
    tiles += [(gap, None) for gap in free]
    return _Tiling(sorted(tiles, key=lambda tile: tile[0]), silent)


def _rank(key: CommitKey) -> tuple[int, int, KeyRange]:
    return key.term, key.generation, key.key_range


def combine(
    resolved: Sequence[Winner | Hole],
    committed: Committed | None,
    reset: Position,
    *,
    in_birth_order: bool = False,
) -> list[Segment]:
    """Return a segment for each winner or hole, with the plain offset taken into
    account. Equal neighbours are joined.
    """
    return join(
        [_combined(one, committed, reset) for one in resolved],
        in_birth_order=in_birth_order,
    )


def lowest(segments: Iterable[Segment]) -> Segment:
    """Return the segment with the lowest position; of several, the one with the largest
    stream time.
    """
    return min(segments, key=lambda segment: (segment.position, -segment.stream_time))


def earliest(segments: Sequence[Segment]) -> Segment:
    """Return the segment with the earliest time, moved to the lowest position: where
    records begin that are done in the order of births.

    There the segment with the lowest position may have a later time than others: its
    first record waits, and theirs were done.
    """
    first = min(segments, key=lambda segment: segment.stream_time)
    return replace(first, position=lowest(segments).position)


def join(
    segments: Sequence[Segment],
    *,
    in_birth_order: bool = False,
) -> list[Segment]:
    """Return the same segments, with neighbours of equal progress joined.

    `in_birth_order`: whether records are done in the order of births. Then parts at one
    position may stand at different births, because records of another source wait, and
    each needs its own time.
    """
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if last and in_birth_order and last.stream_time != segment.stream_time:
            joined.append(segment)
        elif last and _progress(last) == _progress(segment):
            key_range = KeyRange(last.key_range.start, segment.key_range.end)
            joined[-1] = replace(
                last,
                key_range=key_range,
                stream_time=max(last.stream_time, segment.stream_time),
                operator_times=latest(last.operator_times, segment.operator_times),
            )
        else:
            joined.append(segment)
    return joined


def _progress(segment: Segment) -> tuple[int, Runs, Ahead | None]:
    return segment.position, segment.runs, segment.ahead


def _combined(
    one: Winner | Hole,
    committed: Committed | None,
    reset: Position,
) -> Segment:
    """Return the progress that counts for the hashes of one winner or hole: that of the
    higher term, or at equal terms the larger position. `reset`: where a hole begins if
    there is no plain offset.
    """
    if isinstance(one, Hole):
        if committed is None:
            return Segment(one.key_range, reset.offset, reset.stream_time)
        return Segment(
            one.key_range,
            committed.offset,
            committed.stream_time,
            (),
            committed.operator_times,
        )
    segment, term = one
    if committed is None or (committed.term is not None and committed.term < term):
        return segment
    if committed.term is not None and committed.term > term:
        return Segment(
            segment.key_range,
            committed.offset,
            committed.stream_time,
            (),
            committed.operator_times,
        )
    # A position's times cover all records below it, so the larger ones belong to the
    # larger position.
    position = max(segment.position, committed.offset)
    return Segment(
        segment.key_range,
        position,
        max(segment.stream_time, committed.stream_time),
        above(segment.runs, position),
        latest(segment.operator_times, committed.operator_times),
        segment.ahead and segment.ahead.above(position),
    )
