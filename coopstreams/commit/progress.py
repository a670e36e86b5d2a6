"""The progress of one task, the records of a batch that it still has to process, and
the commit of several tasks.

A task opens with segments (`view.PartitionStart`): after a merge of ranges, parts of
its range may be further than others. The reader begins at the lowest position; `unseen`
drops the records that are done already. `plan` turns the tasks of one stream thread
into one commit: records first, then the offsets of the fence.

Invariant: a record is handed to the program exactly once between opening and closing,
however often the reader goes back below it. After any doubt about a commit, `Progress`
is discarded and opened again from the log: the staged commit may or may not have
counted.
Relies on: `view` (which commit counts for which hash), `record` (terms, segments, what
is `ahead`); `tasks/committer.py` and `consumer_commit` write what is planned here.
Turned down: skipping done runs in the reader (the stream time at the end of a run is
unknown; reading on is cheap).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from typing import Protocol

from coopstreams.commit.offset_runs import above
from coopstreams.commit.record import (
    Ahead,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    consumer_metadata,
    encode_key,
    encode_value,
    topic_number,
)
from coopstreams.commit.view import PartitionStart, earliest, join, lowest
from coopstreams.log.log import NO_STREAM_TIME, Position
from coopstreams.topology.columns import Columns, TopicPartition, joined
from coopstreams.topology.compile.operator_time import OperatorTimes, latest
from coopstreams.topology.keys import KeyRange, key_hashes

MOST_RUNS = 20_000
"""The most done runs, of those found at an opening, in one individual commit. The task
may add 10,000. At 4 to 10 bytes each, the commit stays far below the 1,000,000 bytes of
a record.
"""


@dataclass(frozen=True, slots=True)
class Author:
    """The writer of a task's commits; unchanged as long as the task stays open.

    Shape: `generation` is the one in which the task was opened; `transactional_id`
    names the writer (under at-least-once only a label). `alone`: no group coordinator
    fences its plain offset, so it writes an individual commit each time.
    """

    group: str
    generation: int
    transactional_id: str
    alone: bool = False


class Commits(Protocol):
    """The part of the follower that a commit needs, for other members' commits:
    `follower.Follower`.
    """

    @property
    def partition(self) -> TopicPartition:
        """The group's partition of the commit topic."""
        ...

    @property
    def tail(self) -> int:
        """The offset in the group's partition of the commit topic up to which its
        records have been read.
        """
        ...

    def mirror(
        self,
        partition: TopicPartition,
        committed: Committed | None,
        *,
        in_birth_order: bool = False,
    ) -> Committed | None:
        """Return the plain offset to write, None if there is none yet: see
        `view.CommitView.mirror`.
        """
        ...

    def garbage(
        self,
        partition: TopicPartition,
        mine: Sequence[KeyRange],
    ) -> list[bytes]:
        """Return the keys to tombstone: see `view.CommitView.garbage`."""
        ...


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """A task's committed progress on one source partition."""

    segments: tuple[Segment, ...]
    """The progress of each part of the range."""
    plain: Committed | None
    """The plain offset that was found at the opening, or that this task wrote last."""
    individual: tuple[Segment, ...] = ()
    """The segments of this task's last individual commit; empty: it has not written
    one.
    """


@dataclass(slots=True)
class _SourcePosition:
    """A task's progress on one source partition: `reached`, `staged` in the last
    commit, and `durable` in the last commit that counted.
    """

    term: int
    pieces: tuple[KeyRange, ...]
    """The key ranges of its individual commits. They tile the range of the task, and
    never change, so that each key of the commit topic has one writer for ever.
    """
    claim: bool
    """Whether the task writes individual commits from the beginning:
    `PartitionStart.claim`.
    """
    begins: bool
    """Whether nothing was committed for it yet, or not since its topic was made anew.
    Then its first position is not durable.
    """
    reached: tuple[Segment, ...]
    staged: SourceCommit
    durable: SourceCommit
    offset: int = 0
    """The offset below which every record of the task's range was processed."""
    operator_times: OperatorTimes = ()
    """The operator times that the last `tell` has set."""
    stream_time: int = NO_STREAM_TIME
    """The birth that was reached, if records are done in the order of births."""
    follows: Callable[[], tuple[Segment, ...]] | None = None
    """The function that returns the segments instead of `reached`; None: `reached` has
    them.
    """

    @staticmethod
    def at(key_range: KeyRange, opening: PartitionStart) -> _SourcePosition:
        """Return the position with which a task opens, before it processes any record."""
        found = SourceCommit(opening.segments, opening.committed)
        return _SourcePosition(
            term=opening.term,
            pieces=_pieces(key_range, opening.segments),
            claim=opening.claim,
            begins=opening.begins or opening.anew,
            reached=opening.segments,
            staged=found,
            durable=found,
        )

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments up to which the task has processed records."""
        return self.reached if self.follows is None else self.follows()

    def advance(self, offset: int, stream_time: int) -> None:
        """Move the segments below an offset to it, and join them."""
        self.offset = offset
        if all(segment.position >= offset for segment in self.reached):
            return
        self.reached = _joined(
            segment
            if segment.position >= offset
            else Segment(
                segment.key_range,
                offset,
                stream_time,
                above(segment.runs, offset),
                self.operator_times,
            )
            for segment in self.reached
        )

    def born_up_to(self, position: int, ahead: Ahead) -> None:
        """Advance the segments in the order of births, and join them."""
        self.stream_time = max(self.stream_time, ahead.birth)
        self.reached = _joined(
            (
                segment.born_up_to(position, ahead, self.operator_times)
                for segment in self.reached
            ),
            in_birth_order=True,
        )

    def is_at(self, segment: Segment) -> bool:
        """Return whether a segment is where the task is, and not further."""
        if self.stream_time != NO_STREAM_TIME:
            return segment.stream_time == self.stream_time
        return segment.position == self.offset

    def stage(self, *, individual: bool) -> tuple[Segment, ...]:
        """Stage and return the segments reached. `individual`: an individual commit has
        them.
        """
        segments = self.segments
        self.staged = replace(
            self.durable,
            segments=segments,
            individual=segments if individual else self.durable.individual,
        )
        return segments


class Progress:
    """The progress of one task on each of its source partitions. Belongs to its stream
    thread; no I/O.

    Each source has three states: `reached` in memory, `staged` in the commit that was
    begun last, and `durable` in the last commit that is known to have succeeded.
    `stream_time`, `stable` and `mirrors` are thread-safe: `staged` and `durable` of a
    source are frozen, and replaced as a whole.
    """

    def __init__(
        self,
        key_range: KeyRange,
        openings: Mapping[TopicPartition, PartitionStart],
        author: Author,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self.key_range = key_range
        self.author = author
        self.topic_ids = topic_ids or {}
        """The topic ids that the commits name, by topic name; commits name no id for a
        topic without an entry.
        """
        self.tells_times = False
        """Whether each commit is an individual one, because other members use the times
        in it (`promised_times`).
        """
        self.by_birth: frozenset[str] = frozenset()
        """The topics whose records are done in the order of births (`born_up_to`),
        instead of that of offsets (`advance`).
        """
        self.metadata: str | None = None
        """The user's metadata of a consumer's next commits; None: an application."""
        self._sources = {
            partition: _SourcePosition.at(key_range, opening)
            for partition, opening in openings.items()
        }

    @staticmethod
    def beginning(
        key_range: KeyRange,
        positions: Mapping[TopicPartition, Position],
        operator_times: Mapping[TopicPartition, OperatorTimes] | None = None,
    ) -> Progress:
        """Return the progress of a task that begins at these positions and commits to
        no group.
        """
        times = operator_times or {}
        segments = {
            source: (
                Segment(
                    key_range,
                    at.offset,
                    at.stream_time,
                    operator_times=times.get(source, ()),
                ),
            )
            for source, at in positions.items()
        }
        return Progress(
            key_range,
            {
                source: PartitionStart(0, at, None, claim=False)
                for source, at in segments.items()
            },
            Author("", 0, ""),
        )

    @property
    def partitions(self) -> list[TopicPartition]:
        """The task's source partitions."""
        return list(self._sources)

    def position(self, partition: TopicPartition) -> Position:
        """Return the lowest position, where the reader must begin, with the stream time
        there.
        """
        at = self.lowest(partition)
        return Position(at.position, at.stream_time)

    def lowest(self, partition: TopicPartition) -> Segment:
        """Return the segment with the lowest position. In the order of births: the one
        with the earliest time, at the lowest position of all.
        """
        segments = self._sources[partition].segments
        by_birth = partition.topic in self.by_birth
        return earliest(segments) if by_birth else lowest(segments)

    def read_to(self, partition: TopicPartition) -> int:
        """Return the offset below which each record is done, or waits until its birth is
        reached.
        """
        return min(each.read_to for each in self._sources[partition].segments)

    def unseen_from(self, partition: TopicPartition) -> int:
        """Return the offset from which on no record was processed."""
        return max(segment.end for segment in self._sources[partition].segments)

    def unseen(self, partition: TopicPartition, columns: Columns) -> Columns:
        """Return the records of a batch (of this task's range) that are still to be
        processed.

        That is the whole batch, unless the reader went back. Call `advance` before a
        batch that the reader reads again.
        """
        segments = self._sources[partition].segments
        until = self.unseen_from(partition)
        if not columns or columns.offsets[0] >= until:
            return columns
        ends = [segment.key_range.end for segment in segments]
        again = bisect_left(columns.offsets, until)
        # With one segment the hash does not matter.
        hashes = (
            key_hashes(columns.keys[:again], columns.offsets[:again])
            if len(segments) > 1
            else [0] * again
        )
        births = columns.born
        keep = []
        for i, hash_ in enumerate(hashes):
            segment = segments[bisect_left(ends, hash_)]
            if not segment.has_done(columns.offsets[i], births[i]):
                keep.append(i)
        return joined([columns.pick(keep), columns.slice(again, len(columns))])

    def advance(
        self,
        partition: TopicPartition,
        next_offset: int,
        stream_time: int,
    ) -> None:
        """Note that every record of the range below `next_offset` is done, and the
        partition's stream time there.
        """
        source = self._sources[partition]
        if next_offset > source.offset:
            source.advance(next_offset, stream_time)

    def born_up_to(
        self,
        partition: TopicPartition,
        position: int,
        ahead: Ahead,
    ) -> None:
        """Note that the records in front of a birth are done, and that none below
        `position` waits.
        """
        self._sources[partition].born_up_to(position, ahead)

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Move the parts of the range below this offset to it, with their times. Call
        it before the task opens.
        """
        source = self._sources[partition]
        source.reached = _joined(
            (segment.moved_to(offset) for segment in source.reached),
            in_birth_order=partition.topic in self.by_birth,
        )

    def drop_runs(self, partition: TopicPartition) -> None:
        """Drop the done runs, which hold no record of the range. Call it before the
        task opens.
        """
        source = self._sources[partition]
        source.reached = _joined(
            replace(segment, runs=()) for segment in source.reached
        )

    def tell(self, partition: TopicPartition, operator_times: OperatorTimes) -> None:
        """Set the operator times at the offset of the last `advance`. Call it before
        each commit: flushing record caches advances them.
        """
        source = self._sources[partition]
        if operator_times == source.operator_times:
            return
        source.operator_times = operator_times
        source.reached = tuple(
            replace(
                segment,
                operator_times=latest(segment.operator_times, operator_times),
            )
            if source.is_at(segment)
            else segment
            for segment in source.reached
        )

    def note(self, partition: TopicPartition, operator: int, time: int) -> None:
        """Add a time for other members to what the next commit says of each part of the
        range. Call it behind `tell`.
        """
        if time == NO_STREAM_TIME:
            return
        source = self._sources[partition]
        source.reached = tuple(
            replace(
                segment,
                operator_times=latest(segment.operator_times, ((operator, time),)),
            )
            for segment in source.reached
        )

    def segments(self, partition: TopicPartition) -> tuple[Segment, ...]:
        """Return the progress of each part of the range, committed or not."""
        return self._sources[partition].segments

    def term(self, partition: TopicPartition) -> int:
        """Return the term of the task's commits."""
        return self._sources[partition].term

    def plain_offset(self, partition: TopicPartition) -> Committed | None:
        """Return the plain offset that was found at the opening, or that this task
        wrote last. None: the partition has none.
        """
        return self._sources[partition].durable.plain

    def committed_segments(self, partition: TopicPartition) -> tuple[Segment, ...]:
        """Return the committed progress of each part of the range."""
        return self._sources[partition].durable.segments

    def staged_segments(self, partition: TopicPartition) -> tuple[Segment, ...]:
        """Return the progress of each part of the range in the last commit that was
        begun, which may not have been confirmed yet. If none was begun since the
        opening, it is the progress that was found there.
        """
        return self._sources[partition].staged.segments

    def stand(self, partition: TopicPartition, segments: Iterable[Segment]) -> None:
        """Set the segments of a source whose records are done out of order. Replaces
        `advance`.
        """
        self._sources[partition].reached = _joined(segments)

    def follow(
        self,
        partition: TopicPartition,
        segments: Callable[[], tuple[Segment, ...]],
    ) -> None:
        """Take the segments of a source from this function from now on. Replaces
        `unseen` and `advance`.
        """
        self._sources[partition].follows = segments

    @property
    def parted(self) -> bool:
        """Whether the task's progress on some source is more than one offset: parts of
        the range are at different offsets, or have done runs.
        """
        return any(_parted(source.segments) for source in self._sources.values())

    @property
    def moved(self) -> bool:
        """Whether there is progress that is not committed."""
        return any(
            source.segments != source.durable.segments
            for source in self._sources.values()
        )

    def records(
        self,
        partition: TopicPartition,
        *,
        claim: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Stage the segments reached and return their individual commits; none if the
        plain offset holds all of them, or if nothing moved.

        `claim` (at-least-once, before the first record is processed): return the
        inherited segments, unless no claim is needed.
        """
        source = self._sources[partition]
        if self.metadata or self.author.alone or self.tells_times:
            needed = True
        elif claim:
            needed = source.claim
        else:
            # The plain offsets of all sources expire together. If only one source had
            # an individual commit then, the others would begin again, below the state.
            # So a task that writes its first one writes one for each source.
            needed = self._needs(source) or (
                not source.durable.individual
                and any(map(self._needs, self._sources.values()))
            )
        segments = source.stage(individual=needed)
        if not needed:
            return []
        topic_id = self.topic_ids.get(partition.topic, "")
        metadata = (
            topic_id
            if self.metadata is None
            else consumer_metadata(topic_id, self.metadata)
        )
        author = self.author
        term = source.term
        records = []
        for piece in source.pieces:
            key = CommitKey(author.group, *partition, piece, term, author.generation)
            value = CommitValue(
                author.transactional_id,
                _within(piece, segments),
                metadata,
            )
            records.append((encode_key(key), encode_value(value)))
        return records

    def _topic_number(self, partition: TopicPartition) -> int:
        return topic_number(self.topic_ids.get(partition.topic, ""))

    def _needs(self, source: _SourcePosition) -> bool:
        """Return whether the next commit of a source needs an individual commit: the
        plain offset alone cannot say what is done, or would let older individual
        commits count.
        """
        if not self.key_range.is_whole:
            return source.segments != source.durable.segments
        # Also when nothing moved: the plain offset, written at this term, outranks
        # older individual commits with higher positions. If the partition has
        # individual commits, this task's own included, the task writes one with each
        # commit: without the plain offset, the old ones would count again.
        segments = source.segments
        individual = source.durable.individual
        return _parted(segments) or (
            (source.claim or bool(individual)) and segments != individual
        )

    def plain(self, partition: TopicPartition, commits: Commits) -> Committed | None:
        """Stage and return the plain offset to write; None: this task writes none now.

        A task of the whole range writes its own position. The owner of hash 0 mirrors
        the stable offset.
        """
        source = self._sources[partition]
        if self.key_range.start:
            return None
        topic = self._topic_number(partition)
        last = source.durable.plain
        if self.key_range.is_whole:
            at = self.lowest(partition)
            beside = source.term if _parted(source.staged.segments) else 0
            plain: Committed | None = Committed(
                at.position,
                at.stream_time,
                source.term,
                beside,
                at.operator_times,
                topic,
            )
        else:
            # Named even if it is not read back yet.
            beside = source.term if source.staged.individual else 0
            mirror = commits.mirror(
                partition,
                last,
                in_birth_order=partition.topic in self.by_birth,
            )
            plain = mirror and replace(
                mirror,
                beside=max(mirror.beside, beside),
                topic=topic,
            )
        source.staged = replace(source.staged, plain=plain or last)
        return plain

    def begins(self, partition: TopicPartition) -> bool:
        """Return whether nothing was ever committed for a source partition, or not
        since a reset that had its topic made anew.
        """
        return self._sources[partition].begins

    def begin(self) -> dict[TopicPartition, tuple[int, str]]:
        """Stage and return the plain offsets for the partitions that begin (`begins`);
        usually none.

        They become durable before the first record is processed. So state always comes
        with a position, and state without a position means that the position was lost
        (`opening.position_check`).
        """
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for partition, source in self._sources.items():
            if source.begins:
                at = self.position(partition)
                plain = Committed(
                    at.offset,
                    at.stream_time,
                    0,
                    topic=self._topic_number(partition),
                )
                source.durable = source.staged = replace(source.durable, plain=plain)
                offsets[partition] = at.offset, plain.metadata
        return offsets

    def begun(self) -> None:
        """Note that the offsets of `begin` are committed."""
        for source in self._sources.values():
            source.begins = False

    def durable(self, partition: TopicPartition) -> int:
        """Return the lowest committed position of the task, from which its lag is
        measured.
        """
        return min(segment.position for segment in self.committed_segments(partition))

    def committed_positions(self, partition: TopicPartition) -> dict[KeyRange, int]:
        """Return, for each part of the range, the offset below which all its records
        are done.

        Only for a source whose records are done in order: see `Restores.settle_runs`.
        """
        segments = self._sources[partition].segments
        assert not any(segment.is_parted for segment in segments)
        return {segment.key_range: segment.position for segment in segments}

    def stream_time(self, partition: TopicPartition) -> int:
        """Return the stream time of the latest commit, staged or durable. The database
        is not newer.
        """
        return max(segment.stream_time for segment in self.staged_segments(partition))

    def stable(self, partition: TopicPartition) -> Committed | None:
        """Return the stable offset, with its times, as this task last committed it;
        None unless the task owns hash 0.
        """
        return None if self.key_range.start else self.plain_offset(partition)

    @property
    def mirrors(self) -> bool:
        """Whether this task writes the stable offset for its siblings: it owns hash 0,
        but not all hashes.
        """
        return not self.key_range.start and not self.key_range.is_whole

    def mirror_due(self, commits: Commits) -> bool:
        """Return whether siblings have moved the stable offset since this task last
        wrote it. Then the task commits even without progress of its own.
        """
        return self.mirrors and any(
            commits.mirror(
                partition,
                source.durable.plain,
                in_birth_order=partition.topic in self.by_birth,
            )
            not in (None, source.durable.plain)
            for partition, source in self._sources.items()
        )

    def committed(self) -> None:
        """Mark the staged commit as durable. Call it only when the commit is known to
        have counted.
        """
        for source in self._sources.values():
            source.durable = source.staged


def _joined(
    segments: Iterable[Segment],
    *,
    in_birth_order: bool = False,
) -> tuple[Segment, ...]:
    return tuple(join(list(segments), in_birth_order=in_birth_order))


def _parted(segments: Sequence[Segment]) -> bool:
    """Return whether these segments cannot be written as one offset."""
    return len(segments) > 1 or any(segment.is_parted for segment in segments)


def _pieces(key_range: KeyRange, segments: Sequence[Segment]) -> tuple[KeyRange, ...]:
    """Return the fewest key ranges whose individual commits have at most `MOST_RUNS`
    done runs each.

    After a merge of many ranges that waited for asynchronous calls, all their done runs
    together may not fit into one record of Kafka. Hashes are resolved one by one, so
    pieces are like tasks of their own, at one term. A segment is not cut: one task has
    found or done what is in it.
    """
    starts = [key_range.start]
    runs = 0
    for segment in segments:
        if runs and runs + len(segment.runs) > MOST_RUNS:
            starts.append(segment.key_range.start)
            runs = 0
        runs += len(segment.runs)
    ends = [start - 1 for start in starts[1:]] + [key_range.end]
    return tuple(map(KeyRange, starts, ends))


def _within(piece: KeyRange, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments of a task's range, cut to `piece`, a key range within it.
    Segments outside of the piece are left out.
    """
    parts = ((segment, segment.key_range.intersect(piece)) for segment in segments)
    return tuple(
        replace(segment, key_range=part) for segment, part in parts if part is not None
    )


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One commit of one stream thread.

    Shape: `records` (key, value or None = tombstone) go to the group's partition of the
    commit topic. `offsets` (offset, metadata) go out with the fence. It is never empty:
    an empty list is not fenced.

    Exactly-once: outputs, changelogs, `records`; flush; `offsets` with the fence;
    commit. At-least-once: outputs, changelogs; flush; `records`; flush; `offsets` in a
    fenced OffsetCommit. A record that arrived without its outputs would lose them.
    At-least-once opens a task with `ask` in a fenced OffsetCommit, then `plan(...,
    claim=True)` written in the same way.
    """

    records: list[tuple[bytes, bytes | None]]
    offsets: dict[TopicPartition, tuple[int, str]]


def plan(
    tasks: Iterable[Progress],
    commits: Commits,
    *,
    claim: bool = False,
) -> CommitPlan:
    """Stage a commit of these tasks (of one thread) and return it. When it has counted,
    call `committed` on each task.

    `claim`: the commit is the claim with which at-least-once tasks open, before they
    process anything; exactly-once has none.
    """
    records: list[tuple[bytes, bytes | None]] = []
    offsets: dict[TopicPartition, tuple[int, str]] = {}
    mine: dict[TopicPartition, list[KeyRange]] = {}
    for task in tasks:
        for partition in task.partitions:
            mine.setdefault(partition, []).append(task.key_range)
            records += task.records(partition, claim=claim)
            plain = task.plain(partition, commits)
            if plain:
                offsets[partition] = plain.offset, plain.metadata
    # Tombstones only beside a record: the record names the transaction's writer, so
    # that a successor can end the transaction if it is left open.
    if records:
        for partition, ranges in mine.items():
            records += [(key, None) for key in commits.garbage(partition, ranges)]
    return CommitPlan(records, offsets or ask(commits))


def ask(commits: Commits) -> dict[TopicPartition, tuple[int, str]]:
    """Return the offsets that an at-least-once opener commits with the fence, between
    reading and claiming.

    The four steps of an opening: docs/internals/positions.md, "At-least-once".
    """
    return {commits.partition: (commits.tail, "")}
