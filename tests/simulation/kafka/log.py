"""A simulated cluster as the `Log` of one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import TypeVar

from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.log import Check, GroupFence, TopicSpec
from coopstreams.log.memory.transactions import Offsets
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.plan import Kind
from tests.simulation.kafka.reader import SimulatedReader
from tests.simulation.kafka.writer import SimulatedWriter

T = TypeVar("T")


class SimulatedLog:
    """The cluster as one process uses it.

    `answer_s`: how long a request waits for its answer; None: as long as brokers may be
    unreachable. `settles`: whether writers end hanging transactions of their id, as
    `KafkaWriter` does.
    `kept_s`: how long records outside transactions wait to be sent.
    """

    def __init__(
        self,
        client: Client,
        *,
        timeout_s: float = 30.0,
        answer_s: float | None = None,
        settles: bool = True,
        kept_s: float = inf,
    ) -> None:
        self._client = client
        self._cluster = client.cluster
        self._state = client.cluster.state
        self.timeout_s = timeout_s
        self._answer_s = timeout_s if answer_s is None else answer_s
        self._settles, self._kept_s = settles, kept_s

    def reader(self, *, committed_only: bool = True) -> SimulatedReader:
        """Return a reader of committed records only, or of all."""
        return SimulatedReader(self._client, committed_only=committed_only)

    def writer(
        self,
        transactional_id: str | None = None,
        written: Callable[[], Collection[str]] | None = None,
    ) -> SimulatedWriter:
        """Return a writer; a transactional one takes over its id."""
        looks = (written or self.partitions) if self._settles else None
        return SimulatedWriter(
            self._client,
            transactional_id,
            self.end_offset,
            self._answer_s,
            looks,
            self._kept_s,
        )

    def settle(self, dead: Callable[[str], bool], written: Collection[str]) -> None:
        """End hanging transactions of unused ids in these topics."""
        for id_, producer in self._state.producers.items():
            if dead(id_) and not producer.open and self._cluster.brokers.answers(id_):
                self._cluster.settle(producer, written)

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        """Return the partition count of each topic asked for (all: None) that exists."""
        known = self._ask(
            "topics",
            "",
            lambda: {
                name: len(topic.partitions)
                for name, topic in self._state.topics.items()
            },
        )
        return (
            known
            if topics is None
            else {name: known[name] for name in topics if name in known}
        )

    def create_topics(
        self, specs: Sequence[TopicSpec], check: Check | None = None
    ) -> None:
        """Create the topics that do not exist yet."""
        for spec in specs:
            if spec.partitions < 1:
                raise LogError(
                    f'topic "{spec.name}" cannot have {spec.partitions} partitions'
                )
            self._ask(
                "create topics",
                spec.name,
                lambda spec=spec: self._state.create_topic(spec),  # type: ignore[misc]
                check,
            )

    def delete_topics(self, names: Sequence[str], check: Check | None = None) -> None:
        """Delete these topics; one that does not exist is fine."""
        for name in names:
            self._ask(
                "delete topics",
                name,
                lambda name=name: self._state.delete_topic(name),  # type: ignore[misc]
                check,
            )

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the topic's configuration as it was given."""
        return self._ask(
            "describe topic", topic, lambda: dict(self._state.topic(topic).spec.config)
        )

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configuration of each of these topics, in one request."""
        return self._ask(
            "describe topic",
            ", ".join(topics),
            lambda: {
                topic: dict(self._state.topic(topic).spec.config) for topic in topics
            },
        )

    def topic_id(self, topic: str) -> str:
        """Return the topic's id, which differs after it is recreated."""
        return self._ask("describe topic", topic, lambda: self._state.topic(topic).id)

    def start_offset(self, partition: TopicPartition) -> int:
        """Return the first offset the log still has."""
        return self._ask(
            "start offset", partition, lambda: self._state.partition(partition).start
        )

    def end_offset(self, partition: TopicPartition) -> int:
        """Return the true end; with the fault `Stale`, an earlier one."""
        return self._ask(
            "end offset", partition, lambda: self._state.partition(partition).end
        )

    def end_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the true end of each of these partitions; with the fault `Stale`,
        earlier ones.
        """
        return {partition: self.end_offset(partition) for partition in partitions}

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset of a record that is not older than this; the end if
        there is none.
        """
        return self._ask(
            "start offset",
            partition,
            lambda: self._state.partition(partition).offset_at(timestamp_ms),
        )

    def reported_end(self, partition: TopicPartition) -> int:
        """Return the end that a broker reports: the same request here."""
        return self.end_offset(partition)

    def replicas(self, topic: str) -> int:
        """Return the replicas that the topic was created with; 0: it does not exist."""
        found = self._state.topics.get(topic)
        return 0 if found is None else max(1, found.spec.replication)

    def silent_replicas(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, frozenset[int]]:
        """Return nothing: no record waits for replicas."""
        return {}

    def delete_before(
        self, partition: TopicPartition, offset: int, check: Check | None = None
    ) -> None:
        """Delete the records below an offset."""
        self._ask(
            "delete records",
            partition,
            lambda: self._cluster.delete_before(partition, offset),
            check,
        )

    def close(self) -> None:
        """Do nothing: it has no connections."""

    def _ask(
        self,
        kind: Kind,
        where: TopicPartition | str,
        effect: Callable[[], T],
        check: Check | None = None,
    ) -> T:
        """Return the answer to a request. `check`: see `Check`; it is asked before each
        attempt.
        """
        if check is not None:
            check(where if isinstance(where, str) else where.topic)
        return self._client.ask(kind, where, effect, self._answer_s)


class SimulatedGroup:
    """A member's requests for its group besides joining: offsets, and open
    transactions.

    The `check_fence` of the cluster knows members and generations.
    """

    def __init__(self, client: Client, group: str, *, timeout_s: float = 30.0) -> None:
        self._client = client
        self._cluster = client.cluster
        self._group = group
        self._timeout_s = timeout_s

    def commit(self, offsets: Offsets, fence: GroupFence) -> None:
        """Commit offsets outside of any transaction.

        Raises:
            FencedError: the fence is stale.
            LogError: retryable: it may or may not have counted.
        """
        self._client.ask(
            "commit offsets",
            self._group,
            lambda: self._cluster.state.send_offsets(offsets, fence),
            self._timeout_s,
        )

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        """Return the offsets of these partitions (all that have one: None); `stable`:
        none that an open transaction may still change.
        """
        group = self._cluster.state.group(self._group)
        committed, open_ = self._client.ask(
            "fetch offsets",
            self._group,
            lambda: (group.committed, group.unstable),
            self._timeout_s,
        )
        asked = list(committed if partitions is None else partitions)
        unstable = open_.intersection(asked) if stable else frozenset[TopicPartition]()
        return FetchedOffset(
            {
                partition: committed.get(partition)
                for partition in asked
                if partition not in unstable
            },
            unstable,
        )

    def open_transactions(self) -> frozenset[str]:
        """Return the transactional ids with open transactions, of the coordinators that
        answer.
        """
        producers, answers = (
            self._cluster.state.producers,
            self._cluster.brokers.answers,
        )

        def opened() -> frozenset[str]:
            return frozenset(
                id_
                for id_, producer in producers.items()
                if producer.open and answers(id_)
            )

        return self._client.ask(
            "list transactions", self._group, opened, self._timeout_s
        )

    def end_transaction(
        self, transactional_id: str, timeout_ms: int | None = None
    ) -> None:
        """Abort the open transaction of an id, and fence its writer.

        Raises:
            LogError: retryable: no answer in time.
        """
        seconds = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        self._client.take_over(transactional_id, seconds, "end transaction")
