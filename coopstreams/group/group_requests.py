"""Requests about groups, except joining: group offsets, and open transactions of dead
producers. No connections.

Each function returns an exchange: a request, and a function that reads its answer and
raises kafka-python's error for a refusal.

Invariant: a commit carries the identity that it was begun under, never the current one.
Relies on: `connection` (sends an exchange again while its error `passes`).
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kafka import errors
from kafka.protocol.admin import (
    DescribeGroupsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import (
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import InitProducerIdRequest

from coopstreams.common.acl_errors import NEEDS_NOTHING, Attempt, Login
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    AccessDeniedError,
    CoopStreamsError,
    GroupError,
    LogError,
    MembershipLostError,
    UnknownTopicError,
)

Offsets = dict[TopicPartition, tuple[int, str] | None]
"""The committed offset and metadata of each partition; None: nothing was ever
committed.
"""


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """A group's offsets, as the coordinator answers.

    `unstable`: partitions whose offset an open transaction may still change. Their
    offsets are not returned; fetch them again.
    """

    offsets: Offsets
    unstable: frozenset[TopicPartition] = frozenset()


_T = TypeVar("_T")

LOST = (
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.FencedInstanceIdError,
)
"""The errors of a broker that does not know this process as a member of this
generation.
"""

_STALE_COORDINATOR = (
    errors.NotCoordinatorError,
    errors.CoordinatorNotAvailableError,
    errors.KafkaConnectionError,
    errors.RequestTimedOutError,
    errors.UnknownBrokerIdError,
)
_GROUP = 0
_TRANSACTION = 1
"""The types of coordinators: of groups with their offsets, and of transactions."""


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as the group coordinator knows it, with its subscription and assignment
    as bytes.
    """

    id: str
    host: str
    subscription: bytes
    assignment: bytes
    instance: str | None = None
    """The `group.instance.id` of a static member."""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as its coordinator knows it.

    Shape: `state` is Kafka's word: Stable, PreparingRebalance, CompletingRebalance,
    Empty, Dead (it does not exist). `protocol` is that of the members; ours is classic.
    Members of another protocol (`consumer`, `streams`) are not listed.
    """

    state: str
    members: tuple[DescribedMember, ...]
    protocol: str = "classic"

    @property
    def members_text(self) -> str:
        """The members in words, with their number if it is known; empty: there are
        none.
        """
        if self.protocol != "classic":
            return (
                ""
                if self.state in ("Empty", "Dead")
                else f"members (of the protocol {self.protocol})"
            )
        return f"{len(self.members)} members" if self.members else ""


@dataclass(frozen=True, slots=True)
class Exchange(Generic[_T]):
    """A request, the function that reads its answer, and its description for people."""

    what: str
    request: Any
    read: Callable[[Any], _T]
    attempt: Attempt = NEEDS_NOTHING
    """The ACLs that the request needs; the connection adds the login."""


def commit_offsets(
    fence: GroupFence,
    offsets: Mapping[TopicPartition, tuple[int, str]],
) -> Exchange[None]:
    """Return the exchange that commits offsets at the group coordinator, as the member
    and generation of the fence.
    """
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_type = topic_type.OffsetCommitRequestPartition
    committed: dict[str, list[Any]] = {}
    for (topic, partition), (offset, metadata) in sorted(offsets.items()):
        entry = partition_type(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=metadata,
        )
        committed.setdefault(topic, []).append(entry)
    request = OffsetCommitRequest(
        max_version=8,
        group_id=fence.group,
        generation_id_or_member_epoch=fence.generation,
        member_id=fence.member,
        group_instance_id=fence.instance,
        topics=[
            topic_type(name=topic, partitions=partitions)
            for topic, partitions in committed.items()
        ],
    )

    def read(response: Any) -> None:
        for _, _, error in outcomes(response.topics):
            if error is not None:
                raise error

    needs = Attempt(operation="Read", topics=", ".join(committed), group=fence.group)
    return Exchange(f"committing offsets of group {fence.group}", request, read, needs)


def fetch_offsets(
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    stable: bool = True,
) -> Exchange[FetchedOffset]:
    """Return the exchange that asks the group coordinator for offsets; `partitions`
    None: all. `stable`: leave out offsets that an open transaction may still change.
    """
    group_type = OffsetFetchRequest.OffsetFetchRequestGroup
    numbers = by_topic(set(partitions or ()))
    topics = (
        None
        if partitions is None
        else [
            group_type.OffsetFetchRequestTopics(name=topic, partition_indexes=wanted)
            for topic, wanted in numbers.items()
        ]
    )
    request = OffsetFetchRequest(
        min_version=8,
        max_version=8,
        groups=[group_type(group_id=group, topics=topics)],
        require_stable=stable,
    )

    def read(response: Any) -> FetchedOffset:
        answer = response.groups[0]
        check(answer.error_code, group)
        offsets: Offsets = {}
        unstable: set[TopicPartition] = set()
        for topic in answer.topics:
            for entry in topic.partitions:
                partition = TopicPartition(topic.name, entry.partition_index)
                if (
                    errors.for_code(entry.error_code)
                    is errors.UnstableOffsetCommitError
                ):
                    unstable.add(partition)
                    continue
                check(entry.error_code, str(partition))
                # librdkafka appends a NUL to the metadata of transactional commits.
                metadata = (entry.metadata or "").rstrip("\0")
                offsets[partition] = (
                    (entry.committed_offset, metadata)
                    if entry.committed_offset >= 0
                    else None
                )
        return FetchedOffset(offsets, frozenset(unstable))

    needs = Attempt(operation="Describe", topics=", ".join(numbers), group=group)
    return Exchange(f"reading offsets of group {group}", request, read, needs)


def leave_group(group: str, member: str) -> Exchange[None]:
    """Return the exchange by which the group coordinator removes a member."""
    identity = LeaveGroupRequest.MemberIdentity(
        member_id=member,
        group_instance_id=None,
        reason="closed",
    )
    request = LeaveGroupRequest(group_id=group, member_id=member, members=[identity])
    return Exchange(
        f"leaving group {group}",
        request,
        lambda response: check(response.error_code, group),
        Attempt(group=group),
    )


def remove_static_members(
    group: str,
    instances: Sequence[str],
) -> Exchange[tuple[str, ...]]:
    """Return the exchange by which the group coordinator removes static members. It
    answers which of these ids no member has.
    """
    identities = [
        LeaveGroupRequest.MemberIdentity(
            member_id="",
            group_instance_id=instance,
            reason="removed by an operator",
        )
        for instance in instances
    ]

    def read(response: Any) -> tuple[str, ...]:
        check(response.error_code, group)
        unknown = []
        for member in response.members:
            if member.error_code == errors.UnknownMemberIdError.errno:
                unknown.append(member.group_instance_id)
            else:
                check(member.error_code, group)
        return tuple(unknown)

    request = LeaveGroupRequest(min_version=3, group_id=group, members=identities)
    return Exchange(
        f"removing members of group {group}",
        request,
        read,
        Attempt(group=group),
    )


def transaction_coordinator(transactional_id: str) -> Exchange[int]:
    """Return the exchange that asks any broker for the coordinator of a transactional
    id.
    """
    return _coordinator(transactional_id, _TRANSACTION, "transaction")


def group_coordinator(group: str) -> Exchange[int]:
    """Return the exchange that asks any broker for the coordinator of a group."""
    return _coordinator(group, _GROUP, "group")


def _coordinator(
    key: str,
    kind: int,
    of: str,
) -> Exchange[int]:
    request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])

    def read(response: Any) -> int:
        answer = response.coordinators[0] if response.coordinators else response
        check(answer.error_code, key)
        return int(answer.node_id)

    needs = Attempt(group=key) if kind == _GROUP else Attempt(transactional_id=key)
    return Exchange(f"looking for the coordinator of {of} {key}", request, read, needs)


def describe_group(group: str) -> Exchange[DescribedGroup]:
    """Return the exchange that asks the group coordinator for the state and the members
    of a group.
    """

    def read(response: Any) -> DescribedGroup:
        found = response.groups[0]
        check(found.error_code, group)
        members = (
            DescribedMember(
                m.member_id,
                m.client_host,
                bytes(m.member_metadata or b""),
                bytes(m.member_assignment or b""),
                m.group_instance_id,
            )
            for m in found.members
        )
        return DescribedGroup(found.group_state, tuple(members))

    return Exchange(
        f"describing group {group}",
        DescribeGroupsRequest(
            max_version=5,
            groups=[group],
            include_authorized_operations=False,
        ),
        read,
        Attempt(group=group),
    )


def list_group(group: str) -> Exchange[DescribedGroup]:
    """Return the exchange that asks the group coordinator for the state and the
    protocol of a group, without its members.

    It works for every protocol. `describe_group` calls a group Dead if its members use
    a newer protocol (KIP-848, KIP-1071).
    """

    def read(response: Any) -> DescribedGroup:
        check(response.error_code, group)
        found = next((one for one in response.groups if one.group_id == group), None)
        if found is None:
            return DescribedGroup("Dead", ())
        return DescribedGroup(
            found.group_state,
            (),
            (found.group_type or "classic").lower(),
        )

    request = ListGroupsRequest(min_version=4, states_filter=[], types_filter=[])
    return Exchange(f"listing group {group}", request, read, Attempt(group=group))


def new_producer(transactional_id: str, timeout_ms: int) -> Exchange[None]:
    """Return the exchange that asks the transaction coordinator for a new producer
    epoch. This aborts the open transaction of the old one.
    """
    request = InitProducerIdRequest(
        max_version=4,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    return Exchange(
        f"ending transaction {transactional_id}",
        request,
        lambda response: check(response.error_code, transactional_id),
        Attempt(transactional_id=transactional_id),
    )


def list_open_transactions() -> Exchange[frozenset[str]]:
    """Return the exchange that asks one broker for the transactional ids of the open
    transactions that it coordinates.
    """

    def read(response: Any) -> frozenset[str]:
        check(response.error_code, "ListTransactions")
        return frozenset(
            entry.transactional_id for entry in response.transaction_states
        )

    return Exchange(
        "listing open transactions",
        ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[]),
        read,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, all ascending."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


def outcomes(
    topics: Iterable[Any],
) -> Iterator[tuple[TopicPartition, Any, errors.KafkaError | None]]:
    """Yield each partition of an answer, its entry, and the error with which it was
    refused (None: it was not).
    """
    for topic in topics:
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.partition_index)
            yield at, partition, error_of(partition.error_code, str(at))


def error_of(code: int, about: str) -> errors.KafkaError | None:
    """Return the error of an error code; None if the code means success."""
    kind = errors.for_code(code)
    return None if kind is errors.NoError else kind(about)


def check(code: int, about: str) -> None:
    """Raise the error of an error code, unless the code means success."""
    if (error := error_of(code, about)) is not None:
        raise error


def _name(error: errors.KafkaError) -> str:
    """Return Kafka's name of an error; empty if no broker has answered."""
    return str(getattr(error, "message", ""))


def passes(error: errors.KafkaError) -> bool:
    """Return whether the same request may succeed in a moment, without any change by a
    user.
    """
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return False
    return bool(error.retriable) or isinstance(
        error,
        (errors.RebalanceInProgressError, errors.UnknownBrokerIdError),
    )


def coordinator_moved(error: errors.KafkaError) -> bool:
    """Return whether the error means that the coordinator has to be looked for again."""
    return isinstance(error, _STALE_COORDINATOR)


def translated(
    what: str,
    error: errors.KafkaError,
    attempt: Attempt = NEEDS_NOTHING,
) -> CoopStreamsError:
    """Return our error for a final error of kafka-python; `attempt` has the ACLs that
    the request needs.
    """
    text = f"{what}: {error}"
    if missing := attempt.missing(_name(error)):
        return AccessDeniedError(f"{text}. {missing}")
    if isinstance(error, LOST):
        return MembershipLostError(
            f"{text}. The group has removed this member; uncommitted work is void"
        )
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return UnknownTopicError(
            f"{text}. The topic, or this partition of it, does not exist"
        )
    if isinstance(error, errors.OffsetMetadataTooLargeError):
        text += ". Have the brokers' offset.metadata.max.bytes raised, to its default of 4096"
    return LogError(text)


def refusal(
    error: errors.KafkaError,
    group: str,
    instance: str | None,
    session_ms: int,
    login: Login,
) -> GroupError | None:
    """Return why Kafka refuses this member for good, with the cure; None: a later
    attempt may succeed.
    """
    if missing := Attempt(login, group=group).missing(_name(error)):
        return GroupError(f"group {group}: {error}. {missing}")
    if isinstance(error, errors.FencedInstanceIdError):
        return GroupError(
            f"another process has taken over group.instance.id {instance!r} in group {group}. Give every process one "
            "of its own."
        )
    if isinstance(error, errors.InconsistentGroupProtocolError):
        return GroupError(
            f"group {group} is in use by other consumers. Give this application another application.id, or stop them. "
            "Those of Kafka Streams do not leave when they are stopped: they count until their session.timeout.ms is "
            "over (45 s unless set)."
        )
    if isinstance(error, errors.InvalidSessionTimeoutError):
        return GroupError(
            f"session.timeout.ms {session_ms} is outside of what the brokers allow (their group.min.session.timeout.ms "
            "and group.max.session.timeout.ms)."
        )
    if isinstance(error, errors.GroupMaxSizeReachedError):
        return GroupError(
            f"group {group} has as many members as the brokers allow (their group.max.size)."
        )
    if isinstance(error, errors.InvalidGroupIdError):
        return GroupError(f"group {group}: {error}. Choose another id.")
    if (shut := not_let_in(error, login)) is not None:
        return shut
    if isinstance(error, errors.UnsupportedVersionError):
        return GroupError(
            f"the brokers are too old: {error}. Kafka 3.0 or later is needed."
        )
    return None


def likely_cause(error: errors.KafkaError) -> str:
    """Return the likely cause of an error that brokers do not explain, with the cure,
    as a sentence; empty for all other errors.
    """
    if type(error) is not errors.UnknownError:
        return ""
    return (
        ". Its coordinator could not store it: with about a hundred members or more, what they know of each other has "
        "more bytes than max.message.bytes of the topic __consumer_offsets (1 MiB) allows, and no member gets tasks. "
        "Raise that, or run fewer processes with more threads"
    )


def not_let_in(error: errors.KafkaError, login: Login) -> GroupError | None:
    """Return why the brokers refuse this process's login, or why it does not trust a
    broker, with the cure; None: the error means neither.
    """
    if isinstance(
        error,
        (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError),
    ):
        return GroupError(
            f"the brokers do not let in {login}: {error}. Check sasl.mechanism, and the user with its password, token "
            "or certificate."
        )
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return GroupError(
            f"a broker is not trusted: {error}. Check ssl.ca.location (the authority that signed the brokers' "
            "certificates), and that bootstrap.servers has the names that are in them."
        )
    return None
