"""The individual commits of one group, and the rule that resolves them and the plain
offset to positions.

Two kinds of records hold the progress on a source partition:

* **individual commits** `[range]@term -> segments` in `__individual_commit_offsets`
  (`record`), one per task that shares the partition;
* the **plain committed offset** in `__consumer_offsets`, written by the owner of hash
  0. A task that owns the whole hash space, has done nothing out of order, and has found
  no individual commit on the partition writes nothing else: an ordinary Kafka
  application. Its metadata has the term (`ic <stream time> <term>`). While the
  partition is shared, the owner of hash 0 keeps that term and mirrors the *stable*
  offset there, for lag monitors.

The rule. For each hash the record of the highest term counts; the plain offset is a
record for all hashes at the term in its metadata.

    resolve(h)  plain.term > individual(h).term -> the plain offset          equal -> the larger of both
                smaller -> individual(h)
                neither -> auto.offset.reset
    term        1 + the highest term, plain or individual, on the whole source partition when the task is opened
    garbage(K)  every hash of K has a live individual commit of a higher rank (term, generation): anyone may tombstone
                K, at any time
    stable      the smallest resolve(h) over the whole hash space
    foreign     a plain offset without our metadata (another client, an operator's reset) counts for each hash if it is
                the larger of both
    other       a consumer's commit that names another topic than that of `topic_ids` counts for no hash, because the
                topic was deleted and made anew since; its term does, so whoever opens the new topic outranks it

**Exactly-once: resolve(h) is the last commit of h's last owner.** Let o1, o2, ... own h
in order. The group has one owner of h at a time, others are zombies; the fence, asked
for after all records of the transaction are in the log, refuses zombies; o(k+1) opens
when it has read the commit partition up to the high watermark it took after learning
its generation, and after that fetched the plain offset with `require_stable`; so it
sees everything that earlier owners can ever commit. Its term is above all it saw, so
its commits count from then on; what it did not commit changes nothing. In detail, for
the mixed use:

* *whole -> split.* The whole-range task at term t committed plain = p@t. Children
  resolve to p (older individual commits have lower terms) and open at terms > t. One
  that has not committed yet rests upon p@t: the mirror keeps term t, and cannot move
  while a hash rests upon it, because stable is at most p then.
* *split -> whole.* The new task at term t inherits segments, and finds individual
  commits. So it writes its own at t beside the plain offset (the smallest position, at
  t): equal terms, the larger of both is right for each hash. What it outranks is
  collected; the highest individual commit of a hash is never tombstoned.
* *merges of ranges and re-cuts*: resolve works on hashes, not on tasks.

**Loss of commits.** Both places are outside of this program: offsets expire when a
group is empty for long (`offsets.retention.minutes`) or are deleted with their group;
topics are deleted or recreated.
* *The plain offset goes away*: individual commits alone hold the same progress, where
  they tile the hash space. A task that opens a partition with individual commits writes
  one with each commit, at its own term, also if it owns all of it; and a task that
  writes its first one writes one for each of its sources. A hash without one has never
  been committed since the partition was first shared: it rested upon the plain offset.
  An application opens nothing then (`opening.position_check`), because a position was made
  durable before the first record was processed (`Progress.begin`): nothing in either
  place means that nothing was done. Under at-least-once, claims of stalled openers may
  tile the hash space beside a whole-range owner that found and wrote no individual
  commit: then the claims count, and what was done since is done again.
* *Individual commits go away*: the plain offset names the highest term beside it
  (`Committed.beside`). That record is never garbage, so a view behind the barrier
  without it lacks commits (`lacks`), and no task opens. A whole-range task with one
  segment names none: its offset is its whole progress. Terms go on above the named one,
  so an earlier zombie stays outranked. One loss is not detected: that of the very first
  individual commits of a partition, before the next commit of the owner of hash 0.

* *The plain offset goes back*: a copy of a request that a client sent again may be
  delayed until the next commit, and then counts as that one. Beside an individual
  commit at its term the larger one counts, so this concerns ordinary applications only,
  as it does any Kafka client. Under at-least-once the coordinator takes such an
  OffsetCommit as long as the generation lasts. The records since are processed again. A
  repartition topic may not have them any more: they were deleted because they had been
  processed, so the next task goes on behind them (`positions`). Under exactly-once the
  copy would have to be overtaken by the answer to its repetition, the end of its
  transaction, and the offsets of the producer's next one (transactions of protocol
  version 1; version 2 gives each its own epoch).

**At-least-once: complete commits <= resolve(h) <= what the state of h's owner holds.**
Individual commits are not fenced, so those of a zombie may appear at any time. Hence a
task opens in four steps: read (barrier, plain offset, `open`); *ask*, a fenced
OffsetCommit; *claim*, its inherited segments under its own term, flushed; a fenced
OffsetCommit again; only then does it process. So a zombie's commits have lower ranks
than its successor's claim, and its position cannot get ahead of the state that the
successor restored, which would lose records.
* *Ask.* Without it an opener that stalls before it reads would see its successor's
  commits, choose a higher term than theirs, and claim over them. After it, all that it
  read was written before any successor opened.
* *Term over the whole partition*, not over the range only: a stalled opener of a wider
  range could have a higher term from elsewhere. The highest term of a partition never
  falls (that record is never garbage), so a successor's term is never lower.
* *Generation.* It can be equal, when the first opener stalls between ask and claim:
  then the later generation outranks the earlier one, and as the generation is in the
  key, a late claim does not overwrite the successor's commits either.
* *No claim*, and no individual commit, for a task that owns the whole partition and
  finds no individual commit on it: the plain offset is fenced, so a zombie of its own
  kind writes nothing. A stalled opener of a part may still claim, at a term that is not
  higher, the plain offset that this task began with: equal terms, the larger one
  counts. An ordinary application never writes an individual commit.
* *The plain offset has a term* because "always the larger" leaks a zombie's position
  through the mirror: B stalls, B' has read up to its high watermark, B writes
  [50..99]@1 -> 180, A mirrors stable = 180, B' claims [50..99]@2 -> 130: the successor
  of B' would skip 130..179, which are only in the zombie's state.

Without any one of these rules a test in `tests/commit` fails; for most of them
`test_commit_simulation.py` also finds a wrong history among its first 250.

A torn at-least-once commit (some records arrived) is harmless: each is written after
the outputs and changelogs it stands for were flushed. Tombstones are derived from
commits *read back*, never from those about to be written, so losing them is harmless as
well.

Invariant: `live` holds the last value of each key and no tombstoned key; which record
counts for which hash changes only with the keys. Turned down: "last in the log wins"
(one unfenced zombie is enough to go back); collecting what lies below the stable offset
(terms would start again at 1, and an old zombie would win).
Source: docs/internals/architecture.md, "Progress" and "A commit".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from coopstreams.commit.packed import Packed
from coopstreams.commit.ranges import above
from coopstreams.commit.record import (
    MADE_ANEW,
    PARTITION,
    TAIL_BYTES,
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
    """Hashes without an individual commit."""

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
    """Where a task begins on one source partition.

    Shape: `segments` tile the range. `committed` is the plain offset found. `claim`:
    under at-least-once these segments must be in the log, under this term, before the
    first record is processed. Under both guarantees: the task writes individual
    commits.
    """

    term: int
    segments: tuple[Segment, ...]
    committed: Committed | None
    claim: bool
    begins: bool = False
    """Some of these hashes have no commit at all, as far as can be seen: they begin at
    `auto.offset.reset`.
    """
    anew: bool = False
    """See `CommitView.anew`."""
    named: frozenset[str] = frozenset()
    """The ids of the topics that the individual commits name which count."""


@dataclass(frozen=True, slots=True)
class LiveCommit:
    """One individual commit. Its writer is not kept: only `ahead` needs it, and reads
    it from the log.

    Shape: `metadata` is the user's; of an application, the topic's id.
    """

    key: CommitKey
    segments: tuple[Segment, ...]
    metadata: str = ""


class _Tiling(NamedTuple):
    """The individual commit that counts for each hash of a partition."""

    tiles: list[tuple[KeyRange, CommitKey | None]]
    """The hash space, ascending, with the key that counts."""
    silent: list[CommitKey]
    """The keys that count for no hash."""


TILINGS = 1024
"""Most tilings to keep: those of the partitions that this process commits are needed
again and again.
"""


class CommitView:
    """The individual commits of one group, as far as they were read. Not thread-safe:
    `follower.Follower` guards one.

    They are kept packed as they were written, and decoded on demand: 50 bytes per key
    range instead of 990 (measured).
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self._name = encode_text(group)
        self.taken = 0
        """How many records of the group were applied, unreadable ones included."""
        self._live: dict[str, Packed] = {}
        """By topic: the tail of the key -> the payload of the value."""
        self._topic_ids: dict[str, str] = {}
        """The ids of source topics, as far as they were told."""
        self._tilings: dict[TopicPartition, _Tiling] = {}
        self._mirrors: dict[
            TopicPartition, tuple[Committed | None, Committed | None]
        ] = {}
        """The last question and answer of `mirror`, by partition, since its last
        record: tasks ask at each interval.
        """

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the group's partition, in log order; records of other
        groups change nothing.

        Raises:
            LogError: a record of this group that this version cannot read.
        """
        if not key.startswith(self._name, 1):
            return
        self.taken += 1
        parsed = decode_key(key)
        self._mirrors.pop(TopicPartition(parsed.topic, parsed.partition), None)
        live = self._live.setdefault(parsed.topic, Packed(TAIL_BYTES))
        tail = tail_of(parsed)
        changed = (
            live.remove(tail)
            if value is None
            else live.put(tail, payload_of(value, parsed.key_range))
        )
        if changed:
            self._tilings.pop(TopicPartition(parsed.topic, parsed.partition), None)

    def tell(self, topic: str, topic_id: str) -> None:
        """Learn the id of a source topic: consumers' commits that name another one
        count no more.
        """
        if self._topic_ids.get(topic) != topic_id:
            self._topic_ids[topic] = topic_id
            self._mirrors.clear()

    def of_this_topic(
        self, partition: TopicPartition, committed: Committed | None
    ) -> Committed | None:
        """Return a plain offset; None if it names another topic."""
        number = topic_number(self._topic_ids.get(partition.topic, ""))
        return (
            None
            if committed and number and committed.topic not in (0, number)
            else committed
        )

    def outlived(self, partition: TopicPartition, key_range: KeyRange) -> bool:
        """Whether the last commit of some of these hashes is a consumer's in another
        topic.
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
        """Return every individual commit that is neither tombstoned nor replaced,
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
        self, partition: TopicPartition, key_range: KeyRange
    ) -> list[Winner | Hole]:
        """Return the individual commits that count for a range. Shape: winners and
        holes that tile it, ascending.
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

    def next_term(self, partition: TopicPartition, committed: Committed | None) -> int:
        """Return the term for a task that opens now."""
        plain = max(committed.term or 0, committed.beside) if committed else 0
        return 1 + max(plain, self.highest(partition))

    def highest(self, partition: TopicPartition) -> int:
        """Return the highest term of an individual commit on a partition; 0 without
        any. It never falls.
        """
        return max((key.term for key, _ in self._entries(partition)), default=0)

    def anew(self, partition: TopicPartition, committed: Committed | None) -> bool:
        """Whether nothing was committed since a reset after which the topic was made
        anew.

        The position of such a reset is where the new topic begins. It is not one that a
        task has had there, and there is no plain offset that came before it.
        """
        last = max(
            (key for key, _ in self._entries(partition)), key=_rank, default=None
        )
        if last is None or last.generation != MADE_ANEW:
            return False
        return committed is None or committed.term == last.term

    def lacks(self, partition: TopicPartition, committed: Committed | None) -> bool:
        """Whether individual commits that this plain offset names are gone, because
        their topic or records were deleted.
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
    ) -> PartitionStart:
        """Return where a task with this range begins. Only behind the barrier, with a
        plain offset fetched after it.
        """
        resolved = self.resolve(partition, key_range)
        segments = combine(resolved, committed, reset)
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

        None while a hash has never committed.

        Shape: `own` are the segments of the caller that are committed, whether read
        back or not.
        """
        found = self._stable(partition, committed, own)
        return None if found is None else Position(found.position, found.stream_time)

    def _stable(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        own: Sequence[Segment] = (),
    ) -> Segment | None:
        others = WHOLE.minus(segment.key_range for segment in own)
        resolved = [
            one for key_range in others for one in self.resolve(partition, key_range)
        ]
        if committed is None and any(isinstance(one, Hole) for one in resolved):
            return None
        return lowest([*combine(resolved, committed, Position(0)), *own])

    def mirror(
        self, partition: TopicPartition, committed: Committed | None
    ) -> Committed | None:
        """Return the plain offset that the owner of hash 0 writes now; None: none yet.

        `committed` is the one it last wrote, or found. A foreign offset is replaced
        only when every hash has passed it: our own offset would no longer count as the
        larger of both.
        """
        last = self._mirrors.get(partition)
        if last is None or last[0] != committed:
            last = self._mirrors[partition] = (
                committed,
                self._mirror(partition, committed),
            )
        return last[1]

    def _mirror(
        self, partition: TopicPartition, committed: Committed | None
    ) -> Committed | None:
        stable = self._stable(partition, committed)
        if stable is None:
            return None
        if committed and committed.term is None:
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
        self, partition: TopicPartition, mine: Sequence[KeyRange]
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
        """Yield the live keys of a partition with their payloads."""
        topic, number = partition
        if topic in self._live:
            for tail, said in self._live[topic].items(PARTITION.pack(number)):
                yield key_of(self.group, topic, tail), said

    def _tiling(self, partition: TopicPartition) -> _Tiling:
        """Return the tiling of a partition. Kept until a key comes or goes: a running
        task's commits change no tile.
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
    resolved: Sequence[Winner | Hole], committed: Committed | None, reset: Position
) -> list[Segment]:
    """Return a segment for each winner or hole, the plain offset taken into account;
    equal neighbours are joined.
    """
    return join([_combined(one, committed, reset) for one in resolved])


def lowest(segments: Iterable[Segment]) -> Segment:
    """Return the segment of the lowest position; of equal ones, that of the largest
    stream time.
    """
    return min(segments, key=lambda segment: (segment.position, -segment.stream_time))


def join(segments: Sequence[Segment]) -> list[Segment]:
    """Return the same progress with neighbours of equal progress joined."""
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if last and (last.position, last.runs) == (segment.position, segment.runs):
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


def _combined(
    one: Winner | Hole, committed: Committed | None, reset: Position
) -> Segment:
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
    )
