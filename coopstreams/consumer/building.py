"""Builds a session: for key ranges that the user assigned, or for a member of a group."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import partial

from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.common.host import Host, Inbox
from coopstreams.consumer.assignors import Assignor
from coopstreams.consumer.committing import Committing
from coopstreams.consumer.consumer_policy import Policies
from coopstreams.consumer.consumer_session import ConsumerSession, RangesCallback
from coopstreams.consumer.consumer_settings import ConsumerConfig
from coopstreams.consumer.fetching import Fetching
from coopstreams.consumer.filters import RecordFilter
from coopstreams.consumer.group_assignment import (
    assign_consumers,
    topic_number,
    topic_numbers,
)
from coopstreams.consumer.ownership import Alone, Openings, Ownership, Shared
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.holdings import GroupEvent
from coopstreams.group.members import Assignment, MemberInfo, MemberState
from coopstreams.group.membership import GroupMember, Timings
from coopstreams.log.kafka.wiring import Wiring
from coopstreams.log.log import Log
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConsumerRangeFetchNotAcceptedError,
    TopicRangeFetchNotAllowedError,
    UnknownTopicError,
)
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

STEADY_S = 5.0
"""How long a request within `consume` waits for unreachable brokers; the next call of
`consume` retries.
"""


def transactional_ids(group: str, host: Host) -> tuple[str, str]:
    """Return new transactional ids for one consumer: for the user's producer, and for
    the consumer's own writer.
    """
    life = host.unique()
    return f"{group}-consumer-{life}", f"{group}-consumer-{life}-commit"


def alone(
    config: ConsumerConfig,
    wiring: Wiring,
    log: Log,
    wanted: Mapping[TopicPartition, tuple[KeyRange, ...]],
    filter_: RecordFilter | None,
) -> ConsumerSession:
    """Return a session for these key ranges; see `CooperativeConsumer.assign`."""
    policies = Policies(log, config["replication.factor"], wiring.host)
    _check(config, log, policies, wanted)
    topics = topic_numbers(sorted({at.topic for at in wanted}))
    ids = [
        TaskId(topic_number(at.topic), at.partition, key_range)
        for at, ranges in wanted.items()
        for key_range in ranges or (WHOLE,)
    ]
    ownership = Alone(
        GroupAdmin(
            config.client,
            config["group.id"],
            timeout_s=config["connect.timeout.ms"] / 1000,
        )
    )
    # The id depends on the key ranges only: a replacement that reads the same fences
    # its predecessor, and ends the transaction that it left open.
    what = hashlib.sha256(
        "\n".join(sorted(f"{topics[id_.subtopology]} {id_}" for id_ in ids)).encode()
    ).hexdigest()[:16]
    transactional_id = f"{config['group.id']}-alone-{what}"
    host = wiring.host
    session = _session(
        config,
        host,
        log,
        ownership,
        topics,
        transactional_id,
        filter_,
        policies,
        {},
        host.inbox(),
        parts=True,
    )
    # No coordinator counts generations here: if two consumers choose the same term, the
    # later start outranks the other.
    session.openings.barrier.generation = host.wall_ms() // 1000
    session.openings.want(ids, 0)
    return session


def shared(
    config: ConsumerConfig,
    wiring: Wiring,
    log: Log,
    assignor: Assignor,
    topics: Sequence[str],
    transactional: tuple[str, str],
    filter_: RecordFilter | None,
    listeners: Mapping[str, RangesCallback | None],
    *,
    parts: bool,
) -> ConsumerSession:
    """Return a session of a member that joins the group; see
    `CooperativeConsumer.subscribe`.
    """
    group = config["group.id"]
    host = wiring.host
    policies = Policies(log, config["replication.factor"], wiring.host)
    policies.watch(topics)
    inbox: Inbox[GroupEvent] = host.inbox()
    follower = Follower(log, group, replication=config["replication.factor"])
    polled = [host.now()]

    def info() -> MemberInfo:
        return MemberInfo(
            transactional[0],
            host.called(),
            transactional_ids=transactional,
            allow_key_share=parts,
        )

    def assign(states: Mapping[str, MemberState]) -> Mapping[str, Assignment]:
        partitions, shareable = policies.for_leader(
            {topic for state in states.values() for topic in state.topics}
        )
        return assign_consumers(assignor, partitions, shareable, states)

    timings = Timings(
        session=config["session.timeout.ms"],
        heartbeat=config["heartbeat.interval.ms"],
        connect=config["connect.timeout.ms"],
        request=int(1000 * STEADY_S),
    )
    member = GroupMember(
        wiring.coordinator(config.client),
        group,
        # Subscribe to the commit topic, too: the broker expires offsets of topics
        # without a subscription.
        [*topics, follower.partition.topic],
        info,
        assign,
        inbox.put,
        lambda: host.now() - polled[0] < config["max.poll.interval.ms"] / 1000,
        instance_id=config["group.instance.id"],
        sources={number: [topic] for number, topic in policies.numbers().items()},
        timings=timings,
        host=host,
    )
    numbers = topic_numbers(topics)
    session = _session(
        config,
        host,
        log,
        Shared(member),
        numbers,
        transactional[1],
        filter_,
        policies,
        listeners,
        inbox,
        parts=parts,
        follower=follower,
    )
    session.polled = polled
    member.start()
    return session


def _session(  # noqa: PLR0913
    config: ConsumerConfig,
    host: Host,
    log: Log,
    ownership: Ownership,
    topics: Mapping[int, str],
    transactional_id: str,
    filter_: RecordFilter | None,
    policies: Policies,
    listeners: Mapping[str, RangesCallback | None],
    inbox: Inbox[GroupEvent],
    *,
    parts: bool,
    follower: Follower | None = None,
) -> ConsumerSession:
    follower = follower or Follower(
        log, config["group.id"], replication=config["replication.factor"]
    )
    follower.check_policy()

    def sources(task: TaskId) -> tuple[TopicPartition, ...]:
        return (TopicPartition(topics[task.subtopology], task.partition),)

    positions = Positions(
        log,
        ownership.group,
        follower,
        sources,
        lambda _: config["auto.offset.reset"],
        transactional_id,
        alone=ownership.alone,
        host=host,
    )
    # Match the whole id: the id of another group may begin with this group's id.
    form = re.compile(
        re.escape(config["group.id"]) + r"-consumer-[0-9a-f]{32}(-commit)?"
    )
    member = ownership.group if isinstance(ownership, Shared) else None
    commits = [follower.partition.topic]
    barrier = Barrier(
        member,
        follower,
        lambda name: form.fullmatch(name) is not None,
        lambda dead: log.settle(dead, commits),
        host,
    )
    openings = Openings(follower, barrier, positions, host)
    reader = partial(
        log.reader, committed_only=config["isolation.level"] == "read_committed"
    )
    fetching = Fetching(
        reader, config["max.bytes.key.range.cache"], policies.reserves_values, filter_
    )
    in_offset_order = config["commit.order"] == "offset"
    timeout_s = config["transaction.timeout.ms"] / 1000
    log.timeout_s = (
        timeout_s  # for the rest of the writer's life: brokers have been found by now
    )
    committing = Committing(
        log,
        follower,
        transactional_id,
        timeout_s,
        host,
        in_offset_order=in_offset_order,
    )
    log.timeout_s = STEADY_S
    return ConsumerSession(
        config,
        host,
        ownership,
        follower,
        openings,
        fetching,
        committing,
        policies,
        inbox,
        listeners,
        parts=parts,
    )


def _check(
    config: ConsumerConfig,
    log: Log,
    policies: Policies,
    wanted: Mapping[TopicPartition, tuple[KeyRange, ...]],
) -> None:
    counts = log.partitions(sorted({at.topic for at in wanted}))
    policies.watch([at.topic for at in wanted if at.topic in counts])
    for at, ranges in wanted.items():
        if at.partition not in range(counts.get(at.topic, 0)):
            raise UnknownTopicError(
                f"there is no {at}: create the topic first, or correct the name"
            )
        for i, key_range in enumerate(ranges):
            if any(key_range.overlaps(other) for other in ranges[:i]):
                raise ValueError(
                    f"{at}: key range {key_range} overlaps another one: a record would be handed out twice"
                )
        if all(key_range.is_whole for key_range in ranges):
            continue
        if not config["allow.individual.commit"]:
            raise ConsumerRangeFetchNotAcceptedError(
                f"{at}: a part of a partition, and allow.individual.commit of this consumer is false"
            )
        if not policies.policy.accepts_range_fetch(at.topic):
            raise TopicRangeFetchNotAllowedError(
                f"{at}: its topic may not be read by key range. Allow it: `coopstreams policy set "
                f"accept.range.fetch=true --topic {at.topic}`"
            )
