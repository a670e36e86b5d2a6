"""Queries by key: routed to the owner, forwarded once, "not found" from the owner only."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from coopstreams.query.parameters import RequestLimits
from coopstreams.query.peers import (
    APPLICATION,
    FORWARDED,
    GENERATION,
    MOST_AT_ONCE,
    TARGET,
)
from coopstreams.topology.kept_headers import Headed
from tests.query.cluster import LIMITS, Cluster, Data, Node

COUNTS = {f"word-{i}": (i, 1000 + i) for i in range(200)} | {
    "": (1, 1),
    "a/b c?&#%+": (2, 2),
    "..": (3, 3),
    ".": (4, 4),
    "grüße ✓": (5, 5),
    "two\nlines\n": (6, 6),
}
DATA: Data = {
    "counts": COUNTS,
    "blobs": {
        b"\xff\x00": (b"\xfe", 1),
        b"plain": (b"text", 2),
        b"base64:x": (b"base64:y", 3),
    },
    "numbers": {
        -(2**63): ({"least": True}, 1),
        0: ([], 2),
        42: ({"a": [1, None, "x"]}, 3),
    },
    "points": {"a": (1, 1), 7: (2, 2)},
    "traced": {
        "a": (Headed(b"x", [("trace", b"7"), ("none", None), ("bytes", b"\xff")]), 1),
        "b": (Headed(b"y", []), 2),
    },
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        cluster.deal(4, DATA)
        yield cluster


def ask(node: Node, path: str, **headers: str) -> httpx.Response:
    return httpx.get(node.url + path, headers=headers, trust_env=False, timeout=60)


def key_path(store: str, text: str) -> str:
    return f"/v1/stores/{store}/keys/{quote(text, safe='').replace('.', '%2E')}"


def test_rows_show_their_headers(cluster: Cluster) -> None:
    headers = [
        {"name": "trace", "value": "7"},
        {"name": "none", "value": None},
        {"name": "bytes", "value": "base64:/w=="},
    ]
    for node in cluster.nodes:
        found = ask(node, key_path("traced", "a")).json()
        assert (found["value"], found["headers"]) == ("x", headers)
        entries = ask(node, "/v1/stores/traced/range").json()["entries"]
        assert [(entry["value"], entry["headers"]) for entry in entries] == [
            ("x", headers),
            ("y", []),
        ]
        assert (
            ask(node, "/v1/stores/traced/keys?key=a").json()["entries"][0]["headers"]
            == headers
        )
        assert "headers" not in ask(node, key_path("counts", "word-1")).json()


def as_forwarded(cluster: Cluster, to: Node) -> dict[str, str]:
    return {
        FORWARDED: "1",
        APPLICATION: to.application,
        TARGET: to.name,
        GENERATION: str(cluster.generation),
    }


@pytest.mark.parametrize(
    "key",
    [
        *itertools.islice(COUNTS, 20),
        "",
        "a/b c?&#%+",
        "..",
        ".",
        "grüße ✓",
        "two\nlines\n",
    ],
)
def test_every_instance_answers_for_every_key(cluster: Cluster, key: str) -> None:
    owner, task = cluster.owner("counts", key), cluster.task("counts", key)
    value, timestamp = COUNTS[key]
    for node in cluster.nodes:
        response = ask(node, key_path("counts", key))
        assert response.status_code == 200
        assert response.json() == {
            "store": "counts",
            "key": key,
            "value": value,
            "timestamp": timestamp,
            "partition": task.partition,
            "key_range": str(task.key_range),
            "owner": owner.name,
            "epoch": owner.openings[task].epoch,
            "lag": 3,
        }
        assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("store", "text", "key", "value"),
    [
        ("blobs", "base64:/wA=", "base64:/wA=", "base64:/g=="),
        ("blobs", "base64:_wA", "base64:/wA=", "base64:/g=="),
        ("blobs", "plain", "plain", "text"),
        ("blobs", "base64:YmFzZTY0Ong=", "base64:YmFzZTY0Ong=", "base64:YmFzZTY0Onk="),
        ("numbers", "42", 42, {"a": [1, None, "x"]}),
        ("numbers", "-9223372036854775808", -(2**63), {"least": True}),
        ("points", '"a"', "a", 1),
        ("points", " 7", 7, 2),
    ],
)
def test_keys_of_all_serdes_are_found_by_their_text(
    cluster: Cluster, store: str, text: str, key: Any, value: Any
) -> None:
    for node in cluster.nodes:
        answer = ask(node, key_path(store, text)).json()
        assert (answer["key"], answer["value"]) == (key, value)


def test_a_slash_in_a_key_may_stand_as_it_is(cluster: Cluster) -> None:
    assert (
        ask(cluster["a"], "/v1/stores/counts/keys/a/b%20c%3F&%23%25+").json()["key"]
        == "a/b c?&#%+"
    )


@pytest.mark.parametrize(
    "key", ["nowhere-1", "nowhere-2", "nowhere-3", "nowhere-4", "nowhere-5"]
)
def test_not_found_comes_from_the_owner_whoever_is_asked(
    cluster: Cluster, key: str
) -> None:
    for node in cluster.nodes:
        response = ask(node, key_path("counts", key))
        body = response.json()
        assert (response.status_code, body["error"], body["retryable"]) == (
            404,
            "KEY_NOT_FOUND",
            False,
        )
        assert (body["owner"], body["key_range"]) == (
            cluster.owner("counts", key).name,
            str(cluster.task("counts", key).key_range),
        )


def test_not_found_says_that_records_may_be_in_another_partition(
    cluster: Cluster,
) -> None:
    owner, other = (
        cluster.owner("counts", "nowhere"),
        cluster.other("counts", "nowhere"),
    )
    owner.misplaced = {"counts": ("orders",)}
    try:
        body = ask(other, key_path("counts", "nowhere")).json()
        stores = {
            store["name"]: store["misplaced"]
            for store in ask(other, "/v1/stores").json()["stores"]
        }
    finally:
        owner.misplaced = {}
    assert body["error"] == "KEY_NOT_FOUND"
    assert (
        "may be in another one: producers of orders choose partitions in another way"
        in body["message"]
    )
    assert (stores["counts"], stores["numbers"]) == (["orders"], [])


def test_local_forbids_forwarding_and_says_where_to_go(cluster: Cluster) -> None:
    owner, other = cluster.owner("counts", "word-1"), cluster.other("counts", "word-1")
    assert ask(owner, key_path("counts", "word-1") + "?local=true").status_code == 200
    response = ask(other, key_path("counts", "word-1") + "?local=true")
    assert response.status_code == 421
    assert response.json() | {"message": ""} == {
        "error": "NOT_OWNER",
        "message": "",
        "retryable": False,
        "owner": owner.name,
        "url": owner.url,
    }


def test_a_forwarded_request_is_answered_by_the_owner_and_never_forwarded_again(
    cluster: Cluster,
) -> None:
    owner, other = cluster.owner("counts", "word-1"), cluster.other("counts", "word-1")
    assert (
        ask(
            owner, key_path("counts", "word-1"), **as_forwarded(cluster, owner)
        ).status_code
        == 200
    )
    response = ask(other, key_path("counts", "word-1"), **as_forwarded(cluster, other))
    assert (
        response.status_code,
        response.json()["error"],
        response.json()["retryable"],
    ) == (503, "TASK_MOVING", True)


def test_a_forwarded_request_for_somebody_else_is_refused(cluster: Cluster) -> None:
    owner = cluster.owner("counts", "word-1")
    right = as_forwarded(cluster, owner)
    for wrong in (
        {TARGET: "another life"},
        {APPLICATION: "another application"},
        {GENERATION: str(cluster.generation + 1)},
    ):
        assert (
            ask(owner, key_path("counts", "word-1"), **(right | wrong)).status_code
            == 503
        )
    assert (
        ask(
            owner, key_path("counts", "word-1"), **(right | {GENERATION: "x"})
        ).status_code
        == 400
    )
    assert (
        ask(
            owner, key_path("counts", "word-1"), **(right | {GENERATION: "0"})
        ).status_code
        == 200
    )


def test_several_keys_come_in_the_order_asked(cluster: Cluster) -> None:
    keys = [f"word-{i}" for i in range(40)] + ["nowhere", "word-3", "a/b c?&#%+"]
    response = ask(
        cluster["b"],
        "/v1/stores/counts/keys?"
        + "&".join(f"key={quote(key, safe='')}" for key in keys),
    )
    entries = response.json()["entries"]
    assert [entry["key"] for entry in entries] == keys
    assert [entry.get("value") for entry in entries] == [
        COUNTS.get(key, (None, 0))[0] for key in keys
    ]
    assert [entry["found"] for entry in entries] == [key in COUNTS for key in keys]
    assert {entry["owner"] for entry in entries} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("path", "status", "code", "says"),
    [
        (
            "/v1/stores/nope/keys/a",
            404,
            "UNKNOWN_STORE",
            "blobs, counts, ever, hours, names, numbers, parcels, points, prices, traced, visits",
        ),
        ("/v1/stores/nope/range", 404, "UNKNOWN_STORE", "nope"),
        ("/v1/store", 404, "UNKNOWN_PATH", "/openapi.json"),
        ("/v1/stores/", 404, "UNKNOWN_PATH", "/openapi.json"),
        ("/v1/stores/counts/windows", 404, "UNKNOWN_PATH", "/openapi.json"),
        (
            "/v1/stores/counts%2Fkeys/a",
            404,
            "UNKNOWN_PATH",
            "/v1/stores/counts%2Fkeys/a has a slash",
        ),
        ("/v1/stores/counts%2fkeys/a/b", 404, "UNKNOWN_PATH", "percent-encoded"),
        ("/v1%2Fmetadata/counts/a", 404, "UNKNOWN_PATH", "percent-encoded"),
        ("/v1/stores/numbers/keys/12a", 400, "BAD_KEY", "a whole number such as 42"),
        (
            "/v1/stores/numbers/keys/9223372036854775808",
            400,
            "BAD_KEY",
            "one that fits",
        ),
        ("/v1/stores/points/keys/a", 400, "BAD_KEY", "the serialised key as text"),
        ("/v1/stores/blobs/keys/base64:*", 400, "BAD_KEY", "base64"),
        ("/v1/stores/counts/keys/%FF", 400, "BAD_KEY", "not UTF-8"),
        ("/v1/stores/counts/keys?key=%FF", 400, "BAD_PARAMETER", "not UTF-8"),
        ("/v1/stores/counts/keys", 400, "BAD_PARAMETER", "1 to 1000 keys"),
        (
            "/v1/stores/counts/keys/a?locl=true",
            400,
            "BAD_PARAMETER",
            'did you mean "local"',
        ),
        (
            "/v1/stores/counts/keys/a?local=yes",
            400,
            "BAD_PARAMETER",
            '"true" or "false"',
        ),
        (
            "/v1/stores/counts/keys/a?local=true&local=true",
            400,
            "BAD_PARAMETER",
            "twice",
        ),
        (
            "/v1/stores/hours/keys/a",
            400,
            "WRONG_KIND",
            "/v1/stores/hours/windows/{key}",
        ),
        ("/v1/stores/counts/windows/a", 400, "WRONG_KIND", "key-value"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(
    cluster: Cluster, path: str, status: int, code: str, says: str
) -> None:
    response = ask(cluster["a"], path)
    assert (
        response.status_code,
        response.json()["error"],
        response.json()["retryable"],
    ) == (status, code, False)
    assert says in response.json()["message"]


def test_only_get_is_allowed(cluster: Cluster) -> None:
    response = httpx.post(cluster["a"].url + "/v1/stores", trust_env=False, timeout=60)
    assert (response.status_code, response.json()["error"]) == (
        405,
        "METHOD_NOT_ALLOWED",
    )
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


def moving(response: httpx.Response) -> str:
    assert (
        response.status_code,
        response.json()["error"],
        response.json()["retryable"],
    ) == (503, "TASK_MOVING", True)
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["retry_after_ms"] > 0
    return str(response.json()["message"])


def test_while_a_task_is_restored_its_keys_are_moving_and_no_others() -> None:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        task, owner = (
            cluster.task("counts", "word-1"),
            cluster.owner("counts", "word-1"),
        )
        owner.close(task)
        owner.pending[task] = "restoring"
        for node in cluster.nodes:
            for key in (
                "word-1",
                *(k for k in COUNTS if cluster.task("counts", k) == task),
            ):
                assert "restoring" in moving(
                    ask(node, key_path("counts", key) + "?local=true" * (node is owner))
                )
                break
            untouched = next(
                key for key in COUNTS if cluster.task("counts", key) != task
            )
            assert ask(node, key_path("counts", untouched)).status_code == 200
            assert moving(
                ask(node, f"/v1/stores/counts/keys?key=word-1&key={untouched}")
            )


def test_a_key_that_nobody_owns_is_moving() -> None:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        task = cluster.task("counts", "word-1")
        cluster.locate(
            {
                name: [t for t in owned if t != task]
                for name, owned in cluster.placed.items()
            }
        )
        assert "no instance owns the key" in moving(
            ask(cluster["a"], key_path("counts", "word-1"))
        )
        assert "no instance owns the key" in moving(
            ask(cluster["a"], key_path("counts", "word-1") + "?local=true")
        )


def test_an_owner_without_an_address_is_moving() -> None:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        owner, other = (
            cluster.owner("counts", "word-1"),
            cluster.other("counts", "word-1"),
        )
        cluster.locate(cluster.placed, without_url=[owner.name])
        assert "serves no queries" in moving(ask(other, key_path("counts", "word-1")))
        assert ask(owner, key_path("counts", "word-1")).status_code == 200


def test_an_owner_that_does_not_answer_is_moving() -> None:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        owner, other = (
            cluster.owner("counts", "word-1"),
            cluster.other("counts", "word-1"),
        )
        owner.server.stop()
        assert "does not answer" in moving(ask(other, key_path("counts", "word-1")))


def test_an_owner_that_hangs_is_moving_before_the_client_gives_up() -> None:
    with (
        Cluster(2, RequestLimits(retry_s=0.3, forward_s=0.2)) as cluster,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        cluster.deal(2, DATA)
        owner, other = (
            cluster.owner("counts", "word-1"),
            cluster.other("counts", "word-1"),
        )
        owner.server.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        cluster.locate(cluster.placed)
        assert "does not answer" in moving(ask(other, key_path("counts", "word-1")))


@pytest.mark.ci
def test_an_instance_that_hangs_holds_up_no_query_for_another_one() -> None:
    with (
        Cluster(3) as cluster,
        socket.create_server(("127.0.0.1", 0), backlog=1024) as silent,
        ExitStack() as held,
    ):
        cluster.deal(3, DATA)
        keys = {
            node.name: next(
                key for key in COUNTS if cluster.owner("counts", key) is node
            )
            for node in cluster.nodes
        }
        cluster["b"].server.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        cluster.locate(cluster.placed)
        for _ in range(2 * MOST_AT_ONCE):
            client = held.enter_context(
                socket.create_connection(("127.0.0.1", cluster["a"].server.port))
            )
            client.sendall(
                f"GET {key_path('counts', keys['b'])} HTTP/1.1\r\nhost: a\r\n\r\n".encode()
            )
        for _ in range(MOST_AT_ONCE):
            held.enter_context(silent.accept()[0])
        assert (
            ask(cluster["a"], key_path("counts", keys["c"])).json()["value"]
            == COUNTS[keys["c"]][0]
        )


@pytest.mark.ci
def test_a_range_says_which_instance_does_not_answer() -> None:
    with (
        Cluster(2, RequestLimits(request_s=4.0)) as cluster,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        cluster.deal(2, DATA)
        cluster["b"].server.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        cluster.locate(cluster.placed)
        answer = ask(cluster["a"], "/v1/stores/counts/range")
        assert (
            f"instance b at {cluster['b'].url} does not answer: ReadTimeout"
            in moving(answer)
        )


def test_whoever_took_over_the_address_of_the_owner_is_not_believed() -> None:
    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(
                b'{"error":"KEY_NOT_FOUND","message":"","retryable":false}'
            )

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name in http.server
            pass

    with Cluster(2) as cluster, HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        cluster.deal(2, DATA)
        owner, other = (
            cluster.owner("counts", "word-1"),
            cluster.other("counts", "word-1"),
        )
        owner.server.url = f"http://127.0.0.1:{stranger.server_port}"
        cluster.locate(cluster.placed)
        assert "is not instance" in moving(ask(other, key_path("counts", "word-1")))
        stranger.shutdown()


def test_instances_that_disagree_are_moving_until_they_agree() -> None:
    with Cluster(2, replace(LIMITS, retry_s=60.0)) as cluster:
        cluster.deal(2, DATA)
        owner, other = (
            cluster.owner("counts", "word-1"),
            cluster.other("counts", "word-1"),
        )
        agreed = owner.told
        owner.told = type(agreed)(
            agreed.generation, owner.name, other_way_round(agreed.instances)
        )
        answers: list[int] = []
        asking = threading.Thread(
            target=lambda: answers.append(
                ask(other, key_path("counts", "word-1")).status_code
            )
        )
        asking.start()
        assert moving(
            ask(owner, key_path("counts", "word-1"), **as_forwarded(cluster, owner))
        )
        owner.told = agreed
        asking.join()
        assert answers == [200]


def other_way_round(instances: Any) -> Any:
    one, two = instances
    return (
        type(one)(one.id, one.url, two.tasks),
        type(two)(two.id, two.url, one.tasks),
    )


def test_a_value_that_cannot_be_read_is_an_error_of_its_own_not_a_missing_key() -> None:
    with Cluster(2) as cluster:
        cluster.deal(2, {"numbers": {1: ("fine", 1)}})
        cluster.owner("numbers", 1).damage("numbers", 1, b"{")
        for node in cluster.nodes:
            for path in (key_path("numbers", "1"), "/v1/stores/numbers/range"):
                response = ask(node, path)
                assert (
                    response.status_code,
                    response.json()["error"],
                    response.json()["retryable"],
                ) == (
                    500,
                    "UNREADABLE",
                    False,
                )
                assert "1" in response.json()["message"]
