"""The bytes that members exchange through the group coordinator, encoded and decoded.

    subscription   Kafka's consumer protocol v3 (topics, owned partitions, generation), our state in its user data
    assignment     Kafka's consumer protocol v3 (partitions), ours in its user data

Kafka's own tools can read the consumer protocol. Our user data are `CS`, a version
byte, then compressed JSON. In an assignment this is two compressed streams. The second
one is the same for all members, and compressed once.

Invariant: equal values give equal bytes (a member that is not the leader starts a
rebalance only with different bytes).
Invariant: decoding foreign bytes raises only `GroupError`, which names the member that
sent them.
Relies on: `members` (what a field means, and its default in older versions),
`format_level` (what may be sent).
Turned down: one record a field (the broker keeps all of a group in one record of about
1 MB: measured).
"""

from __future__ import annotations

import zlib
from collections.abc import (
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

import msgspec
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from coopstreams.group.members import (
    Assignment,
    Cluster,
    Member,
    MemberInfo,
    MemberState,
    Runs,
    Warmth,
)
from coopstreams.topology.errors import GroupError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.serde import shortened
from coopstreams.topology.task_id import TaskId

VERSION = b"2"
READ = (b"1", VERSION)
"""The versions of subscriptions that are decoded.

In version 1 members do not announce their topology. A member of that version gets no
tasks, but the tasks it holds are not granted to others. Assignments of version 1 are
refused: their leader ignores topologies.
"""
_MAGIC = b"CS"
_WRAPPER = 3
"""The version of Kafka's consumer protocol: the first that carries the generation."""
MOST_BYTES = 8 << 20
"""The most bytes of JSON that one value is decompressed to.

Anybody who may join the group can send the compressed bytes, and zlib makes 300 MiB of
300 kB. 50,000 tasks of 100 members are 770 kB (measured); a broker keeps all of a group
in a record of 1 MB.
"""

_Task = tuple[int, ...]
"""(sub-topology, partition, first group, last group); for a range that is not cut at
key groups (…, start, end, 0).
"""


class _Info(msgspec.Struct, omit_defaults=True):
    """A `MemberInfo` in the form in which members send it as JSON."""

    process: str
    host: str = ""
    endpoint: str | None = None
    threads: int = 1
    transactional: tuple[str, ...] = ()
    share: bool = True
    ending: str = ""
    topology: tuple[tuple[str, int, bool], ...] = ()
    leaving: bool = False
    rack: str = ""
    stands_by: tuple[int, ...] | None = None
    level: int = 1


class _Warmth(msgspec.Struct, omit_defaults=True):
    """A `Warmth` in the form in which it is sent."""

    heavy: tuple[_Task, ...] = ()
    ready: tuple[_Task, ...] = ()
    lags: tuple[tuple[_Task, int], ...] = ()


class _Subscription(_Info, omit_defaults=True, kw_only=True):
    tasks: tuple[_Task, ...] = ()
    target: tuple[_Task, ...] = ()
    nonce: int = 0
    standbys: tuple[_Task, ...] = ()
    warmth: _Warmth | None = None


class _Assignment(msgspec.Struct, omit_defaults=True):
    """The leader's `Assignment` for one member, in the form in which it is sent."""

    process: str
    tasks: tuple[_Task, ...] = ()
    target: tuple[_Task, ...] = ()
    settled: bool = True
    error: str = ""
    waits: str = ""
    standbys: tuple[_Task, ...] = ()


class _Member(_Info, omit_defaults=True, kw_only=True):
    id: str
    tasks: tuple[_Task, ...] = ()
    standbys: tuple[_Task, ...] = ()


class _Cluster(msgspec.Struct, omit_defaults=True):
    """A `Cluster` in the form in which the leader sends it: `partitions` by
    sub-topology.
    """

    members: tuple[_Member, ...] = ()
    partitions: dict[int, int] = {}


_T = TypeVar("_T", bound=msgspec.Struct)
_SUBSCRIPTION = msgspec.json.Decoder(_Subscription)
_ASSIGNMENT = msgspec.json.Decoder(_Assignment)
_CLUSTER = msgspec.json.Decoder(_Cluster)


def encode_subscription(
    state: MemberState,
    nonce: int,
    topics: Iterable[str],
    sources: Mapping[int, Sequence[str]],
) -> bytes:
    """Return the bytes of a subscription.

    Shape: `topics` are all topics for which the group commits offsets; brokers forget
    the offsets of other topics (measured). `sources` names the topics of each
    sub-topology, so that people and tools see partitions. A different `nonce` gives
    different bytes.
    """
    ours = _Subscription(
        **_info(state.info),
        tasks=_tasks(state.tasks),
        target=_tasks(state.target),
        nonce=nonce,
        standbys=_tasks(state.standbys),
        warmth=_warmth(state.warmth),
    )
    owned = [
        ConsumerProtocolSubscription.TopicPartition(topic=t, partitions=p)
        for t, p in _partitions(state.tasks, sources)
    ]
    wrapper = ConsumerProtocolSubscription(
        version=_WRAPPER,
        topics=sorted(set(topics)),
        user_data=_pack(ours),
        owned_partitions=owned,
        generation_id=state.generation,
        rack_id=None,
    )
    return bytes(wrapper.encode())


def decode_subscription(data: bytes, who: str) -> MemberState:
    """Return the state of the member `who`.

    Raises:
        GroupError: the bytes are not ours, or of another version; names the sender and
            the cure.
    """
    wrapper = _unwrap(ConsumerProtocolSubscription, data, who)
    ours, _ = _unpack(wrapper.user_data, _SUBSCRIPTION, who, READ)
    try:
        topics = tuple(wrapper.topics)
        return MemberState(
            _info_of(ours),
            _task_ids(ours.tasks),
            wrapper.generation_id,
            _task_ids(ours.target),
            topics,
            _task_ids(ours.standbys),
            _warmth_of(ours.warmth),
        )
    except (ValueError, TypeError) as error:
        raise _foreign(who, str(error)) from error


def encode_assignments(
    assignments: Mapping[str, Assignment],
    sources: Mapping[int, Sequence[str]],
) -> dict[str, bytes]:
    """Return the bytes of each member's assignment. All must carry the same cluster."""
    encoded = {}
    cluster = b"".join(
        _compress(_cluster(assignment.cluster))
        for assignment in [*assignments.values()][:1]
    )
    for member, assignment in assignments.items():
        tasks = _tasks(assignment.tasks)
        target = _tasks(assignment.target)
        ours = _Assignment(
            assignment.process,
            tasks,
            target,
            assignment.settled,
            assignment.error,
            assignment.waits,
            _tasks(assignment.standbys),
        )
        parts = [
            ConsumerProtocolAssignment.TopicPartition(topic=t, partitions=p)
            for t, p in _partitions(assignment.tasks, sources)
        ]
        wrapper = ConsumerProtocolAssignment(
            version=_WRAPPER,
            assigned_partitions=parts,
            user_data=_pack(ours) + cluster,
        )
        encoded[member] = bytes(wrapper.encode())
    return encoded


def decode_assignment(data: bytes, who: str) -> Assignment:
    """Return the assignment that the leader `who` has sent.

    Raises:
        GroupError: the bytes are not ours, or of another version; names the sender and
            the cure.
    """
    wrapper = _unwrap(ConsumerProtocolAssignment, data, who)
    ours, rest = _unpack(wrapper.user_data, _ASSIGNMENT, who, (VERSION,))
    try:
        shared = _decoded(_CLUSTER, _decompressed(rest)[0])
        members = tuple(
            Member(m.id, _info_of(m), _task_ids(m.tasks), _task_ids(m.standbys))
            for m in shared.members
        )
        cluster = Cluster(members=members, partitions=shared.partitions)
        return Assignment(
            ours.process,
            _task_ids(ours.tasks),
            _task_ids(ours.target),
            ours.settled,
            cluster,
            ours.error,
            ours.waits,
            _task_ids(ours.standbys),
        )
    except (ValueError, TypeError) as error:
        raise _foreign(who, str(error)) from error


def _cluster(cluster: Cluster) -> _Cluster:
    """Return the wire form of the owners."""
    members = tuple(
        _Member(
            **_info(m.info),
            id=m.id,
            tasks=_tasks(m.tasks),
            standbys=_tasks(m.standbys),
        )
        for m in cluster.members
    )
    return _Cluster(members, dict(sorted(cluster.partitions.items())))


def _info(info: MemberInfo) -> dict[str, Any]:
    """Return the fields of the wire form of a member's description; `_info_of` is the
    reverse.
    """
    return {
        "process": info.process,
        "host": info.host,
        "endpoint": info.endpoint,
        "threads": info.threads,
        "transactional": tuple(info.transactional_ids),
        "share": info.allow_key_share,
        "ending": info.ending,
        "topology": tuple(tuple(part) for part in info.topology),
        "leaving": info.leaving,
        "rack": info.rack,
        "stands_by": info.stands_by,
        "level": info.level,
    }


def _info_of(wire: _Info) -> MemberInfo:
    """Return the description of a member from its wire form."""
    topology = tuple(Runs(*part) for part in wire.topology)
    return MemberInfo(
        wire.process,
        wire.host,
        wire.endpoint,
        wire.threads,
        wire.transactional,
        wire.share,
        wire.ending,
        topology,
        wire.leaving,
        wire.rack,
        wire.stands_by,
        wire.level,
    )


def _warmth(warmth: Warmth | None) -> _Warmth | None:
    if warmth is None:
        return None
    lags = tuple((_task(task), lag) for task, lag in sorted(warmth.lags))
    return _Warmth(_tasks(warmth.heavy), _tasks(warmth.ready), lags)


def _warmth_of(wire: _Warmth | None) -> Warmth | None:
    if wire is None:
        return None
    lags = tuple((_task_id(task), lag) for task, lag in wire.lags)
    return Warmth(_task_ids(wire.heavy), _task_ids(wire.ready), lags)


def _partitions(
    tasks: Iterable[TaskId],
    sources: Mapping[int, Sequence[str]],
) -> list[tuple[str, list[int]]]:
    """Return the partitions of tasks by topic, both ascending."""
    owned: dict[str, set[int]] = {}
    for task in tasks:
        for topic in sources.get(task.subtopology, ()):
            owned.setdefault(topic, set()).add(task.partition)
    return [(topic, sorted(partitions)) for topic, partitions in sorted(owned.items())]


def _tasks(tasks: Iterable[TaskId]) -> tuple[_Task, ...]:
    return tuple(_task(task) for task in sorted(tasks))


def _task(task: TaskId) -> _Task:
    """Return the wire form of a task: its key groups, or exact hashes (with a 0 behind)
    if it is not cut at groups.
    """
    if task.key_range.is_cut_at_groups:
        return (task.subtopology, task.partition, *task.key_range.groups)
    return (
        task.subtopology,
        task.partition,
        task.key_range.start,
        task.key_range.end,
        0,
    )


def _task_ids(wire: Iterable[_Task]) -> tuple[TaskId, ...]:
    return tuple(_task_id(task) for task in wire)


def _task_id(wire: _Task) -> TaskId:
    """Return the task of a wire form: see `_task`."""
    subtopology, partition, start, end, *exact = wire
    return TaskId(
        subtopology,
        partition,
        KeyRange(start, end) if exact else KeyRange.of_groups(start, end),
    )


def _compress(value: msgspec.Struct) -> bytes:
    return zlib.compress(msgspec.json.encode(value))


def _pack(value: msgspec.Struct) -> bytes:
    return _MAGIC + VERSION + _compress(value)


def _unwrap(
    wrapper: Any,
    data: bytes,
    who: str,
) -> Any:
    """Decode Kafka's part of the bytes of `who`, a member named in the error."""
    try:
        return wrapper.decode(data)
    except Exception as error:  # the parser may raise anything on foreign bytes
        raise _foreign(who, f"not Kafka's consumer protocol: {error!r}") from error


def _unpack(
    data: bytes | None,
    decoder: msgspec.json.Decoder[_T],
    who: str,
    versions: Collection[bytes],
) -> tuple[_T, bytes]:
    """Return what the user data of the member `who` encode, and the bytes behind it.
    `versions`: those that can be read.

    Raises:
        GroupError: the data are not ours, or of another version.
    """
    if not data or not data.startswith(_MAGIC):
        raise _foreign(who, f"its user data begin with {bytes(data or b'')[:8]!r}")
    if data[2:3] not in versions:
        raise GroupError(
            f"member {who} speaks version {data[2:3]!r} of the group format, this process {VERSION!r}. Run one "
            "version of coopstreams in a group: stop all its processes, then start them."
        )
    try:
        text, rest = _decompressed(data[3:])
        return _decoded(decoder, text), rest
    except ValueError as error:
        raise _foreign(who, str(error)) from error


def _decompressed(data: bytes) -> tuple[bytes, bytes]:
    """Return the first compressed stream of the data, decompressed, and the bytes that
    follow it.

    Raises:
        ValueError: the stream is not complete, or has more than `MOST_BYTES`.
    """
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, MOST_BYTES + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(text) > MOST_BYTES:
        raise ValueError(f"it decompresses to more than {MOST_BYTES >> 20} MiB")
    if not stream.eof:
        raise ValueError("the end of its compressed data is missing")
    return text, stream.unused_data


def _decoded(decoder: msgspec.json.Decoder[_T], text: bytes) -> _T:
    """Return the value that the JSON encodes.

    Raises:
        ValueError: it is no value of this type, or is nested too deeply.
    """
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _foreign(who: str, problem: str) -> GroupError:
    return GroupError(
        f"member {who} of this group is not an instance of this application ({shortened(problem)}). Give every application an "
        "application.id of its own."
    )
