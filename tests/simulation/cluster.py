"""The cluster as a simulated machine sees it: a `MemoryLog` behind a network. It is the machine's `Log`.

A writer keeps records as a producer's queue does: some are in the log at once, the rest when it is flushed. So a process that is stopped
between the two still has them when it wakes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from coopstreams.log.log import GroupFence, Position, Run, TopicSpec
from coopstreams.log.memory import MemoryLog
from coopstreams.log.memory_reader import MemoryReader
from coopstreams.log.memory_writer import MemoryWriter
from coopstreams.topology.clocks import ClockColumns
from coopstreams.topology.columns import Headers, Int64s, TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.program import TimestampColumn
from tests.simulation.faults import Network, T
from tests.simulation.fibers import Fiber, Machine


MESSAGE_TIMEOUT_S = 10.0
"""After which a producer gives a record up that it has not sent: see `tasks.parts`."""


def lost(why: str) -> LogError:
    """A question without an answer, as the clients say it."""
    return LogError(why, retryable=True)


class Cluster:
    """The brokers: the log, and who waits for something to read."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.waiting: set[Fiber] = set()


class SimReader:
    """A `Reader` of a machine."""

    def __init__(self, log: SimLog, reader: MemoryReader) -> None:
        self._of, self._reader = log, reader

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        self._reader.assign(positions)

    def route(
        self,
        partition: TopicPartition,
        ranges: Sequence[KeyRange],
        timestamps: TimestampColumn | None = None,
        clocks: ClockColumns | None = None,
    ) -> None:
        self._reader.route(partition, ranges, timestamps, clocks)

    def hold(self, partition: TopicPartition, held: bool) -> None:
        self._reader.hold(partition, held)

    def fetch(self, max_records: int, timeout_s: float) -> list[Run]:
        """Return what is there; a fetch may bring less than there is, and late."""
        machine, network = self._of.machine, self._of.network
        give_up = machine.now() + timeout_s
        machine.sleep(0.0 if network.calm else network.random.expovariate(1 / network.latency_s))
        most = max_records if network.calm else min(max_records, 1 + int(network.random.expovariate(1 / 20)))
        while not (runs := self._reader.fetch(most, 0)):
            left = give_up - machine.now()
            if left <= 0:
                break
            machine.scheduler.wait(left, self._of.cluster.waiting)
        return runs

    def close(self) -> None:
        self._reader.close()


class SimWriter:
    """A `Writer` of a machine."""

    def __init__(self, log: SimLog, writer: MemoryWriter, name: str) -> None:
        self._of, self._writer, self._name = log, writer, name
        self._queue: list[tuple[float, Callable[[], None]]] = []

    def append(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        *,
        partitions: int | Int64s | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> None:
        """Queue these records; some go out at once."""
        row = list(keys), list(values), list(timestamps)
        self._queue.append((self._of.machine.now(), lambda: self._writer.append(topic, *row, partitions=partitions, headers=headers)))
        if self._of.network.random.random() < 0.3:
            self._send()

    def flush(self, timeout_s: float) -> None:  # noqa: ARG002 the network has its own
        self._of.call(f"{self._name}: flushing", self._send)

    def delivered_to(self, partition: TopicPartition) -> int:
        return self._writer.delivered_to(partition)

    def begin(self) -> None:
        if not self._writer._epoch:
            self._of.call(f"{self._name}: registering", self._writer.begin)
        else:
            self._writer.begin()

    def send_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]], fence: GroupFence) -> None:
        self._of.call(f"{self._name}: sending offsets", lambda: self._writer.send_offsets(offsets, fence))

    def commit(self, timeout_s: float) -> None:  # noqa: ARG002
        self._of.call(f"{self._name}: committing", self._commit)

    def abort(self) -> None:
        self._queue.clear()
        self._of.call(f"{self._name}: aborting", self._writer.abort)
        self._of.changed()

    def close(self) -> None:
        self._queue.clear()
        self._of.sure(f"{self._name}: closing", self._writer.close)

    def _commit(self) -> None:
        self._send()
        self._writer.commit(0)
        self._of.changed()

    def _send(self) -> None:
        queue, self._queue = self._queue, []
        for since, each in queue:
            if self._of.machine.now() - since > MESSAGE_TIMEOUT_S:
                raise lost(f"{self._name}: a record waited for too long and was given up")
            each()
        if queue:
            self._of.changed()


class SimLog:
    """The `Log` of a machine."""

    def __init__(self, machine: Machine, cluster: Cluster, network: Network) -> None:
        self.machine, self.cluster, self.network = machine, cluster, network

    def call(self, what: str, do: Callable[[], T]) -> T:
        """Return what the brokers answer.

        Raises:
            LogError: retryable: no answer.
        """
        return self.network.ask(self.machine, what, do, lost)

    def sure(self, what: str, do: Callable[[], T]) -> T:
        """Return what the brokers answer, asked until they do."""
        while True:
            try:
                return self.call(what, do)
            except LogError as error:
                if not error.retryable:
                    raise

    def changed(self) -> None:
        """There may be more to read."""
        self.machine.scheduler.wake(self.cluster.waiting)

    def reader(self, *, committed_only: bool = True) -> SimReader:
        return SimReader(self, self.cluster.log.reader(committed_only=committed_only))

    def writer(self, transactional_id: str | None = None, written: Callable[[], Collection[str]] | None = None) -> SimWriter:  # noqa: ARG002
        name = transactional_id or "a writer"
        return SimWriter(self, self.sure(f"{name}: registering", lambda: self.cluster.log.writer(transactional_id)), name)

    def settle(self, dead: Callable[[str], bool], written: Collection[str]) -> None:
        self.call("settling", lambda: self.cluster.log.settle(dead, written))

    def partitions(self, topics: Sequence[str] | None = None) -> dict[str, int]:
        return self.sure("partitions", lambda: self.cluster.log.partitions(topics))

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        self.sure("creating topics", lambda: self.cluster.log.create_topics(specs))

    def delete_topics(self, names: Sequence[str]) -> None:
        self.sure("deleting topics", lambda: self.cluster.log.delete_topics(names))

    def topic_config(self, topic: str) -> dict[str, str]:
        return self.sure(f"configuration of {topic}", lambda: self.cluster.log.topic_config(topic))

    def topic_id(self, topic: str) -> str:
        return self.sure(f"id of {topic}", lambda: self.cluster.log.topic_id(topic))

    def start_offset(self, partition: TopicPartition) -> int:
        return self.sure(f"start of {partition}", lambda: self.cluster.log.start_offset(partition))

    def end_offset(self, partition: TopicPartition) -> int:
        return self.sure(f"end of {partition}", lambda: self.cluster.log.end_offset(partition))

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        self.sure(f"deleting of {partition}", lambda: self.cluster.log.delete_before(partition, offset))

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a simulated log has no {name!r}")
