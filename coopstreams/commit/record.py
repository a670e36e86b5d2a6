"""The records of `__individual_commit_offsets`, and the metadata of a plain offset.

One record per task, source partition and commit. The key names the range, term and
generation, the value the positions:

    key     u8 version | str group | str topic | i32 partition | u64 start | u64 end | i32 term | i32 generation
    value   u8 version | str transactional.id | uvar n | n x segment [| str metadata [| n x times [| n x ahead]]] null = tombstone
    segment [u64 end, not for the last] | uvar position | svar stream time | uvar m | m x (uvar gap, uvar length)
    times   uvar k | k x (u64 operator, svar time)                                          from version 2 of a value on
    ahead   uvar read to, from the position on [| svar birth | uvar offset, not if 0]       in version 3 of a value only

    str = uvar length + UTF-8; uvar = 7 bits a byte, lowest first; svar = zigzag uvar;
    numbers of fixed width are big-endian. Segments tile the key's range. Each of the m
    runs begins `gap` after the end of the one before (the first: after the position).

A plain offset carries the metadata `ic <stream time> <term> [<beside>]
[<operator>:<time> ...]`; an operator 0 stands for the source topic. The first word of a
later version has its number: `ic2`.

Invariant: a key has one writer for ever; its positions only grow.
What each field is for: docs/internals/positions.md, "What is stored".
Relies on: `offset_runs` (done offsets above a position), `tasks.birth_order` (what
`Ahead` counts as done), `group.format_level` (a new version of a value belongs to a new
level: members of earlier releases cannot read it).
"""

from __future__ import annotations

import struct
from base64 import b64decode
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from xxhash import xxh32_intdigest, xxh64_intdigest

from coopstreams.commit.offset_runs import Runs, advance, contains
from coopstreams.log.log import BROKERS_TIME, NO_STREAM_TIME, TopicSpec
from coopstreams.topology.compile.operator_time import OperatorTimes
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from coopstreams.topology.serde import read_varint, varint

PARTITIONS = 50
"""The partition count of a commit topic that coopstreams creates. Never change it:
groups would look in another partition.
"""

VERSION = 1
WITH_TIMES = 2
"""The version of a value with operator times. A reader that ignored them would emit
closed windows again.
"""
WITH_AHEAD = 3
"""The version of a value with records that are done in the order of births. A reader
that ignored them would process those again.
"""
NEWEST_VALUE = WITH_AHEAD
"""The newest version of a value that is read."""
MADE_ANEW = -2
"""The generation in the key of a reset after which the topic is made anew. No member
has this generation.

Nothing is done in the new topic. Kafka deletes the plain offset of the reset with the
deleted topic.
"""
_TOPIC = 0
"""The operator whose time, in the metadata of a plain offset, is the number of the
topic.
"""
MOST_TIMES = 100
"""The most operator times in the metadata of a plain offset: a broker accepts 4 KiB."""
_KEY_TAIL = struct.Struct(">iQQii")
TAIL_BYTES = _KEY_TAIL.size
PARTITION = struct.Struct(">i")
"""The first field of a key's tail: the partition."""
_U64 = struct.Struct(">Q")
_MOST_OFFSET = (1 << 63) - 1
_MOST_VERSIONS = 16
_FAR_MS = 1 << 43
"""The bounds by which metadata of Kafka Streams is recognised: a version up to
`_MOST_VERSIONS`, and a time before the year 2248.
"""
_DAMAGED = (IndexError, ValueError, struct.error)


def topic_spec(partitions: int = PARTITIONS, replication: int = -1) -> TopicSpec:
    """Return the specification of the commit topic.

    It is compacted, in segments of 10 MiB, so that reading the whole topic stays at
    about a second.
    """
    return TopicSpec(
        COMMIT_TOPIC,
        partitions,
        {
            "cleanup.policy": "compact",
            **BROKERS_TIME,
            "segment.bytes": "10485760",
            "segment.ms": "3600000",
            "min.cleanable.dirty.ratio": "0.1",
        },
        replication,
    )


def partition_of(group: str, partitions: int) -> int:
    """Return the partition of the commit topic that holds a group's records. The
    function is frozen: xxh32 of the name, seed 0.
    """
    return xxh32_intdigest(group.encode()) % partitions


@dataclass(frozen=True, slots=True)
class CommitKey:
    """The key of an individual commit: a range of one source partition, and the term
    and generation of the opening.
    """

    group: str
    topic: str
    partition: int
    key_range: KeyRange
    term: int
    generation: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.key_range}]@{self.term}"


class Ahead(NamedTuple):
    """The records that are done in the order of births, above a position: of those
    below `read_to`, the ones in front of (`birth`, `offset`) in the order of (birth,
    offset). See `birth_order`.
    """

    read_to: int
    birth: int
    offset: int

    def has(self, offset: int, birth: int) -> bool:
        """Return whether a record is done."""
        done = (birth, offset) < (self.birth, self.offset)
        return offset < self.read_to and done

    def above(self, position: int) -> Ahead | None:
        """Return what is done above a position; None: nothing is."""
        return self if self.read_to > position else None


@dataclass(frozen=True, slots=True)
class Segment:
    """The progress of a run of hashes.

    Shape: everything below `position` is done, and above it the offsets in `runs`
    (inclusive), or the records `ahead`; None: none is done in the order of births.
    """

    key_range: KeyRange
    position: int
    stream_time: int = NO_STREAM_TIME
    runs: Runs = ()
    operator_times: OperatorTimes = ()
    ahead: Ahead | None = None

    @property
    def is_parted(self) -> bool:
        """Whether records above the position are done."""
        return bool(self.runs) or self.ahead is not None

    @property
    def end(self) -> int:
        """The offset from which on no record is done."""
        if self.ahead is not None:
            return self.ahead.read_to
        return self.runs[-1][1] + 1 if self.runs else self.position

    @property
    def read_to(self) -> int:
        """The offset below which each record is done, or waits until its birth is
        reached.
        """
        return self.position if self.ahead is None else self.ahead.read_to

    def has_done(self, offset: int, birth: int = NO_STREAM_TIME) -> bool:
        """Return whether a record of this range, at this offset, is done. `birth`: its
        birth, if its topic is timed.
        """
        if offset < self.position or contains(self.runs, offset):
            return True
        return self.ahead is not None and self.ahead.has(offset, birth)

    def moved_to(self, offset: int) -> Segment:
        """Return the segment with everything below an offset done."""
        position, runs = advance(max(self.position, offset), self.runs)
        ahead = self.ahead and self.ahead.above(position)
        return replace(self, position=position, runs=runs, ahead=ahead)

    def born_up_to(
        self,
        position: int,
        ahead: Ahead,
        operator_times: OperatorTimes,
    ) -> Segment:
        """Return the segment with the records in front of a birth done, too. Nothing
        below `position` waits any more; `operator_times` are those at the birth.

        A part of the range that an earlier owner has brought further stays there.
        """
        own = self.ahead or Ahead(self.position, self.stream_time, self.position)
        reached = ahead[1:] >= own[1:]
        birth, offset = max(ahead[1:], own[1:])
        position = max(position, self.position)
        joined = Ahead(max(ahead.read_to, own.read_to), birth, offset)
        return replace(
            self,
            position=position,
            stream_time=max(self.stream_time, birth),
            operator_times=operator_times if reached else self.operator_times,
            ahead=joined.above(position),
        )


@dataclass(frozen=True, slots=True)
class CommitValue:
    """The value of an individual commit: segments that tile the key's range, and the
    writer's transactional id.

    A successor needs the id to end a transaction that the writer left open.

    Shape: `metadata` has the id of the source topic; empty metadata is not written.
    """

    transactional_id: str
    segments: tuple[Segment, ...]
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """The plain offset of a source partition, as the group coordinator keeps it.

    Shape: `term` None: a foreign offset (an ordinary consumer, or an operator's reset).
    `beside`: the highest term of an individual commit when this was written; 0 if this
    offset alone holds the whole progress. `topic`: the `topic_number` of the topic's
    id; 0 if the metadata names none. `of_kafka_streams`: an application of Kafka
    Streams wrote it.
    """

    offset: int
    stream_time: int = NO_STREAM_TIME
    term: int | None = None
    beside: int = 0
    operator_times: OperatorTimes = ()
    topic: int = 0
    of_kafka_streams: bool = False

    @staticmethod
    def parse(offset: int, metadata: str | None) -> Committed:
        """Return a fetched offset with its parsed metadata. A NUL that a client has
        appended to the metadata is ignored.

        Raises:
            LogError: the metadata are of a later version.
        """
        words = (metadata or "").rstrip("\0").split(" ")
        if words[0].startswith("ic") and words[0][2:].isdecimal():
            raise LogError(
                f"the group's offset {offset} has metadata of version {words[0][2:]}, this coopstreams reads version "
                f"{VERSION}: a newer release has committed. Use that one"
            )
        if len(words) >= 3 and words[0] == "ic":
            try:
                times = tuple(
                    (int(operator, 16), int(time))
                    for operator, time in (word.split(":") for word in words[4:])
                )
                stream_time, term, beside = map(int, [*words[1:4], "0"][:3])
                topic = dict(times).get(_TOPIC, 0)
                return Committed(
                    offset,
                    stream_time,
                    term,
                    beside,
                    tuple(time for time in times if time[0] != _TOPIC),
                    topic,
                )
            except ValueError:
                pass
        return Committed(offset, of_kafka_streams=_is_of_kafka_streams(words[0]))

    @property
    def metadata(self) -> str:
        """The metadata with which the offset is committed."""
        times = [
            f" {operator:x}:{time}"
            for operator, time in self.operator_times[:MOST_TIMES]
            if operator != _TOPIC
        ]
        if self.topic:
            times.append(f" {_TOPIC:x}:{self.topic}")
        beside = f" {self.beside}" if self.beside or times else ""
        return f"ic {self.stream_time} {self.term or 0}{beside}{''.join(times)}"


def _is_of_kafka_streams(metadata: str) -> bool:
    """Return whether Kafka Streams has written this metadata: Base64 of a version, a
    time in 8 bytes, and more.

    Source: Kafka Streams `TopicPartitionMetadata`, which has the versions 1 and 2.
    """
    try:
        data = b64decode(metadata, validate=True)
    except ValueError:
        return False
    time_ms = int.from_bytes(data[1:9], "big", signed=True)
    return len(data) >= 9 and 1 <= data[0] <= _MOST_VERSIONS and -1 <= time_ms < _FAR_MS


def topic_number(topic_id: str) -> int:
    """Return the number by which a plain offset names a topic; 0 without an id. The
    function is frozen: xxh64, seed 0, 63 bits.
    """
    return xxh64_intdigest(topic_id.encode()) >> 1 if topic_id else 0


def consumer_metadata(topic_id: str, text: str) -> str:
    """Return the metadata of a consumer's individual commit. `text`: the user's
    metadata.
    """
    return f"{topic_id}\0{text}"


def topic_and_text(metadata: str) -> tuple[str, str]:
    """Return the topic id and the user's text in the metadata of a consumer's
    individual commit.

    The id is empty in commits of earlier versions, or if brokers have no topic ids.
    """
    topic_id, named, text = metadata.partition("\0")
    return (topic_id, text) if named else ("", metadata)


def encode_key(key: CommitKey) -> bytes:
    """Return the bytes of a key."""
    return b"%c%b%b%b" % (
        VERSION,
        encode_text(key.group),
        encode_text(key.topic),
        tail_of(key),
    )


def tail_of(key: CommitKey) -> bytes:
    """Return the last `TAIL_BYTES` bytes of a key: all but version, group and topic."""
    return _KEY_TAIL.pack(
        key.partition,
        key.key_range.start,
        key.key_range.end,
        key.term,
        key.generation,
    )


def key_of(
    group: str,
    topic: str,
    tail: bytes,
) -> CommitKey:
    """Return the key of a group and topic that ends with this tail."""
    partition, start, end, term, generation = _KEY_TAIL.unpack(tail)
    return CommitKey(group, topic, partition, KeyRange(start, end), term, generation)


def decode_key(data: bytes) -> CommitKey:
    """Return the decoded key.

    Raises:
        LogError: the bytes are of another version, or no key at all.
    """
    _check_version(data)
    try:
        group, at = _read_text(data, 1)
        topic, at = _read_text(data, at)
        return key_of(group, topic, data[at:])
    except _DAMAGED as problem:
        raise _damaged("key", data, problem) from problem


def group_of(data: bytes) -> str:
    """Return the group in a key of any version; empty: the bytes are no key."""
    try:
        return _read_text(data, 1)[0]
    except _DAMAGED:
        return ""


def encode_value(value: CommitValue) -> bytes:
    """Return the bytes of a value.

    Raises:
        ValueError: segments with holes or overlaps, runs out of order or below the
            position. A bug of the caller.
    """
    waiting = any(segment.ahead for segment in value.segments)
    timed = waiting or any(segment.operator_times for segment in value.segments)
    out = bytearray([WITH_AHEAD if waiting else WITH_TIMES if timed else VERSION])
    out += encode_text(value.transactional_id)
    _uvar(out, len(value.segments))
    for left, right in pairwise(value.segments):
        if right.key_range.start != left.key_range.end + 1:
            raise ValueError(
                f"segments {left.key_range} and {right.key_range} are not neighbours"
            )
    last = len(value.segments) - 1
    for i, segment in enumerate(value.segments):
        # The last segment ends where the range of the key does.
        if i < last:
            out += _U64.pack(segment.key_range.end)
        _put_progress(out, segment)
    if value.metadata or timed:
        out += encode_text(value.metadata)
    for segment in value.segments if timed else ():
        _uvar(out, len(segment.operator_times))
        for operator, time in segment.operator_times:
            out += _U64.pack(operator)
            _svar(out, time)
    for segment in value.segments if waiting else ():
        _put_ahead(out, segment)
    return bytes(out)


def _put_ahead(out: bytearray, segment: Segment) -> None:
    """Append `segment.ahead`, or that there is none."""
    if segment.ahead is None:
        _uvar(out, 0)
        return
    _uvar(out, segment.ahead.read_to - segment.position)
    _svar(out, segment.ahead.birth)
    _uvar(out, segment.ahead.offset)


def _put_progress(out: bytearray, segment: Segment) -> None:
    """Append the position, the stream time and the done runs of a segment."""
    _uvar(out, segment.position)
    _svar(out, segment.stream_time)
    _uvar(out, len(segment.runs))
    at = segment.position
    for start, end in segment.runs:
        _uvar(out, start - at)
        _uvar(out, end + 1 - start)
        at = end + 1


def decode_value(data: bytes, key_range: KeyRange) -> CommitValue:
    """Return the decoded value; its segments tile the range of its key.

    Raises:
        LogError: the bytes are of another version, or no value at all.
    """
    _check_version(data, NEWEST_VALUE)
    try:
        transactional_id, at = _read_text(data, 1)
        segments, metadata = _read_said(data, at, key_range)
        if data[0] == WITH_TIMES and not any(
            segment.operator_times for segment in segments
        ):
            raise ValueError("operator times are missing")
        if (data[0] == WITH_AHEAD) != any(segment.ahead for segment in segments):
            raise ValueError("what is ahead is missing, or has no version")
        return CommitValue(transactional_id, segments, metadata)
    except _DAMAGED as problem:
        raise _damaged("value", data, problem) from problem


def payload_of(data: bytes, key_range: KeyRange) -> bytes:
    """Return the bytes of a value that follow the writer's id, and so do not depend on
    the writer.

    Raises:
        LogError: the bytes are of another version, or no value at all.
    """
    decode_value(data, key_range)
    length, at = read_varint(data, 1)
    return data[at + length :]


def decode_payload(said: bytes, key_range: KeyRange) -> tuple[tuple[Segment, ...], str]:
    """Return the segments and the metadata in the bytes that `payload_of` returned."""
    return _read_said(said, 0, key_range)


def encode_text(text: str) -> bytes:
    """Return a string in the form that it has in a key: its length, then UTF-8."""
    raw = text.encode()
    out = bytearray()
    _uvar(out, len(raw))
    return bytes(out) + raw


def _read_said(
    data: bytes,
    at: int,
    key_range: KeyRange,
) -> tuple[tuple[Segment, ...], str]:
    """Return the segments and the metadata in the bytes of a value from `at` on.
    `key_range`: that of its key.
    """
    count, at = read_varint(data, at)
    start = key_range.start
    segments = []
    for i in range(count):
        end = key_range.end
        if i < count - 1:
            (end,) = _U64.unpack_from(data, at)
            at += 8
        segment, at = _read_segment(data, at, KeyRange(start, end))
        segments.append(segment)
        start = end + 1
    metadata, at = _read_text(data, at) if at < len(data) else ("", at)
    if at < len(data):
        for number, segment in enumerate(segments):
            times, at = _read_times(data, at)
            segments[number] = replace(segment, operator_times=times)
    if at < len(data):
        for number, segment in enumerate(segments):
            ahead, at = _read_ahead(data, at, segment.position)
            segments[number] = replace(segment, ahead=ahead)
    if at != len(data) or not segments or segments[-1].key_range.end != key_range.end:
        raise ValueError("segments do not fill the range of the key")
    return tuple(segments), metadata


def _read_segment(
    data: bytes,
    at: int,
    key_range: KeyRange,
) -> tuple[Segment, int]:
    """Return the segment of a key range at `at`, without operator times, and the place
    behind it.
    """
    position, at = read_varint(data, at)
    if position > _MOST_OFFSET:
        raise ValueError(f"{position} is no offset")
    stream_time, at = _read_svar(data, at)
    count, at = read_varint(data, at)
    runs = []
    below = position
    for _ in range(count):
        gap, at = read_varint(data, at)
        length, at = read_varint(data, at)
        if not length:
            raise ValueError("a run has no offsets")
        runs.append((below + gap, below + gap + length - 1))
        below += gap + length
    return Segment(key_range, position, stream_time, tuple(runs)), at


def _read_times(data: bytes, at: int) -> tuple[OperatorTimes, int]:
    """Return the operator times at `at`, and where they end."""
    count, at = read_varint(data, at)
    times = []
    for _ in range(count):
        (operator,) = _U64.unpack_from(data, at)
        time, at = _read_svar(data, at + _U64.size)
        times.append((operator, time))
    return tuple(times), at


def _read_ahead(
    data: bytes,
    at: int,
    position: int,
) -> tuple[Ahead | None, int]:
    """Return what a task has read ahead of `position`, from `at` on, and where it ends;
    None: nothing.
    """
    length, at = read_varint(data, at)
    if not length:
        return None, at
    birth, at = _read_svar(data, at)
    offset, at = read_varint(data, at)
    return Ahead(position + length, birth, offset), at


def _uvar(out: bytearray, number: int) -> None:
    """Append a number to `out`."""
    if number < 0:
        raise ValueError(
            f"cannot write {number}: positions, runs and lengths are not negative, runs lie in order above the position"
        )
    out += varint(number)


def _svar(out: bytearray, number: int) -> None:
    _uvar(out, number << 1 ^ number >> 63)


def _read_svar(data: bytes, at: int) -> tuple[int, int]:
    zigzag, at = read_varint(data, at)
    return zigzag >> 1 ^ -(zigzag & 1), at


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    length, at = read_varint(data, at)
    if at + length > len(data):
        raise IndexError("text ends too early")
    return data[at : at + length].decode(), at + length


def _check_version(data: bytes, newest: int = VERSION) -> None:
    """Check the version of a key or a value; `newest`: the last one that is known of
    it.
    """
    if not data or not VERSION <= data[0] <= newest:
        what = f"version {data[0]}" if data else "no version"
        known = (
            f"version {VERSION}"
            if newest == VERSION
            else f"versions {VERSION} to {newest}"
        )
        raise LogError(
            f"a record of {COMMIT_TOPIC} has {what}, this coopstreams reads {known}"
        )


def _damaged(
    part: str,
    data: bytes,
    problem: Exception,
) -> LogError:
    """Return the error of a `part` (key or value) that cannot be read."""
    return LogError(
        f"a record of {COMMIT_TOPIC} has a {part} that no member of this group can have written ({problem}): "
        f"{data[:80].hex()}"
    )
