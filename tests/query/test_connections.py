"""Clients that are slow, silent, never read, or too many: none holds a connection for
ever, and others are answered.

Deadlines that a test waits for are short; none limits the test's own steps, because a
busy machine may pause.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from coopstreams.query.parameters import RequestLimits
from coopstreams.query.serving.connections import LONGEST_HEAD
from tests.query.cluster import LIMITS, Cluster, Data

MOST = 8


@pytest.fixture(scope="module", params=["", "0"], ids=["front", "no front"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COOPSTREAMS_NATIVE", request.param)
        yield from serving()


def serving() -> Iterator[Cluster]:
    with Cluster(
        1,
        dataclasses.replace(LIMITS, ask_s=0.5, idle_s=5.0, read_s=0.5, entries=10_000),
    ) as cluster:
        cluster.deal(1, {"counts": {f"{i:05}": (i, i) for i in range(30_000)}})
        yield cluster


def connection(cluster: Cluster) -> socket.socket:
    opened = socket.socket()
    opened.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
    )  # small, so that even a short answer has to wait
    opened.settimeout(60)
    opened.connect(("127.0.0.1", cluster["a"].server.port))
    return opened


def answered(cluster: Cluster, request: bytes) -> socket.socket:
    """Return a connection that was answered, at least in part; connect again if it was
    too slow.
    """
    while True:
        client = connection(cluster)
        with suppress(OSError):
            client.sendall(request)
            if client.recv(1) == b"H":
                return client
        client.close()


def answers(cluster: Cluster) -> bool:
    return (
        httpx.get(
            cluster["a"].url + "/health/live", trust_env=False, timeout=60
        ).status_code
        == httpx.codes.OK
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /v1/stores HTTP/1.1\r\nhost: a\r\nx-", b"\x16\x03\x01"],
    ids=["nothing", "half", "other"],
)
def test_who_never_asks_is_closed(cluster: Cluster, beginning: bytes) -> None:
    with connection(cluster) as silent:
        silent.sendall(beginning)
        while received := silent.recv(4096):  # a refusal, or nothing; then the end
            assert received.startswith((b"HTTP/1.1 400", b"Invalid", b"content"))
    assert answers(cluster)


def test_a_second_request_that_never_ends_is_closed_too(cluster: Cluster) -> None:
    with answered(cluster, b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n") as client:
        client.sendall(b"GET /health/live HTT")
        receive_all(client)


def test_a_request_that_begins_just_before_a_connection_has_been_idle_for_too_long_has_its_own_time() -> (
    None
):
    with Cluster(1, dataclasses.replace(LIMITS, idle_s=1.0)) as cluster:
        in_time = False
        while not in_time:
            with answered(
                cluster, b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"
            ) as client:
                while not client.recv(4096).endswith(b"}"):
                    pass
                began = time.monotonic()
                time.sleep(0.8)
                with suppress(OSError):
                    client.sendall(b"GET /health/live HTTP/1.1\r\n")
                    if (
                        in_time := time.monotonic() - began < 1.0
                    ):  # else this machine was paused
                        time.sleep(0.4)
                        client.sendall(b"host: a\r\n\r\n")
                        assert client.recv(1) == b"H"


def test_an_idle_connection_is_kept_for_longer_than_clients_keep_it() -> None:
    kept = httpx.Limits().keepalive_expiry
    assert kept is not None
    assert kept < RequestLimits().idle_s


def test_a_body_that_never_ends_is_not_waited_for(cluster: Cluster) -> None:
    request = (
        b"GET /health/live HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n"
    )
    with (
        answered(cluster, request) as client,
        pytest.raises(OSError, match=r"reset|pipe"),
    ):
        send_for_ever(client)


@pytest.mark.ci
def test_who_never_reads_a_long_answer_is_closed(cluster: Cluster) -> None:
    request = b"GET /v1/stores/counts/range HTTP/1.1\r\nhost: a\r\naccept: application/x-ndjson\r\n\r\n"
    with answered(cluster, request):
        wait_for_the_end_of_all(cluster)


@pytest.mark.ci
@pytest.mark.parametrize(
    "lines", [b"", b"accept: application/x-ndjson\r\n"], ids=["json", "lines"]
)
@pytest.mark.parametrize("chosen", ["", "0"], ids=["front", "no front"])
def test_who_reads_slowly_gets_all_of_a_long_answer(
    chosen: str, lines: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPSTREAMS_NATIVE", chosen)
    rows: Data = {"blobs": {b"%d" % i: (b"x" * 4000, i) for i in range(2000)}}
    with Cluster(1, dataclasses.replace(LIMITS, read_s=1.5, entries=2000)) as cluster:
        cluster.deal(1, rows)
        request = (
            b"GET /v1/stores/blobs/range HTTP/1.1\r\nhost: a\r\nconnection: close\r\n%b\r\n"
            % lines
        )
        whole, longest_s = read_slowly(cluster, request)
        while len(whole) < 2000 * 4000 and longest_s > 0.5:  # this machine was paused
            whole, longest_s = read_slowly(cluster, request)
        assert whole.count(b'"key"') == 2000


def read_slowly(cluster: Cluster, request: bytes) -> tuple[bytes, float]:
    """Return an answer as far as it comes, and the longest time between two of its
    pieces.
    """
    received, longest_s = bytearray(), 0.0
    with connection(cluster) as client, suppress(ConnectionResetError):
        client.sendall(request)
        at = time.monotonic()
        while some := client.recv(4096):
            received += some
            longest_s, at = max(longest_s, time.monotonic() - at), time.monotonic()
            time.sleep(0.001)
    return bytes(received), longest_s


def test_connections_beyond_the_limit_are_refused_in_our_words_and_others_are_answered_again() -> (
    None
):
    with Cluster(
        1, dataclasses.replace(LIMITS, connections=MOST, ask_s=600)
    ) as cluster:
        held = [connection(cluster) for _ in range(MOST)]
        with connection(cluster) as one_more:
            answer = receive_all(one_more)
        assert answer.startswith(
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
        )
        assert b'"error":"TOO_MANY_CONNECTIONS"' in answer
        assert b'"retryable":true' in answer
        for one in held:
            one.close()
        wait_for_the_end_of_all(cluster)
        assert answers(cluster)


def wait_for_the_end_of_all(cluster: Cluster) -> None:
    while cluster["a"].server.connections():
        time.sleep(0.01)


def send_for_ever(client: socket.socket) -> None:
    while True:
        client.sendall(1024 * b"x")


def receive_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


def test_an_instance_without_a_connection_left_is_not_taken_for_another_process() -> (
    None
):
    limits = dataclasses.replace(LIMITS, retry_s=0.0, connections=MOST, ask_s=600)
    with Cluster(2, limits) as cluster, ExitStack() as open_ones:
        cluster.deal(2, {"counts": {"be": (2, 1)}})
        owner, other = cluster.owner("counts", "be"), cluster.other("counts", "be")
        for _ in range(MOST):
            open_ones.enter_context(
                socket.create_connection(("127.0.0.1", owner.server.port))
            )
        answer = httpx.get(
            f"{other.url}/v1/stores/counts/keys/be", trust_env=False, timeout=60
        )
    assert (answer.status_code, answer.json()["error"]) == (503, "TASK_MOVING")
    assert (
        f"{owner.url} takes no more connections: {MOST} connections are open"
        in answer.json()["message"]
    )


LINES = b"".join(b"x-%d: y\r\n" % number for number in range(101))


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    "head",
    [
        b"authorization: Bearer " + 500_000 * b"b,",
        b"x: " + LONGEST_HEAD * b"y",
        LINES,
        1_000_000 * b"a:\r\n",
    ],
    ids=["a header of 1 MB", "64 KiB", "101 lines", "a million lines"],
)
def test_a_head_that_is_too_long_is_refused_before_it_is_read(
    cluster: Cluster, head: bytes, at_once: bool
) -> None:
    """The parser took a third of a second for such a head, and the comparison of its
    tokens a second.
    """
    request = b"GET /v1/stores HTTP/1.1\r\nhost: a\r\n" + head + b"\r\n\r\n"
    pieces = [request] if at_once else [request[:40], request[40:5000], request[5000:]]
    with connection(cluster) as client:
        with suppress(ConnectionError):  # it was refused while it still sent
            for piece in pieces:
                client.sendall(piece)
        received = b""
        with suppress(ConnectionError):
            while more := client.recv(4096):
                received += more
        assert received.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert b'"error":"HEAD_TOO_LONG"' in received
    assert answers(cluster)


def test_of_requests_that_come_together_each_has_its_own_head(cluster: Cluster) -> None:
    """A limit for all that has come at once would refuse the second one."""
    of_100_lines = LINES.partition(b"\r\n")[2]
    request = b"GET /v1/stores HTTP/1.1\r\n" + of_100_lines.replace(b"x-1:", b"host:")
    with connection(cluster) as client:
        client.sendall(
            2 * (request + b"\r\n") + b"POST /v1/pause HTTP/1.1\r\n" + LINES + b"\r\n"
        )
        received = b""
        with suppress(ConnectionError):
            while more := client.recv(4096):
                received += more
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.count(b"HTTP/1.1 431 ") == 1
