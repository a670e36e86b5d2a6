"""Three real Kafka brokers, each also a controller, and faults of each.

All topics have three replicas, and a write needs two, so the cluster tolerates the loss
of one broker. Brokers have the numbers that Kafka gives them: 1, 2, 3.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from rich.console import Console

from coopstreams.dev.broker import KafkaBroker, cluster_id
from coopstreams.dev.jars import KAFKA
from coopstreams.dev.process import free_port
from tests.conftest import Kafka

NODES = (1, 2, 3)
MEND_TIMEOUT_S = 120.0
_GROUP, _TRANSACTION = 0, 1
_FIND_COORDINATOR = 10


class ThreeBrokers:
    """A cluster of three nodes in a folder, as a context manager. A stopped or paused
    broker stays so until `start` or `mend`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        console: Console | None = None,
        version: str = KAFKA,
    ) -> None:
        ports = _ports(2 * len(NODES))
        controllers, cluster = (
            {node: next(ports) for node in NODES},
            cluster_id(uuid.uuid4()),
        )
        self.brokers = {
            node: KafkaBroker(
                folder / f"broker-{node}",
                port=next(ports),
                controller_port=controllers[node],
                cluster=cluster,
                settings=_settings(controllers, node) | dict(settings or {}),
                console=console,
                version=version,
            )
            for node in NODES
        }
        self.paused: set[int] = set()
        self._kafka: Kafka | None = None

    def __enter__(self) -> Self:
        try:
            self.mend()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all brokers at once: their data is not needed any more."""
        for broker in self.brokers.values():
            broker.kill()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, including those that are down."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def kafka(self) -> Kafka:
        """A `Kafka` for tests that makes topics of three replicas, with unique names."""
        if self._kafka is None:
            self._kafka = Kafka(
                self.bootstrap,
                AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2}),
                replicas=len(NODES),
            )
        return self._kafka

    @property
    def living(self) -> list[int]:
        """The brokers that run and are not paused."""
        return [
            node
            for node, broker in self.brokers.items()
            if node not in self.paused and broker.running is not None
        ]

    def kill(self, node: int) -> None:
        """End a broker without warning, as a power failure would."""
        self.paused.discard(node)
        self.brokers[node].kill()

    def stop(self, node: int) -> None:
        """Ask a broker to end: it hands its leaders over first."""
        self.paused.discard(node)
        self.brokers[node].stop()

    def pause(self, node: int) -> None:
        """Pause a broker: its connections stay open, and requests get no answer."""
        self.paused.add(node)
        self.brokers[node].pause()

    def resume(self, node: int) -> None:
        """Resume a paused broker; for a while its metadata may be out of date."""
        self.paused.discard(node)
        self.brokers[node].resume()

    def start(self, node: int) -> None:
        """Start or resume a broker; return when it answers."""
        self.paused.discard(node)
        self.brokers[node].resume()
        self.brokers[node].start()

    def mend(self) -> None:
        """Start all brokers, and wait until every partition has a leader and all its
        replicas.
        """
        with ThreadPoolExecutor(
            len(NODES)
        ) as threads:  # the first two wait for each other
            list(threads.map(self.start, set(NODES) - set(self.living)))
        deadline = time.monotonic() + MEND_TIMEOUT_S
        while (missing := self._missing()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not missing, (
            f"partitions without all their replicas after {MEND_TIMEOUT_S:g} s: {missing}"
        )

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """Return the leader of a partition; None: it has none."""
        found = (
            self._admin()
            .list_topics(topic, timeout=30)
            .topics[topic]
            .partitions[partition]
            .leader
        )
        return found if found > 0 else None

    def group_coordinator(self, group: str) -> int | None:
        """Return the coordinator of a group; None: it has none at present."""
        return self._coordinator(_GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> int | None:
        """Return the coordinator of a transactional id; None: it has none at present."""
        return self._coordinator(_TRANSACTION, transactional_id)

    def controller(self) -> int:
        client: Any = KafkaAdminClient(
            bootstrap_servers=[self.brokers[node].bootstrap for node in self.living],
            request_timeout_ms=2000,
        )
        deadline = time.monotonic() + MEND_TIMEOUT_S
        try:
            while True:
                try:
                    return int(
                        client.describe_metadata_quorum()["topics"][0]["partitions"][0][
                            "leader_id"
                        ]
                    )
                except KafkaError:  # the request went to a paused broker
                    assert time.monotonic() < deadline, (
                        "no controller says that it is one"
                    )
        finally:
            client.close()

    def _admin(self) -> AdminClient:
        """A new client that knows only the living brokers: an older one may ask a
        paused one, and wait.
        """
        servers = ",".join(self.brokers[node].bootstrap for node in self.living)
        return AdminClient({"bootstrap.servers": servers, "log_level": 2})

    def _missing(self) -> list[str]:
        found = self._admin().list_topics(timeout=30)
        missing = [f"broker {node}" for node in set(NODES) - found.brokers.keys()]
        return missing + [
            f"{topic.topic}-{partition.id}"
            for topic in found.topics.values()
            for partition in topic.partitions.values()
            if partition.leader < 0 or len(partition.isrs) < len(partition.replicas)
        ]

    def _coordinator(self, kind: int, key: str) -> int | None:
        node = coordinator_by(
            int(self.brokers[self.living[0]].bootstrap.rpartition(":")[2]), kind, key
        )
        return node if node in NODES else None


def coordinator_by(port: int, kind: int, key: str) -> int:
    """Return the broker that the one on this port names as coordinator of a group (0)
    or a transactional id (1); -1: none yet.

    Shape: a FindCoordinator request, version 1; its answer has throttle time, error,
    message, node.
    """
    text, client = key.encode(), b"tests"
    header = struct.pack(">hhih", _FIND_COORDINATOR, 1, 7, len(client)) + client
    request = header + struct.pack(">h", len(text)) + text + struct.pack(">b", kind)
    with closing(
        socket.create_connection(("127.0.0.1", port), timeout=10)
    ) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    _, _, error, length = struct.unpack_from(">iihh", answer)
    (node,) = struct.unpack_from(">i", answer, 12 + max(0, length))
    return -1 if error else int(node)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def _ports(count: int) -> Iterator[int]:
    """Return different free ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return iter(found)


def _settings(controller_ports: Mapping[int, int], node: int) -> dict[str, str]:
    """Return the changes that make a node one of several, with three replicas of
    everything as in production.

    Shape: node id -> controller port, of all nodes. A write counts when two of three
    replicas have it.
    """
    return {
        "node.id": str(node),
        "controller.quorum.voters": ",".join(
            f"{id_}@127.0.0.1:{port}" for id_, port in sorted(controller_ports.items())
        ),
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
        # Kafka's default: how long a dead broker stays leader in the metadata.
        "broker.session.timeout.ms": "9000",
    }
