"""Scripted brokers on sockets: a test sets their answers, so no test waits for a real
broker.

The bytes on the wire are Kafka's, by kafka-python's classes of requests and responses,
so the tests cover our whole client, and kafka-python's. Tests marked `broker` cover
Kafka itself.
"""

# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import socketserver
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from struct import unpack
from typing import Any, TypeAlias, cast

from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)

from coopstreams.topology.columns import TopicPartition

Fields: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Callable[[int, Any], Fields | None]
"""Returns the fields of the response, given the broker's id and the request; None: the
broker hangs.
"""

_REQUESTS = {
    found.API_KEY: found
    for module in (admin, consumer, metadata, producer)
    for name in dir(module)
    if name.endswith("Request") and hasattr(found := getattr(module, name), "API_KEY")
}


class Brokers:
    """Some brokers, numbered from 1. All know each other, the leaders, and one
    coordinator, unless changed.
    """

    def __init__(self, count: int) -> None:
        self.answers: dict[Any, Answer] = {
            ApiVersionsRequest: self._versions,
            MetadataRequest: self._metadata,
            FindCoordinatorRequest: self._coordinator,
        }
        self.asked: list[tuple[int, str]] = []
        """Broker and name of each request."""
        self.coordinator = 1
        self.named: dict[int, int] = {}
        """The coordinator that a broker names, where it names another one."""
        self.known = {
            number: set(range(1, count + 1)) for number in range(1, count + 1)
        }
        """The brokers that each one knows."""
        self.views: dict[int, dict[TopicPartition, Fields]] = defaultdict(dict)
        """The fields of partitions' metadata, by broker; `lead` sets those of all."""
        self.metadata_version = 0
        """The newest metadata version that they support."""
        self._refusals: dict[str, deque[int]] = defaultdict(deque)
        self.ended = threading.Event()
        self._servers = {number: _Server(number, self) for number in self.known}

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._servers[1].server_address[1]}"

    def refuse(self, request: Any, *codes: int) -> None:
        """Answer the next requests of this kind with these errors."""
        self._refusals[request.__name__] += codes

    def lead(
        self,
        at: TopicPartition,
        leader: int,
        epoch: int = 1,
        *replicas: int,
        by: int | None = None,
    ) -> None:
        """Make all brokers, or one, know this leader of a partition."""
        everybody = list(replicas) or sorted(self.known)
        fields = {
            "leader_id": leader,
            "leader_epoch": epoch,
            "replica_nodes": everybody,
            "isr_nodes": everybody,
        }
        for number in self.known if by is None else [by]:
            self.views[number][at] = fields

    def count(self, request: Any) -> int:
        """Return how many requests of this kind came."""
        return sum(name == request.__name__ for _, name in self.asked)

    def answer(self, number: int, request: Any) -> Fields | None:
        name = type(request).__name__
        self.asked.append((number, name))
        if self._refusals[name]:
            return {"error_code": self._refusals[name].popleft()}
        return self.answers[type(request)](number, request)

    def start(self) -> None:
        for server in self._servers.values():
            threading.Thread(
                target=server.serve_forever, args=(0.01,), daemon=True
            ).start()

    def close(self) -> None:
        self.ended.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def _versions(self, number: int, request: Any) -> Fields:
        keys = [
            {"api_key": key, "min_version": 0, "max_version": one.max_version}
            for key, one in _REQUESTS.items()
        ]
        feature = {
            "name": "metadata.version",
            "min_version": 0,
            "max_version": self.metadata_version,
        }
        return {"api_keys": keys, "supported_features": [feature]}

    def _metadata(self, number: int, request: Any) -> Fields:
        wanted = (
            None if request.topics is None else {topic.name for topic in request.topics}
        )
        topics: dict[str, list[Fields]] = {}
        for at, fields in self.views[number].items():
            if wanted is None or at.topic in wanted:
                topics.setdefault(at.topic, []).append(
                    {"partition_index": at.partition, **fields}
                )
        return {
            "controller_id": 1,
            "brokers": [
                self._address(one, "node_id") for one in sorted(self.known[number])
            ],
            "topics": [
                {"name": name, "partitions": partitions}
                for name, partitions in topics.items()
            ],
        }

    def _coordinator(self, number: int, request: Any) -> Fields:
        place = self._address(self.named.get(number, self.coordinator), "node_id")
        return {
            **place,
            "coordinators": [{"key": key, **place} for key in request.coordinator_keys],
        }

    def _address(self, number: int, name: str) -> dict[str, Any]:
        return {
            name: number,
            "host": "127.0.0.1",
            "port": self._servers[number].server_address[1],
        }


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, number: int, brokers: Brokers) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.number, self.brokers = number, brokers


class _Session(socketserver.StreamRequestHandler):
    """One connection: requests in sequence, as in Kafka."""

    def handle(self) -> None:
        server = cast(_Server, self.server)
        while len(size := self.rfile.read(4)) == 4:
            data = self.rfile.read(int.from_bytes(size, "big"))
            key, version = unpack(">hh", data[:4])
            request = _REQUESTS[key].decode(data, version=version, header=True)
            fields = server.brokers.answer(server.number, request)
            if fields is None:
                server.brokers.ended.wait()
                return
            kind: Any = ResponseClassRegistry.get_response_class(request.header)
            response = _made(kind[None], fields, version)
            response.with_header(request.header.correlation_id)
            self.wfile.write(response.encode(header=True, framed=True))


def _made(kind: Any, fields: Fields, version: int) -> Any:
    """Return a message of kafka-python's with these fields, and defaults for the
    others.
    """
    values = {}
    for name, value in fields.items():
        field = kind.fields[name]
        nested = field.is_struct_array()
        values[name] = (
            [_made(field.data_class, each, version) for each in value]
            if nested
            else value
        )
    return kind(version=version, **values)


@contextmanager
def brokers(count: int = 1) -> Iterator[Brokers]:
    """Brokers that run until the end of the block."""
    made = Brokers(count)
    made.start()
    with closing(made):
        yield made
