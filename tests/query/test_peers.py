"""Instances that answer anything: it costs a bounded part of memory, is no error of
this one, and no token goes astray.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
import orjson
import pytest

from coopstreams.query.access import Access
from coopstreams.query.backend import peer_of
from coopstreams.query.certificates import Certificates
from coopstreams.query.peers import MOST_DATA, PACKED
from tests.query.cluster import LIMITS, Cluster, Data
from tests.query.office import Office

DATA: Data = {"counts": {f"w{i}": (i, i) for i in range(50)}}
OWN = {"x-coopstreams-instance": "b", "content-type": "application/json"}
AS_PART = OWN | {"content-type": PACKED}
TOKENS = Access({"read": ["secret"], "operate": ["secret"]})


class Peer(ThreadingHTTPServer):
    """A member that answers all requests alike, and notes their headers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[dict[str, str]] = []
        self.answers(200, {}, b"")

    def answers(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Peer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.asked.append({k.lower(): v for k, v in self.headers.items()})
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        try:
            self.wfile.write(self.server.body)
        except ConnectionError:  # who asked has read enough
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 as it is declared
        pass


@pytest.fixture(scope="module")
def beside() -> Iterator[tuple[Cluster, Peer]]:
    """Return a group of two instances, of which the second one is such a member."""
    with Peer() as peer, Cluster(2, LIMITS, access=[TOKENS, TOKENS]) as cluster:
        own = cluster["b"].server.url
        cluster["b"].server.url = peer.url
        cluster.deal(2, DATA)
        yield cluster, peer
        cluster["b"].server.url = own


def asked(cluster: Cluster) -> dict[str, httpx.Response]:
    key = next(
        key for key in DATA["counts"] if cluster.owner("counts", key).name == "b"
    )
    paths = {
        "key": f"stores/counts/keys/{key}",
        "keys": f"stores/counts/keys?key={key}",
        "range": "stores/counts/range",
        "status": "status",
        "stores": "stores",
    }
    headers = {"authorization": "Bearer secret"}
    with httpx.Client(trust_env=False, timeout=60, headers=headers) as client:
        return {
            name: client.get(f"{cluster['a'].url}/v1/{path}")
            for name, path in paths.items()
        }


def packed(covers: Any, entries: Any, more: bool, closed: Any = ()) -> bytes:
    return msgspec.msgpack.encode([covers, entries, more, closed])


NESTED = b'{"a": ' + 100_000 * b"[" + 100_000 * b"]" + b"}"
DEEP = orjson.dumps({"error": "X", "message": "", "retryable": False})[:-1] + (
    b', "more": ' + 500 * b"[" + 500 * b"]" + b"}"
)


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, OWN, b""),
        (200, OWN, b"null"),
        (200, OWN, b"[1]"),
        (200, OWN, b"{"),
        (200, OWN, b'{"a": "\xff"}'),
        (200, OWN, NESTED),
        (200, OWN, b'{"entries": 1, "instances": 1, "stores": 1}'),
        (200, OWN, b'{"entries": [], "instances": [], "stores": [1]}'),
        (200, OWN, b'{"entries": [1], "instances": [1], "stores": [{"name": 1}]}'),
        (200, OWN, b'{"entries": [{}, {}], "instances": [{"id": 1}], "stores": {}}'),
        (
            200,
            OWN,
            b'{"entries": {}, "instances": [{"id": "a"}], "stores": '
            b'[{"name": "counts", "kind": "key_value", "approximate_entries": 1e99}]}',
        ),
        (200, OWN | {"content-type": "text/html"}, b"{}"),
        (200, OWN | {"content-encoding": "gzip"}, gzip.compress(b"{}", mtime=0)),
        (200, AS_PART, b""),
        (200, AS_PART, msgspec.msgpack.encode({})),
        (200, AS_PART, packed([[0, 9, 3, "b", 1, None]], [], False)),
        (200, AS_PART, packed([[0, 0, -1, "b", 1, None]], [], False)),
        (200, AS_PART, packed([], [], True)),
        (200, AS_PART, packed([], [[b"k", -1, b"{}"]], False)),
        (200, AS_PART, packed([], [[b"k", 0, b"no JSON"]], False)),
        (200, OWN | {"x-coopstreams-instance": "c"}, b"{}"),
        (204, OWN, b""),
        (302, OWN | {"location": "http://elsewhere.example"}, b"{}"),
        (500, OWN, b"{}"),
        (
            503,
            OWN,
            b'{"error": "X", "message": 1, "retryable": 1, "retry_after_ms": "1"}',
        ),
        (503, OWN, b'{"error": 1, "message": 1, "retryable": 1, "retry_after_ms": -1}'),
        (400, OWN, DEEP),
    ],
)
def test_what_another_instance_answers_is_no_error_of_this_one(
    beside: tuple[Cluster, Peer], status: int, headers: dict[str, str], body: bytes
) -> None:
    cluster, peer = beside
    peer.answers(status, headers, body)
    for name, answer in asked(cluster).items():
        told = answer.json()
        assert answer.status_code != 204, name
        assert not 300 <= answer.status_code < 400, name
        if answer.status_code == 500:  # the other one's, which this one passes on
            assert "with a body that is not ours" in told["message"], name
        if name == "status":
            states = {each["id"]: each["state"] for each in told["instances"]}
            assert states == {"a": "running", "b": "unreachable"}
        if name == "stores":
            assert told["unreachable"] == ["b"]


def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    beside: tuple[Cluster, Peer],
) -> None:
    cluster, peer = beside
    peer.answers(200, OWN, b'{"a": "' + 2 * MOST_DATA * b" " + b'"}')
    found = asked(cluster)
    assert found["key"].status_code == found["keys"].status_code == 413
    assert "answers with more than 32 MiB" in found["key"].json()["message"]
    assert found["stores"].json()["unreachable"] == ["b"]
    (of_b,) = (
        each for each in found["status"].json()["instances"] if each["id"] == "b"
    )
    assert "more than 8 MiB" in of_b["reasons"][0]["message"]


def test_a_compressed_answer_is_neither_asked_for_nor_read(
    beside: tuple[Cluster, Peer],
) -> None:
    """65 kB of gzip were 64 MiB here."""
    cluster, peer = beside
    body = gzip.compress(b'{"a": "' + (64 << 20) * b" " + b'"}')
    peer.answers(200, OWN | {"content-encoding": "gzip"}, body)
    peer.asked.clear()
    found = asked(cluster)
    assert {each["accept-encoding"] for each in peer.asked} == {"identity"}
    assert found["key"].json()["error"] == "TASK_MOVING"
    assert "compresses its answers" in found["key"].json()["message"]


def test_no_token_goes_to_an_address_in_clear_text_beside_tls(tmp_path: Path) -> None:
    files = Office(tmp_path).files()
    certificates = Certificates(files, clients_show=False)
    secure = Access(TOKENS.tokens, certificates)
    with Peer() as peer, Cluster(2, LIMITS, access=[secure, secure]) as cluster:
        own = cluster["b"].server.url
        cluster["b"].server.url = peer.url
        cluster.deal(2, DATA)
        key = next(k for k in DATA["counts"] if cluster.owner("counts", k).name == "b")
        with httpx.Client(
            trust_env=False,
            timeout=60,
            verify=files.client(),
            headers={"authorization": "Bearer secret"},
        ) as client:
            url = f"{cluster['a'].url}/v1"
            refused = client.get(f"{url}/stores/counts/keys/{key}").json()
            status = client.get(f"{url}/status").json()
        cluster["b"].server.url = own
        assert peer.asked == []
        assert refused["error"] == "TASK_MOVING"
        assert "would send its token there in clear text" in refused["message"]
        assert [each["state"] for each in status["instances"]] == [
            "running",
            "unreachable",
        ]


@pytest.mark.parametrize(
    ("announced", "https", "url"),
    [
        ("http://a:1", False, "http://a:1"),
        ("https://a.example/orders/", True, "https://a.example/orders"),
        ("https://[::1]:8080", True, "https://[::1]:8080"),
        ("http://a:1", True, None),
        ("a:1", False, None),
        ("", False, None),
        ("javascript:alert(1)", False, None),
        ("file:///etc/passwd", False, None),
        ("http://me:hunter2@a:1", False, None),
        ("http://a:99999", False, None),
        ("http://a:1/\x01", False, None),
        ("http://a:1/" + 5000 * "x", False, None),
        (None, False, None),
    ],
)
def test_an_address_that_a_member_announces_is_accepted_or_not(
    announced: str | None, https: bool, url: str | None
) -> None:
    peer = peer_of("b", announced, (), https=https)
    assert peer.url == url
    assert "hunter2" not in peer.unasked
    assert url or peer.unasked.startswith(("is not asked at", "serves no queries"))
