"""Consumers of one group without a broker: each runs a function of the test, on a
simulated machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from random import Random
from typing import Any

import orjson

from coopstreams.commit import cluster_policy
from coopstreams.consumer import CooperativeConsumer, RecordFilter
from coopstreams.group.coordinator_interface import Hooks, Identity, Timings
from coopstreams.log.kafka.wiring import Wiring
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.topology.keys import KeyRange, key_hash
from tests.simulation.cluster import MachineClient, MachineCluster, MachineLog
from tests.simulation.fibers import Machine, Scheduler
from tests.simulation.group import Group, SimCoordinator
from tests.simulation.kafka.plan import NoFaults, Plan
from tests.simulation.producer import Producer

GROUP = "readers"
Body = Callable[["Member"], None]


class Member:
    """A consumer, and its machine."""

    def __init__(
        self,
        members: Members,
        name: str,
        settings: dict[str, Any],
        dropped: RecordFilter | None = None,
    ) -> None:
        self.machine = Machine(members.scheduler, name)
        self.client = MachineClient(
            members.cluster, self.machine, Random(name), 0.001, lambda *_: None
        )
        self._group = members.group
        wiring = Wiring(
            self.machine,
            lambda *_: MachineLog(self.client),
            lambda _: self._coordinator,
        )
        self.consumer = CooperativeConsumer(
            {"bootstrap.servers": "nowhere:1", "group.id": GROUP, **settings},
            filter=dropped,
            wiring=wiring,
        )

    def producer(self) -> Producer:
        """Return a producer for transactions of this consumer."""
        producer = Producer(self.client, self.consumer.transactional_id)
        producer.init_transactions()
        return producer

    def _coordinator(
        self, name: str, identity: Identity, timings: Timings, hooks: Hooks
    ) -> SimCoordinator:
        return SimCoordinator(self.client, self._group, name, timings, hooks, identity)


class Members:
    """A cluster with two topics of one partition, which may be shared, and a group."""

    def __init__(
        self, keys: Sequence[bytes], plan: Plan | None = None, **settings: Any
    ) -> None:
        """`keys`: of the records of the first topic. `settings`: of all consumers, with
        `_` for each dot.
        """
        self.scheduler = Scheduler(Random(0))
        self.group = Group(self.scheduler, lambda: self.cluster.brokers.answers(GROUP))
        self.cluster = MachineCluster(
            self.scheduler,
            plan or NoFaults(),
            self.group.check,
            transaction_timeout_s=15.0,
        )
        self._settings = {
            name.replace("_", "."): value for name, value in settings.items()
        }
        self._machines: list[Machine] = []
        self._writer = MemoryWriter(self.cluster.state, None)
        for spec in (
            *(TopicSpec(name, 1) for name in ("in", "more", "out")),
            cluster_policy.topic_spec(),
        ):
            self.cluster.state.create_topic(spec)
        for name in ("in", "more"):
            self.allow("accept.range.fetch", True, name)
        self.write("in", *keys)

    def write(self, topic: str, *keys: bytes) -> None:
        """Write a record of each of these keys."""
        for key in keys:
            self._writer.append(topic, [key], [b""], [0])

    def allow(self, setting: str, value: bool, topic: str = "") -> None:
        """Set the policy of the cluster, or of a topic."""
        self._writer.append(
            cluster_policy.TOPIC,
            [orjson.dumps([setting, topic])],
            [orjson.dumps(value)],
            [0],
        )

    def start(self, name: str, body: Body, dropped: RecordFilter | None = None) -> None:
        """Start a consumer with this filter and this program. `run` raises the
        program's error.
        """
        member = Member(self, name, self._settings, dropped)
        self._machines.append(member.machine)
        member.machine.thread(lambda: body(member), "main").start()

    def run(self, seconds: float) -> None:
        """Advance the time."""
        self.scheduler.run(self.scheduler.now + seconds)
        for _, error in self.scheduler.errors:
            raise error

    def close(self) -> None:
        """Release all consumers."""
        self.scheduler.close(self._machines)


@contextmanager
def members(
    keys: Sequence[bytes], plan: Plan | None = None, **settings: Any
) -> Iterator[Members]:
    """Return a group without members."""
    with closing(Members(keys, plan, **settings)) as group:
        yield group


def keys_of(key_range: KeyRange, count: int) -> list[bytes]:
    """Return this many keys of a key range."""
    found = (
        key
        for number in range(10_000)
        if key_hash(key := b"key-%d" % number) in key_range
    )
    return [next(found) for _ in range(count)]
