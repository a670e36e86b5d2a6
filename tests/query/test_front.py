"""The native front gives the same answers as the server without it, for any client and
any split of the bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import h11
import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coopstreams.log.kafka import native
from coopstreams.query.access import Access
from coopstreams.query.serving.key_answers import KeyAnswers
from coopstreams.query.serving.server import QueryServer
from tests.query.cluster import LIMITS, Cluster, Data, Node

pytestmark = pytest.mark.skipif(
    native.data_plane() != "native", reason="the extension is not installed"
)

DATA: Data = {
    "counts": {f"w{i}": (i, i) for i in range(50)}
    | {"a/b": (1, 1), "": (2, 2), "ö": (3, 3)},
    "numbers": {i: ({"n": i}, i) for i in range(10)},
    "points": {(i, "a"): ({"n": i}, i) for i in range(3)},
    "hours": {("k", 0): (1, 1)},
    "prices": {"k": ([(1, b"1"), (200, b"2")], 200)},
}
ACCESS = Access({"read": ["secret"], "operate": ["other"]})
HOP = (b"date", b"transfer-encoding")
"""Headers that depend on the time or the connection: an error after another answer is
chunked.
"""
MOST = 80
Answers = list[tuple[int, list[tuple[bytes, bytes]], bytes]]


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Cluster, Cluster]]:
    """Return two equal groups: with fronts and without."""
    with ExitStack() as stack:
        clusters = []
        for chosen in ("1", "0"):
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("COOPSTREAMS_NATIVE", chosen)
                cluster = stack.enter_context(
                    Cluster(3, LIMITS, access=[Access(), Access(), ACCESS])
                )
            cluster.deal(2, DATA)
            cluster["b"].names = None
            assert (cluster["a"].server._front is None) == (chosen == "0")
            clusters.append(cluster)
        yield clusters[0], clusters[1]


def ask(cluster: Cluster, node: str, requests: list[tuple[bytes, ...]]) -> Answers:
    """Send requests over one connection, in pieces; return status, headers and body of
    each answer.
    """
    found: Answers = []
    parser = h11.Connection(h11.CLIENT)
    with socket.create_connection(
        ("127.0.0.1", cluster[node].server.port), timeout=60
    ) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pieces in requests:
            for piece in pieces:
                client.sendall(piece)
            head = b"".join(pieces).startswith(b"HEAD")
            parser.send(
                h11.Request(
                    method="HEAD" if head else "GET",
                    target="/",
                    headers=[("host", "a")],
                )
            )
            parser.send(h11.EndOfMessage())
            body = b""
            while not isinstance(
                event := parser.next_event(), h11.EndOfMessage | h11.ConnectionClosed
            ):
                if event is h11.NEED_DATA:
                    parser.receive_data(client.recv(65536))
                elif isinstance(event, h11.Response):
                    headers = [
                        (name, value)
                        for name, value in event.headers
                        if name not in HOP
                    ]
                    found.append((event.status_code, sorted(headers), b""))
                elif isinstance(event, h11.Data):
                    body += event.data
            if (
                not found
                or parser.our_state is h11.MUST_CLOSE
                or parser.their_state is not h11.DONE
            ):
                if found:
                    found[-1] = (*found[-1][:2], _without_ports(body))
                return found
            found[-1] = (*found[-1][:2], _without_ports(body))
            parser.start_next_cycle()
    return found


def _without_ports(body: bytes) -> bytes:
    return re.sub(rb"127\.0\.0\.1:\d+", b"HERE", body)


KEYS = [
    "w1",
    "w2",
    "w3",
    "w17",
    "nope",
    "a%2Fb",
    "a/b",
    "",
    "%C3%B6",
    "%FF",
    "%0A",
    "%00",
    "..",
    "3",
    "%5B1,%22a%22%5D",
    "k",
]
STORES = [
    "counts",
    "numbers",
    "points",
    "prices",
    "names",
    "hours",
    "nope",
    "c%6Funts",
    "",
]
QUERIES = [
    "",
    "",
    "",
    "?",
    "?local=true",
    "?local=yes",
    "?x=1",
    "?key=w1",
    "?key=w1&key=w2&key=nope",
    "?key=%FF",
    "?key=",
]
HEADERS = [
    b"",
    b"accept: */*\r\n",
    b"Connection: keep-alive\r\n",
    b"connection: close\r\n",
    b"Authorization: Bearer secret\r\n",
    b"authorization: Bearer other\r\n",
    b"authorization: Bearer \xff\r\n",
    b"content-length: 0\r\n",
    b"x-coopstreams-forwarded: 1\r\n",
    b"host: twice\r\n",
    b"expect: 100-continue\r\n",
]
paths = st.one_of(
    st.builds(
        "/v1/stores/{}/keys/{}{}".format,
        st.sampled_from(STORES),
        st.sampled_from(KEYS),
        st.sampled_from(QUERIES),
    ),
    st.builds(
        "/v1/stores/{}/keys{}".format, st.sampled_from(STORES), st.sampled_from(QUERIES)
    ),
    st.sampled_from(
        [
            "/health/live",
            "/v1/stores/counts/range?limit=2",
            "/v1/stores/hours/windows/k",
            "/",
            "/nope",
            "*",
        ]
    ),
)
heads = st.builds(
    lambda method, path, version, headers: b"".join(
        (
            method,
            b" ",
            path.encode(),
            b" HTTP/1.",
            version,
            b"\r\nhost: a\r\n",
            *headers,
            b"\r\n",
        )
    ),
    st.sampled_from([b"GET"] * 8 + [b"HEAD", b"POST", b"get"]),
    paths,
    st.sampled_from([b"1"] * 8 + [b"0"]),
    st.lists(st.sampled_from(HEADERS), max_size=1),
)


def cut(head: bytes, at: list[int]) -> tuple[bytes, ...]:
    bounds = [0, *sorted({i % len(head) for i in at}), len(head)]
    return tuple(head[start:end] for start, end in itertools.pairwise(bounds))


@pytest.mark.ci
@settings(
    max_examples=MOST,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # each example waits for servers: shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    requests=st.lists(
        st.builds(cut, heads, st.lists(st.integers(0, 200), max_size=2)),
        min_size=1,
        max_size=5,
    ),
    node=st.sampled_from("aabc"),
)
def test_a_front_changes_no_answer(
    both: tuple[Cluster, Cluster], requests: list[tuple[bytes, ...]], node: str
) -> None:
    with_front, without = (ask(cluster, node, requests) for cluster in both)
    assert with_front == without


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/stores/counts/keys/w1 HTTP/1.1\r\nhost: a\r\nbroken\r\n\r\n",
        b"GET /v1/stores/counts/keys/w1 HTTP/1.1\r\n\r\n",
        b"\r\nGET /v1/stores/counts/keys/w1 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /v1/stores/counts/keys/w1 HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc",
        b"GET /v1/stores/counts/keys/w1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/stores/counts/keys/w1 HTTP/1.1\r\nhost: a\r\nx: "
        + 200_000 * b"y"
        + b"\r\n\r\n",
        b"GET /v1/stores/counts/keys?"
        + 800 * b"key=w1&"
        + b"key=w2 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /v1/stores/counts/keys?"
        + 20_000 * b"key=w1&"
        + b"key=w2 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /v1/stores/counts/keys/w1 HTTP/1.1\r\nhost: a\r\n"
        + 90 * b"x-a: b\r\n"
        + b"\r\n",
    ],
)
def test_heads_that_are_wrong_or_long_are_answered_alike(
    both: tuple[Cluster, Cluster], request_: bytes
) -> None:
    with_front, without = (
        ask(cluster, "a", [(request_,), (request_,)]) for cluster in both
    )
    assert with_front == without


def test_a_client_that_still_sends_gets_the_answer_that_ends_its_connection(
    both: tuple[Cluster, Cluster],
) -> None:
    """The front may notice first that it can send no more to the server behind, which
    has answered and closed.
    """
    refused = b"POST /v1/pause HTTP/1.1\r\nhost: a\r\nbroken\r\n\r\n" + 5_000_000 * b"x"
    for _ in range(12):
        with socket.create_connection(
            ("127.0.0.1", both[0]["a"].server.port), timeout=60
        ) as client:
            with suppress(ConnectionError):
                client.sendall(refused)
            assert client.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_a_connection_is_used_again_after_any_answer(
    both: tuple[Cluster, Cluster],
) -> None:
    """A connection that stayed a tunnel would keep later requests for keys from the
    front.
    """
    node = both[0]["a"]
    taken: list[int] = []
    of = KeyAnswers.of

    def counted(
        self: KeyAnswers, requests: list[tuple[bytes, bytes | None, float]]
    ) -> list[bytes | None]:
        taken.append(len(requests))
        return of(self, requests)

    with (
        pytest.MonkeyPatch.context() as patch,
        httpx.Client(base_url=node.url, trust_env=False, timeout=60) as client,
    ):
        patch.setattr(KeyAnswers, "of", counted)
        assert client.get("/v1/stores?local=true").status_code == httpx.codes.OK
        assert client.get("/openapi.json").status_code == httpx.codes.OK
        assert client.get("/v1/stores/counts/keys/w1?local=true").status_code in (
            200,
            421,
        )
    assert sum(taken) == 1


def test_many_at_once_are_answered_in_batches_and_each_gets_its_own() -> None:
    with Cluster(1, LIMITS) as cluster:
        cluster.deal(3, DATA)
        wrong: list[str] = []

        def client(number: int) -> None:
            with httpx.Client(
                base_url=cluster["a"].url, trust_env=False, timeout=60
            ) as asking:
                for i in range(40):
                    key = (7 * i + number) % 50
                    if (
                        asking.get(f"/v1/stores/counts/keys/w{key}").json()["value"]
                        != key
                    ):
                        wrong.append(f"w{key}")

        threads = [
            threading.Thread(target=client, args=(number,)) for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        counted = cluster["a"].metrics.text().decode()
        assert (
            'http_requests_total{route="/v1/stores/{store}/keys/{key}",status="200"} 320.0'
            in counted
        )


def test_an_error_in_a_batch_is_told_and_the_others_are_answered() -> None:
    class Broken(Node):
        """Fails for one key."""

        def view(self, store: str, partition: int, hash_: int) -> object:  # type: ignore[override]
            if store == "numbers":
                raise RuntimeError("a disk has gone")
            return super().view(store, partition, hash_)

    with (
        Cluster(1, LIMITS, kind=Broken) as cluster,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        cluster.deal(1, DATA)
        url = f"{cluster['a'].url}/v1/stores"
        failed = client.get(f"{url}/numbers/keys/3")
        assert (failed.status_code, failed.json()["error"]) == (500, "INTERNAL")
        assert failed.json()["message"] == "RuntimeError: a disk has gone"
        assert client.get(f"{url}/counts/keys/w1").json()["value"] == 1


def test_a_read_that_waits_for_a_disk_keeps_no_other_request_waiting() -> None:
    """All keys that are asked for at a time are one batch of one thread: it ended with
    the slowest read.
    """
    asked, healed = threading.Event(), threading.Event()

    class Slow(Node):
        """Waits for a disk."""

        def view(self, store: str, partition: int, hash_: int) -> object:  # type: ignore[override]
            if store == "numbers":
                asked.set()
                healed.wait()
            return super().view(store, partition, hash_)

    limits = dataclasses.replace(LIMITS, request_s=1.0)
    with (
        Cluster(1, limits, kind=Slow) as cluster,
        httpx.Client(trust_env=False, timeout=20) as client,
    ):
        cluster.deal(1, DATA)
        url, late = f"{cluster['a'].url}/v1/stores", list[int]()
        slow = threading.Thread(
            target=lambda: late.append(
                httpx.get(
                    f"{url}/numbers/keys/3", trust_env=False, timeout=20
                ).status_code
            )
        )
        slow.start()
        try:
            asked.wait()
            assert client.get(f"{url}/counts/keys/w1").json()["value"] == 1
            slow.join()
            assert late == [504]
        finally:
            healed.set()


def test_without_its_thread_for_keys_the_server_behind_answers() -> None:
    with (
        Cluster(1, LIMITS) as cluster,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        cluster.deal(1, DATA)
        front = cluster["a"].server._front
        assert front is not None
        front._front.pass_on()
        assert (
            client.get(f"{cluster['a'].url}/v1/stores/counts/keys/w1").json()["value"]
            == 1
        )


def test_a_front_that_ends_cuts_off_who_does_not_read_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    server = QueryServer("127.0.0.1:0")
    node = Node("a")
    server.start(node, node.metrics, dataclasses.replace(LIMITS, ask_s=600))
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
        silent.sendall(b"GET / HTT")
        server.stop()
        with suppress(ConnectionResetError):
            assert silent.recv(1) == b""
    assert set(threading.enumerate()) <= before
    assert server.connections() == 0
