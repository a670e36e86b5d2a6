"""A group of cooperative consumers without a broker: the public `CooperativeConsumer`
in users' programs, with faults of its own besides those of `stage`.

    programs    finish records in any order, also on other threads; commit all, ranges, or leave it to the consumer;
                delay revocations; work for longer than the group waits; under exactly-once, write in transactions
    policy      an administrator turns sharing and individual commits off and on
    topics      the commit topic is compacted; source topics are deleted and made anew
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import orjson

from coopstreams.commit import cluster_policy
from coopstreams.consumer import RecordFilter
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.simulation.book import Book
from tests.simulation.fibers import EPOCH_MS
from tests.simulation.stage import TRANSACTION_S, Stage
from tests.simulation.topologies import KEYS
from tests.simulation.user import User

GROUP = "readers"
OUT = TopicPartition("out", 0)
EVENTS = (
    "produce",
    "produce",
    "produce",
    "start",
    "start",
    "kill",
    "stop",
    "pause",
    "resume",
    "rest",
    "rest",
    "plan",
    "broker",
    "broker",
    "policy",
    "compaction",
)
"""Events, each as often as its weight."""
REMAKES = 0.25
"""The share of histories with topics that are made anew."""
BY_TIME = 0.3
"""The share of histories whose consumers commit by time."""
POLICY = (
    ("", "accept.individual.commit"),
    ("in", "accept.range.fetch"),
    ("in", "reserve.message.value.range.fetch"),
)


class Consumers(Stage[User]):
    """One history of consumers."""

    events_that_happen = EVENTS

    def __init__(self, seed: int, *, exactly_once: bool) -> None:
        super().__init__(seed, GROUP, exactly_once=exactly_once)
        self.topics = ("in", "more") if self.random.random() < 0.3 else ("in",)
        self._remakes = Random(f"{seed} topics").random() < REMAKES
        self._by_time = Random(f"{seed} auto").random() < BY_TIME
        for topic in self.topics:
            self.cluster.state.create_topic(
                TopicSpec(topic, self.random.choice((1, 2, 3)))
            )
        for spec in (TopicSpec("out", 1), cluster_policy.topic_spec()):
            self.cluster.state.create_topic(spec)
        self._writer = MemoryWriter(self.cluster.state, None)
        for name in ("in", "more"):
            self._allow((name, "accept.range.fetch"), True)
        denied = (
            frozenset([KEYS[0].encode()])
            if self.random.random() < 0.25
            else frozenset[bytes]()
        )
        self.calm = False
        """Whether nothing goes wrong any more."""
        self.filter = RecordFilter(deny_keys=denied) if denied else None
        self.strategy = self.random.choice(
            ("cooperative-sticky", "range", "roundrobin")
        )
        self.order = self.random.choice(("none", "none", "none", "offset"))
        self.book = Book(denied, lambda: self.scheduler.now)
        for topic in self.topics:
            self.book.made(topic, self.cluster.state.topic(topic).id)
        self._reader = MemoryReader(self.cluster.state, committed_only=True)
        self._reader.assign({OUT: Position(0)})
        self._begin_stalls()

    def settings(self, random: Random) -> dict[str, Any]:
        """Return the settings of a consumer."""
        return {
            "bootstrap.servers": "nowhere:1",
            "group.id": GROUP,
            "partition.assignment.strategy": self.strategy,
            "commit.order": self.order,
            "transaction.timeout.ms": int(1000 * TRANSACTION_S),
            "session.timeout.ms": 6_000,
            "max.poll.interval.ms": 10_000,
            "max.revoke.delay.ms": random.choice((1_000, 5_000)),
            "max.num.ranges.to.commit": random.choice((2, 10_000)),
            "max.individual.commits": random.choice((3, 50_000)),
            "max.bytes.key.range.cache": random.choice((1, 500, 1_000_000)),
            "allow.individual.commit": random.random() < 0.9,
            "enable.auto.commit": self._by_time,
            "auto.commit.interval.ms": 700,
        }

    # --- what happens ---

    def _born(self, number: int, life: int) -> User:
        return User(self, number, life)

    def produce(self, count: int) -> None:
        """Write records."""
        now_ms = EPOCH_MS + int(self.scheduler.now * 1000)
        for _ in range(count):
            topic, key = (
                self.random.choice(self.topics),
                self.random.choice(KEYS).encode(),
            )
            ends = {
                at.where: at.end for at in self.cluster.state.topic(topic).partitions
            }
            self._writer.append(
                topic, [key], [b"%d" % self.book.newest(topic)], [now_ms]
            )
            (at,) = (
                where
                for where, end in ends.items()
                if self.cluster.state.partition(where).end > end
            )
            self.book.written(at, ends[at], key)

    def _do_more(
        self, event: str, living: Sequence[User], awake: Sequence[User]
    ) -> None:
        match event:
            case "policy":
                self._allow(self.random.choice(POLICY), self.random.random() < 0.6)
            case "compaction" if self._remakes and self.random.random() < 0.7:
                self._remake(self.random.choice(self.topics))
            case "compaction" if COMMIT_TOPIC in self.cluster.state.topics:
                self.say("the commit topic is compacted")
                self.cluster.compact(COMMIT_TOPIC)

    def _end_the_rest(self) -> None:
        self.calm = True

    def _remake(self, topic: str) -> None:
        self.say(f"{topic} is made anew")
        self.cluster.remake(topic)
        self.book.made(topic, self.cluster.state.topic(topic).id)

    def _allow(self, what: tuple[str, str], allowed: bool) -> None:
        topic, name = what
        self.say(f"an administrator sets {name}={allowed} {topic}")
        self._writer.append(
            cluster_policy.TOPIC,
            [orjson.dumps([name, topic])],
            [orjson.dumps(allowed)],
            [0],
        )

    # --- oracles ---

    def _told_by_oracles(self, *, whole: bool) -> Iterator[tuple[str, list[str]]]:
        yield "members", self.group.wrong
        yield from self.book.wrong.items()
        for run in self._reader.fetch(1 << 20, 0):
            self.book.told(run.columns)
        if whole:
            yield (
                "progress",
                [*self.book.lacking(results=self.exactly_once), *self._not_committed()],
            )

    def _not_committed(self) -> list[str]:
        """Return the partitions in which the group has not reached the end, by its
        plain offsets.
        """
        committed = self.cluster.state.group(GROUP).committed
        ends = {
            at.where: at.end
            for topic in self.topics
            for at in self.cluster.state.topic(topic).partitions
            if at.end
        }
        return [
            f"{at} ends at {end}, and is committed up to {committed.get(at)}"
            for at, end in ends.items()
            if committed.get(at, (None,))[0] != end
        ]

    def _reasons(self) -> str:
        return "; ".join(user.reasons() for user in self.living)
