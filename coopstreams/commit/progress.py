"""How far one task is, what of a batch it still has to do, and what a commit of several tasks consists of.

A consumer that finishes records out of order keeps count of them itself (`consumer.inflight`) and says where it stands
with `stand`.

A task opens with segments (`view.PartitionStart`): parts of its range may be further than others, after a merge of
ranges. The reader begins at the lowest; `unseen` drops what is done already; once the reader is past the highest, there
is one segment and `unseen` costs one comparison.

`plan` turns the tasks of one stream thread into one commit: records first, offsets to fence with last.

Invariant: a record is handed to the program exactly once between opening and closing, however often the reader begins
again below it. After any doubt about a commit, `Progress` is thrown away and opened again from the log: what was staged
may or may not have counted.
Turned down: keeping done runs as a reason to jump ahead of them (the stream time at the end of a run is unknown;
reading on is cheap).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coopstreams.commit.ranges import above, contains
from coopstreams.commit.record import CommitKey, Committed, CommitValue, Segment, encode_key, encode_value
from coopstreams.commit.view import PartitionStart, join
from coopstreams.log.log import NO_STREAM_TIME, Position
from coopstreams.topology.columns import Columns, TopicPartition, joined
from coopstreams.topology.keys import KeyRange, key_hashes


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes a task's commits: stays the same as long as the task stays open.

    Shape: `generation` is that in which the task was opened; `transactional_id` names the writer (at-least-once: any
    name for people). `alone`: no group coordinator fences its plain offset, so an individual commit says everything.
    """

    group: str
    generation: int
    transactional_id: str
    alone: bool = False


class Commits(Protocol):
    """What a commit needs to know of everybody else's: `follower.Follower`."""

    @property
    def partition(self) -> TopicPartition:
        """The group's partition of the commit topic."""
        ...

    @property
    def tail(self) -> int:
        """Everything of that partition below this offset is known."""
        ...

    def mirror(self, partition: TopicPartition, committed: Committed | None) -> Committed | None:
        """See `view.View.mirror`."""
        ...

    def garbage(self, partition: TopicPartition, mine: Sequence[KeyRange]) -> list[bytes]:
        """See `view.View.garbage`."""
        ...


@dataclass(slots=True)
class _Source:
    """One source partition of a task. `reached`: every record of the task's range below it was handed out."""

    term: int
    segments: tuple[Segment, ...]
    durable: tuple[Segment, ...]
    staged: tuple[Segment, ...]
    mirrored: Committed | None
    staged_mirror: Committed | None
    claim: bool
    begins: bool
    """Its position is nowhere yet."""
    until: int
    """From this offset on nothing has to be skipped."""
    reached: int = 0
    stream_time: int = NO_STREAM_TIME
    said: tuple[Segment, ...] = ()
    """What this task's own individual commit says; nothing: it has written none."""
    staged_said: tuple[Segment, ...] = ()

    def now(self) -> tuple[Segment, ...]:
        """The segments with what was reached since, joined; each is kept up to date so that the next call is short."""
        if any(segment.position < self.reached for segment in self.segments):
            self.segments = tuple(join([self._moved(segment) for segment in self.segments]))
        return self.segments

    def _moved(self, segment: Segment) -> Segment:
        if segment.position >= self.reached:
            return segment
        return Segment(segment.range, self.reached, self.stream_time, above(segment.runs, self.reached))


class Progress:
    """How far one task is on each of its source partitions. Belongs to its stream thread; no I/O."""

    def __init__(
        self,
        covered: KeyRange,
        openings: Mapping[TopicPartition, PartitionStart],
        author: Author,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self.range = covered
        self.author = author
        self.topic_ids = topic_ids or {}
        """Of which topics the positions are, by name; a topic that is not here goes without."""
        self.metadata = ""
        """What goes beside the positions into the next commits."""
        self._sources = {
            partition: _Source(
                opening.term,
                opening.segments,
                opening.segments,
                opening.segments,
                opening.committed,
                opening.committed,
                opening.claim,
                opening.begins,
                max(segment.runs[-1][1] + 1 if segment.runs else segment.position for segment in opening.segments),
            )
            for partition, opening in openings.items()
        }

    @staticmethod
    def beginning(covered: KeyRange, positions: Mapping[TopicPartition, Position]) -> Progress:
        """Return the progress of a task that begins at these positions, and whose commits no group hears of."""
        segments = {source: (Segment(covered, at.offset, at.stream_time),) for source, at in positions.items()}
        return Progress(
            covered,
            {source: PartitionStart(0, at, None, claim=False) for source, at in segments.items()},
            Author("", 0, ""),
        )

    @property
    def partitions(self) -> list[TopicPartition]:
        """The task's source partitions."""
        return list(self._sources)

    def position(self, partition: TopicPartition) -> Position:
        """Return where the reader must begin: the lowest position, with the stream time there."""
        lowest = min(self._sources[partition].now(), key=lambda segment: (segment.position, -segment.stream_time))
        return Position(lowest.position, lowest.stream_time)

    def unseen(self, partition: TopicPartition, columns: Columns) -> Columns:
        """Return the records of a batch (of this task's range) that have to be processed: the batch itself, unless the
        reader went back.

        Call `advance` with the batch's `next_offset` after each one, before the next.
        """
        source = self._sources[partition]
        if not columns or columns.offsets[0] >= source.until:
            return columns
        segments, ends = source.now(), [segment.range.end for segment in source.segments]
        again = bisect_left(columns.offsets, source.until)
        # With one segment the hash does not matter.
        hashes = key_hashes(columns.keys[:again], columns.offsets[:again]) if len(segments) > 1 else [0] * again
        keep = []
        for i, hash_ in enumerate(hashes):
            segment, offset = segments[bisect_left(ends, hash_)], columns.offsets[i]
            if offset >= segment.position and not contains(segment.runs, offset):
                keep.append(i)
        return joined([columns.pick(keep), columns.slice(again, len(columns))])

    def advance(self, partition: TopicPartition, next_offset: int, stream_time: int) -> None:
        """Note that every record of the range below `next_offset` is done, and the partition's stream time there."""
        source = self._sources[partition]
        if next_offset > source.reached:
            source.reached, source.stream_time = next_offset, stream_time
            if next_offset > source.until:
                source.until = next_offset

    def segments(self, partition: TopicPartition) -> tuple[Segment, ...]:
        """Return how far each part of the range is."""
        return self._sources[partition].now()

    def term(self, partition: TopicPartition) -> int:
        """Return the term under which the task speaks."""
        return self._sources[partition].term

    def plain_offset(self, partition: TopicPartition) -> Committed | None:
        """Return the plain offset as it was found, or as this task last wrote it."""
        return self._sources[partition].mirrored

    def committed_segments(self, partition: TopicPartition) -> tuple[Segment, ...]:
        """Return how far each part of the range is committed."""
        return self._sources[partition].durable

    def stand(self, partition: TopicPartition, segments: Iterable[Segment]) -> None:
        """Note how far each part of the range is, where records are done out of order; in the place of `advance`."""
        self._sources[partition].segments = tuple(join(list(segments)))

    @property
    def parted(self) -> bool:
        """Whether parts of the range are at different offsets: of the records that come now, earlier owners have done
        some.
        """
        return any(_parted(source.now()) for source in self._sources.values())

    @property
    def moved(self) -> bool:
        """Whether there is anything to commit."""
        return any(source.now() != source.durable for source in self._sources.values())

    def record(self, partition: TopicPartition, *, claim: bool = False) -> tuple[bytes, bytes] | None:
        """Stage what was reached; return the individual commit that says it, None where nothing moved or the plain
        offset says it all.

        `claim` (at-least-once, before the first record is processed): return the inherited segments, unless no claim is
        needed.
        """
        source = self._sources[partition]
        segments = source.staged = source.now()
        if self.metadata or self.author.alone:
            needed = True
        elif claim:
            needed = source.claim
        elif self.range.is_whole:
            # Also when nothing moved: the plain offset goes out at this term, and would silence what older terms say
            # above it. And where there are individual commits of others, this task writes its own, too: plain offsets
            # may go away, and older terms would speak again.
            needed = _parted(segments) or (source.claim and segments != source.said)
        else:
            needed = segments != source.durable
        source.staged_said = segments if needed else source.said
        if not needed:
            return None
        key = CommitKey(self.author.group, *partition, self.range, source.term, self.author.generation)
        beside = self.metadata or self.topic_ids.get(partition.topic, "")
        return encode_key(key), encode_value(CommitValue(self.author.transactional_id, segments, beside))

    def plain(self, partition: TopicPartition, commits: Commits) -> Committed | None:
        """Stage and return the plain offset to write: a whole-range task's own position, hash 0's owner's mirror of the
        stable offset.
        """
        source = self._sources[partition]
        if self.range.start:
            return None
        if self.range.is_whole:
            position = self.position(partition)
            beside = source.term if _parted(source.staged) else 0
            source.staged_mirror = Committed(position.offset, position.stream_time, source.term, beside)
        else:
            mirror = commits.mirror(partition, source.mirrored)
            beside = source.term if source.staged_said else 0  # also if it is not yet read back
            source.staged_mirror = mirror and replace(mirror, beside=max(mirror.beside, beside))
        return source.staged_mirror

    def begin(self) -> dict[TopicPartition, tuple[int, str]]:
        """Stage and return the plain offsets with which a task begins partitions of which nothing was ever committed;
        most often none.

        They go out before its first record is processed: without a position there can be no state, and state without
        one has lost it.
        """
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for partition, source in self._sources.items():
            if source.begins:
                at = self.position(partition)
                source.mirrored = Committed(at.offset, at.stream_time, 0)
                offsets[partition] = at.offset, source.mirrored.metadata
        return offsets

    def begun(self) -> None:
        """Note that `begin` counted."""
        for source in self._sources.values():
            source.begins = False

    def durable(self, partition: TopicPartition) -> int:
        """Return the lowest committed position of the task: what its lag is measured from. Any thread."""
        return min(segment.position for segment in self._sources[partition].durable)

    def committed_positions(self, partition: TopicPartition) -> dict[KeyRange, int]:
        """Return the parts of the range, each with the offset below which all its records are done.

        Raises:
            ValueError: above that offset records were done out of order: it does not say which.
        """
        segments = self._sources[partition].now()
        if any(segment.runs for segment in segments):
            raise ValueError(
                f"{partition}: records were done out of order, so no offset says what is in a table that is restored "
                "from this topic"
            )
        return {segment.range: segment.position for segment in segments}

    def stream_time(self, partition: TopicPartition) -> int:
        """Return the stream time of the latest commit, or of one that is on its way: what is in the database is not
        newer. Any thread.
        """
        return max(segment.stream_time for segment in self._sources[partition].staged)

    def stable(self, partition: TopicPartition) -> int | None:
        """Return the offset below which the whole partition is done, as this task last committed it; None unless it
        owns hash 0. Any thread.
        """
        mirrored = self._sources[partition].mirrored
        return mirrored.offset if mirrored is not None and not self.range.start else None

    @property
    def mirrors(self) -> bool:
        """Whether this task writes the stable offset for its siblings: it owns hash 0, and not all. Any thread."""
        return not self.range.start and not self.range.is_whole

    def mirror_due(self, commits: Commits) -> bool:
        """Whether siblings moved the stable offset since this task last wrote it: then commit even if nothing of its
        own moved.
        """
        return self.mirrors and any(
            commits.mirror(partition, source.mirrored) not in (None, source.mirrored)
            for partition, source in self._sources.items()
        )

    def committed(self) -> None:
        """Note that what was staged last is durable. Only when the commit is known to have counted."""
        for source in self._sources.values():
            source.durable = source.staged
            source.said = source.staged_said
            source.mirrored = source.staged_mirror or source.mirrored


def _parted(segments: Sequence[Segment]) -> bool:
    """Whether no single offset says all of it."""
    return len(segments) > 1 or any(segment.runs for segment in segments)


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One commit of one stream thread.

    Shape: `records` (key, value or None = tombstone) go to the group's partition of the commit topic. `offsets`
    (offset, metadata) go out with the fence. It is never empty: an empty list is not fenced.

    Exactly-once: outputs, changelogs, `records`; flush; `offsets` with the fence; commit. At-least-once: outputs,
    changelogs; flush; `records`; flush; `offsets` in a fenced OffsetCommit. A record that arrives without the outputs
    it stands for would lose them. A task opens there with `ask` in a fenced OffsetCommit, then `plan(..., claim=True)`
    written the same way.
    """

    records: list[tuple[bytes, bytes | None]]
    offsets: dict[TopicPartition, tuple[int, str]]


def plan(tasks: Iterable[Progress], commits: Commits, *, claim: bool = False) -> CommitPlan:
    """Stage a commit of these tasks (of one thread) and return what to write. When it counted, call `committed` on each
    of them.

    `claim`: the commit with which at-least-once tasks open, before they process anything; exactly-once has none.
    """
    records: list[tuple[bytes, bytes | None]] = []
    offsets: dict[TopicPartition, tuple[int, str]] = {}
    mine: dict[TopicPartition, list[KeyRange]] = {}
    for task in tasks:
        for partition in task.partitions:
            mine.setdefault(partition, []).append(task.range)
            record = task.record(partition, claim=claim)
            if record:
                records.append(record)
            plain = task.plain(partition, commits)
            if plain:
                offsets[partition] = plain.offset, plain.metadata
    # Tombstones only beside a record: it names the transaction's writer, for those who must end it when it is left
    # open.
    if records:
        for partition, ranges in mine.items():
            records += [(key, None) for key in commits.garbage(partition, ranges)]
    return CommitPlan(records, offsets or ask(commits))


def ask(commits: Commits) -> dict[TopicPartition, tuple[int, str]]:
    """Return what an at-least-once opener sends with the fence after reading its opening and before writing its claim
    (see `view`).
    """
    return {commits.partition: (commits.tail, "")}
