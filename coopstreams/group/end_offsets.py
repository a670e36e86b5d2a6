"""The true ends of partitions: every record acknowledged before the request lies below
the end. docs/internals/leaders.md has the argument.

One request goes to each broker, all at once, and one to each leader. A broker that is
dead or hangs is waited for only if it may know of a newer leader than the brokers that
answered.

Relies on: `partition_leader` (which answers suffice), `end_requests`.
Turned down: reusing the answers of an earlier request (the leader may have changed
since). One request covers many partitions.
"""
# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from kafka import errors

from coopstreams.common.acl_errors import Attempt
from coopstreams.group import end_requests, group_requests
from coopstreams.group.connection import Connection
from coopstreams.group.end_requests import EndsThere, Views
from coopstreams.group.partition_leader import (
    BrokerView,
    Choice,
    Choices,
    choose_each,
    silent_replicas,
)
from coopstreams.topology.columns import TopicPartition

log = logging.getLogger(__name__)

BELIEVED_S = 60.0
"""How long a fetched `min.insync.replicas` is cached."""


@dataclass(frozen=True, slots=True)
class EndsAnswer:
    """The result of one request for ends.

    Shape: `reasons` say why an end is not known. `unknown` are partitions that no
    broker knows. `heard`: whether any broker answered.
    """

    ends: Mapping[TopicPartition, int]
    reasons: Mapping[TopicPartition, str]
    unknown: frozenset[TopicPartition]
    heard: bool


class Ends:
    """A client that requests the ends of partitions. Thread-safe: all work is done on
    the connection's I/O thread.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._min_isr: dict[str, tuple[int, float]] = {}
        """The cached value by topic, with the time at which it expires."""
        self._old = False
        """Whether the warning about brokers without leader epochs was logged."""

    def ask(
        self,
        partitions: Collection[TopicPartition],
        timeout_s: float,
    ) -> EndsAnswer:
        """Return the ends of the partitions whose leader is certain within this time.
        There is one attempt: leaders may be moving.

        Raises:
            LogError: this principal may not describe a topic.
        """
        return self._connection.run(
            self._ask,
            frozenset(partitions),
            time.monotonic() + timeout_s,
        )

    def silent(
        self,
        partitions: Collection[TopicPartition],
        timeout_s: float,
    ) -> dict[TopicPartition, frozenset[int]]:
        """Return the brokers with an in-sync replica that do not answer in this time,
        for each partition that has any.

        Raises:
            LogError: this principal may not describe a topic.
        """
        return self._connection.run(
            self._silent,
            frozenset(partitions),
            time.monotonic() + timeout_s,
        )

    async def _silent(
        self,
        partitions: frozenset[TopicPartition],
        give_up: float,
    ) -> dict[TopicPartition, frozenset[int]]:
        topics = {at.topic for at in partitions}

        def enough(answers: Mapping[int, Views]) -> bool:
            return bool(answers) and not silent_replicas(_of(answers), partitions)

        views = await self._views(topics, give_up, enough)
        return silent_replicas(_of(views), partitions)

    async def _ask(
        self,
        partitions: frozenset[TopicPartition],
        give_up: float,
    ) -> EndsAnswer:
        """Return the ends of partitions that are certain by `give_up`, and why others
        are not.
        """
        topics = {at.topic for at in partitions}
        await self._learn_min_isr(topics, give_up)

        def enough(answers: Mapping[int, Views]) -> bool:
            return self._choose(answers, partitions).certain.keys() == partitions

        views = await self._views(topics, give_up, enough)
        choices = self._choose(views, partitions)
        ends, refused = await self._ends(choices.certain, give_up)
        return EndsAnswer(
            ends,
            {**choices.reasons, **refused},
            choices.unknown if views else frozenset(),
            bool(views),
        )

    async def _views(
        self,
        topics: set[str],
        give_up: float,
        enough: Callable[[Mapping[int, Views]], bool],
    ) -> dict[int, Views]:
        """Return what the brokers that have answered know of these topics, once
        `enough` says that it suffices.
        """
        asked = {
            broker: end_requests.find_views(topics)
            for broker in self._connection.brokers()
        }
        answers, _ = await self._connection.ask_each(asked, _left_ms(give_up), enough)
        if hidden := frozenset().union(*(views.hidden for views in answers.values())):
            topics_said = ", ".join(sorted(hidden))
            raise group_requests.translated(
                "asking where a partition ends",
                errors.TopicAuthorizationFailedError(topics_said),
                Attempt(self._connection.login, "Describe", topics_said),
            )
        if (
            not frozenset().union(*(views.brokers for views in answers.values()))
            <= asked.keys()
        ):
            self._connection.look_again()  # for brokers that have joined since
        return answers

    def _choose(
        self,
        answers: Mapping[int, Views],
        partitions: frozenset[TopicPartition],
    ) -> Choices:
        return choose_each(
            _of(answers),
            partitions,
            {topic: known for topic, (known, _) in self._min_isr.items()},
        )

    async def _ends(
        self,
        chosen: Mapping[TopicPartition, Choice],
        give_up: float,
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
        """Return the ends that the leaders report that were chosen, and why other ends
        are not known.
        """
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for at, choice in chosen.items():
            by_leader.setdefault(choice.leader, {})[at] = choice.epoch
            self._say_old(choice)
        asked = {
            leader: end_requests.list_ends(epochs)
            for leader, epochs in by_leader.items()
        }
        answers: Mapping[int, EndsThere]
        answers, failed = await self._connection.ask_each(asked, _left_ms(give_up))
        ends = {at: end for answer in answers.values() for at, end in answer.at.items()}
        refused = {
            at: f"{type(error).__name__} of its leader"
            for answer in answers.values()
            for at, error in answer.errors.items()
        }
        silent = {
            at: f"its leader, broker {leader}, does not answer: {failed.get(leader, 'it is silent')}"
            for leader, epochs in by_leader.items()
            if leader not in answers
            for at in epochs
        }
        return ends, refused | silent

    async def _learn_min_isr(self, topics: set[str], give_up: float) -> None:
        """Fetch `min.insync.replicas` of the topics for which it is unknown or too old.
        The first answer is used.
        """
        now = time.monotonic()
        wanted = {
            topic
            for topic in topics
            if topic not in self._min_isr or self._min_isr[topic][1] < now
        }
        if not wanted:
            return
        asked = {
            broker: end_requests.find_min_isr(wanted)
            for broker in self._connection.brokers()
        }
        answers, _ = await self._connection.ask_each(asked, _left_ms(give_up), bool)
        for found in answers.values():
            self._min_isr |= {
                topic: (replicas, now + BELIEVED_S) for topic, replicas in found.items()
            }

    def _say_old(self, choice: Choice) -> None:
        if choice.epoch < 0 and not self._old:
            self._old = True
            log.warning(
                "the brokers tell no leader epochs: one that stood still, and wakes, may tell an end of before"
            )


def _of(answers: Mapping[int, Views]) -> dict[int, Mapping[TopicPartition, BrokerView]]:
    return {broker: views.of for broker, views in answers.items()}


def _left_ms(give_up: float) -> float:
    return max(1.0, 1000 * (give_up - time.monotonic()))
