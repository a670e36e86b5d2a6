"""Clients that are slow, never ask, never read, or are many: none holds a connection for ever, and others are answered.

Deadlines are shortened, so that a test waits for them in earnest; nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.query.cluster import LIMITS, Cluster

MOST = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    limits = dataclasses.replace(LIMITS, connections=MOST, ask_s=0.5, read_s=0.5, entries=20_000)
    with Cluster(1, limits) as cluster:
        cluster.deal(1, {"counts": {f"{i:05}": (i, i) for i in range(100_000)}})
        yield cluster


def connection(cluster: Cluster) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", cluster["a"].server.port), timeout=60)
    opened.settimeout(60)
    return opened


def answers(cluster: Cluster) -> bool:
    return httpx.get(cluster["a"].url + "/health/live", trust_env=False, timeout=60).status_code == httpx.codes.OK


@pytest.mark.parametrize(
    "beginning", [b"", b"GET /v1/stores HTTP/1.1\r\nhost: a\r\nx-", b"\x16\x03\x01"], ids=["nothing", "half", "other"]
)
def test_who_never_asks_is_closed(cluster: Cluster, beginning: bytes) -> None:
    with connection(cluster) as silent:
        silent.sendall(beginning)
        while received := silent.recv(4096):  # an answer that refuses, or nothing; then the end
            assert received.startswith((b"HTTP/1.1 400", b"Invalid", b"content"))
    assert answers(cluster)


def test_a_second_request_that_never_ends_is_closed_too(cluster: Cluster) -> None:
    with connection(cluster) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += client.recv(65536)
        client.sendall(b"GET /health/live HTT")
        assert client.recv(4096) == b""


def test_a_body_that_never_ends_is_not_waited_for(cluster: Cluster) -> None:
    with connection(cluster) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        with pytest.raises(OSError, match=r"reset|pipe"):
            send_for_ever(client)


def test_who_never_reads_a_long_answer_is_closed(cluster: Cluster) -> None:
    with connection(cluster) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /v1/stores/counts/range HTTP/1.1\r\nhost: a\r\naccept: application/x-ndjson\r\n\r\n")
        assert client.recv(1) == b"H"
        wait_for_the_end_of_all(cluster)


def test_connections_beyond_the_limit_are_refused_in_our_words_and_others_are_answered_again(cluster: Cluster) -> None:
    held = [connection(cluster) for _ in range(MOST)]
    try:
        with connection(cluster) as one_more:
            answer = receive_all(one_more)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n")
        assert b'"error":"TOO_MANY_CONNECTIONS"' in answer
        assert b'"retryable":true' in answer
    finally:
        for one in held:
            one.close()
    wait_for_the_end_of_all(cluster)
    assert answers(cluster)


def wait_for_the_end_of_all(cluster: Cluster) -> None:
    server = cluster["a"].server._server
    assert server is not None
    while server.server_state.connections:
        time.sleep(0.01)


def send_for_ever(client: socket.socket) -> None:
    while True:
        client.sendall(1024 * b"x")


def receive_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))
