"""How long health takes beside what is hostile or hangs: `python -m
benchmarks.health_beside [--requests N] [--pure]`.

A query server in a process of its own answers `/health/live` while

    nothing              no other request comes
    a hanging registry   clients ask for keys of a store with a schema, whose registry accepts and never answers
    a 1 MB header        clients without a token send `Authorization: Bearer b,b,b…`, one after the other
    a peer of 64 MiB     clients ask for a key of an instance, and for the status, of which another one answers 64 MiB

    p50, p99, max    from the connection to the answer, each time a new one
    others           how many of those other requests ended meanwhile, or are open

The bound that we keep to is 100 ms, on a machine that has a core for the clients.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from coopstreams.common.metrics import Metrics
from coopstreams.log.kafka.native import data_plane
from coopstreams.log.kafka.schema_registry import RegistryClient
from coopstreams.query.access import Access
from coopstreams.query.backend import NotOpen, OpenView, Placement, StoreInfo, peer_of
from coopstreams.query.serving.server import QueryServer
from coopstreams.state.views import GlobalView
from coopstreams.status.model import InstanceStatus
from coopstreams.status.reasons import Health
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.schemas import SchemaSerde
from coopstreams.topology.task_id import TaskId

TOKEN = "a-token-of-the-benchmark"
CLIENTS = 4
PEER_BYTES = 64 << 20
PAUSE_S = 0.01
"""Between two requests for health."""
_SPACES = (1 << 16) * b" "
KEY = serdes.avro({"type": "string"})


class _Instance:
    """An instance that has a task of no rows, and knows another one."""

    application = "benchmark"

    def __init__(self, peer: str) -> None:
        builder = StreamsBuilder(self.application)
        builder.stream("in", key=serdes.text, value=serdes.text).to("out")
        self.topology: Structure = builder.build()
        other = peer_of("other", peer, (TaskId(0, 0, WHOLE),), https=False)
        self._placement = Placement(1, "here", (other,))

    def stores(self) -> dict[str, StoreInfo]:
        names = {"typed": KEY, "rows": serdes.text}
        return {
            name: StoreInfo(name, "key_value", 0, 1, key, serdes.text)
            for name, key in names.items()
        }

    def placement(self) -> Placement:
        return self._placement

    def sources(self, task: TaskId) -> tuple[TopicPartition, ...]:
        return (TopicPartition("in", task.partition),)

    def view(self, store: str, partition: int, hash_: int) -> OpenView | NotOpen:
        return NotOpen(f"{store} {partition} {hash_} is on the other instance")

    def standby_view(
        self,
        store: str,
        partition: int,
        key_range: KeyRange,
        max_staleness_ms: int,
        *,
        cut: bool,
    ) -> OpenView | NotOpen:
        asked = partition, key_range, max_staleness_ms, cut
        return NotOpen(f"{store} {asked} has no standby")

    def views(self, _: str) -> list[OpenView | NotOpen]:
        return []

    def global_view(self, _: str) -> GlobalView | None:
        return None

    def health(self) -> Health:
        return Health(live=True, ready=True)

    def status(self) -> InstanceStatus:
        return InstanceStatus(
            id="here",
            url=None,
            state="running",
            live=True,
            ready=True,
            reasons=(),
            tasks=(),
        )

    def busy(self) -> bool:
        return False

    def pause(self, paused: bool) -> None:
        raise NotImplementedError(paused)


def _serve(peer: str, registry: str, told: Connection) -> None:
    """Serve in this process until the other side closes."""
    access = Access({"read": [TOKEN], "operate": [TOKEN]})
    server = QueryServer("127.0.0.1:0", access=access)
    instance = _Instance(peer)
    assert isinstance(KEY, SchemaSerde)
    client = RegistryClient(registry, (("url", registry),), registers=True)
    with KEY.codec.bound(client, ["subject"]):
        server.start(instance, Metrics(instance.application, "here"))
        told.send(server.port)
        with suppress(EOFError):
            told.recv()
        server.stop()


@contextmanager
def _listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the URL of a server that handles each connection by the function, on a
    thread.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def _others(told: Connection) -> None:
    """Be the other instance and the registry, in this process, until the other side
    closes.
    """
    with _listening(_long) as peer, _listening(_silent) as registry:
        told.send((peer, registry))
        with suppress(EOFError):
            told.recv()


def _silent(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(65536):
            pass


def _long(connection: socket.socket) -> None:
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        f"x-coopstreams-instance: other\r\ncontent-length: {PEER_BYTES}\r\n\r\n"
    )
    with suppress(OSError):
        connection.recv(65536)
        connection.sendall(head.encode())
        for _ in range(PEER_BYTES >> 16):
            connection.sendall(_SPACES)
    connection.close()


def _head(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def _exchange(port: int, request: bytes) -> bytes:
    """Return the answer to a request, or as much of it as there is."""
    received = b""
    with (
        suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        with suppress(ConnectionError):  # it was refused while it was still sent
            connection.sendall(request)
        while more := connection.recv(65536):
            received += more
    return received


def _beside(port: int, requests: int, others: list[bytes]) -> tuple[list[float], int]:
    """Return the latencies of health in milliseconds, and how many of the other
    requests ended meanwhile.
    """
    stop = threading.Event()
    ended = [0]

    def ask(request: bytes) -> None:
        while not stop.is_set():
            _exchange(port, request)
            ended[0] += 1

    for number in range(CLIENTS if others else 0):
        request = others[number % len(others)]
        threading.Thread(target=ask, args=(request,), daemon=True).start()
    time.sleep(0.5 if others else 0.0)
    found = []
    for _ in range(requests):
        began = time.perf_counter()
        answer = _exchange(port, _head("/health/live"))
        found.append(1000 * (time.perf_counter() - began))
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        time.sleep(PAUSE_S)
    stop.set()
    return found, ended[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, metavar="N")
    parser.add_argument("--pure", action="store_true", help="without the native front")
    given = parser.parse_args()
    if given.pure:
        os.environ["COOPSTREAMS_NATIVE"] = "0"
    token = f"authorization: Bearer {TOKEN}"
    beside = {
        "nothing": [],
        "a hanging registry": [_head("/v1/stores/typed/keys/base64:AAAAAAcCYQ", token)],
        "a 1 MB header": [
            _head("/v1/stores", f"authorization: Bearer {500_000 * 'b,'}b")
        ],
        "a peer of 64 MiB": [
            _head("/v1/stores/rows/keys/a", token),
            _head("/v1/status", token),
        ],
    }
    table = Table("beside", "requests", "p50 ms", "p99 ms", "max ms", "others")
    context = multiprocessing.get_context("spawn")
    for name, others in beside.items():
        ours, theirs = context.Pipe()
        beside_it = context.Process(target=_others, args=(theirs,))
        beside_it.start()
        peer, registry = ours.recv()
        process = context.Process(target=_serve, args=(peer, registry, theirs))
        process.start()
        found, ended = _beside(ours.recv(), given.requests, others)
        for each in (process, beside_it):
            each.terminate()
            each.join()
        p99 = quantiles(found, n=100)[-1]
        figures = [f"{each:.1f}" for each in (median(found), p99, max(found))]
        table.add_row(name, str(len(found)), *figures, str(ended))
    console = Console(width=100)
    console.print(f"data plane: {data_plane()}")
    console.print(table)


if __name__ == "__main__":
    main()
