"""The server: metadata, status, health, metrics, its description, its life."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from coopstreams.common.metrics import Metrics
from coopstreams.query.access import Access
from coopstreams.query.app import QueryApp
from coopstreams.query.client import QueryClient
from coopstreams.query.openapi import description
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.serving import server
from coopstreams.query.serving.server import QueryServer
from coopstreams.status.reasons import Health
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.failures import Failure
from tests.query.cluster import HOUR, INFOS, LIMITS, Cluster, Data, Node, reason

DATA: Data = {
    "counts": {f"w{i}": (i, i) for i in range(50)},
    "hours": {("k", 0): (1, 1), ("k", HOUR): (2, 2)},
    "ever": {("k", 5): (1, 1)},
    "visits": {("k", 1, 2): (1, 2)},
    "prices": {"k": ([(1, b"1"), (200, b"2")], 200)},
}


def refused(failure: Failure) -> None:
    raise failure.error


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        for node in cluster.nodes:
            node.stream_time = 200
            assert node.names is not None
            node.names.apply(
                TopicPartition("names", 0),
                Columns([b"k"], [b"1"], [1], [0], []),
                refused,
            )
        yield cluster


def get(url: str, **headers: str) -> Any:
    return httpx.get(url, headers=headers, trust_env=False, timeout=60).json()


def test_stores_are_listed_with_the_sizes_of_all_instances(cluster: Cluster) -> None:
    answer = get(cluster["a"].url + "/v1/stores")
    assert [store["name"] for store in answer["stores"]] == sorted(INFOS)
    counts = next(store for store in answer["stores"] if store["name"] == "counts")
    size = counts.pop("approximate_entries")
    assert counts == {
        "name": "counts",
        "kind": "key_value",
        "subtopology": 0,
        "partitions": 2,
        "key": "text",
        "value": "int64",
        "window_ms": None,
        "misplaced": [],
    }
    here = [get(node.url + "/v1/stores?local=true")["stores"] for node in cluster.nodes]
    assert size == sum(
        store["approximate_entries"]
        for stores in here
        for store in stores
        if store["name"] == "counts"
    )
    assert size == 50
    assert answer["unreachable"] == []


def test_stores_are_listed_without_counting_them(cluster: Cluster) -> None:
    node = cluster["a"]
    reads = node.reads
    whole, brief = (
        get(f"{node.url}/v1/stores?{asked}=true")["stores"]
        for asked in ("local", "brief")
    )
    assert brief == [store | {"approximate_entries": None} for store in whole]
    assert node.reads > reads
    reads = node.reads
    with QueryClient(node.url) as queries:
        assert queries.owner("counts", "w1")["partition"] in (0, 1)
    assert node.reads == reads


def test_metadata_names_instances_tasks_topics_and_key_ranges(cluster: Cluster) -> None:
    for node in cluster.nodes:
        answer = get(node.url + "/v1/metadata")
        assert (answer["application"], answer["generation"], answer["here"]) == (
            "words",
            cluster.generation,
            node.name,
        )
        assert {
            i["id"]: (i["url"], [t["id"] for t in i["tasks"]])
            for i in answer["instances"]
        } == {
            n.name: (n.url, [str(t) for t in sorted(cluster.placed[n.name])])
            for n in cluster.nodes
        }
        task = next(i for i in answer["instances"] if i["id"] == node.name)["tasks"][0]
        mine = min(cluster.placed[node.name])
        assert task == {
            "id": str(mine),
            "subtopology": 0,
            "partition": mine.partition,
            "key_range": str(mine.key_range),
            "first_hash": str(mine.key_range.start),
            "last_hash": str(mine.key_range.end),
            "topics": ["lines"],
            "stores": sorted(INFOS.keys() - {"names"}),
            "state": "running",
            "lag": 4,
        }
        assert {
            t["state"]
            for i in answer["instances"]
            if i["id"] != node.name
            for t in i["tasks"]
        } == {None}
        assert {i["id"]: i["ready"] for i in answer["instances"]} == {
            n.name: True if n is node else None for n in cluster.nodes
        }


def test_metadata_of_a_key_says_who_owns_it(cluster: Cluster) -> None:
    for key in ("w1", "w2", "a/b", ""):
        answer = get(cluster["b"].url + f"/v1/metadata/counts/{key}")
        owner, task = cluster.owner("counts", key), cluster.task("counts", key)
        assert answer["owner"] == {
            "id": owner.name,
            "url": owner.url,
            "task": str(task),
            "key_range": str(task.key_range),
        }
        assert (answer["partition"], int(answer["key_hash"]) in task.key_range) == (
            task.partition,
            True,
        )
        assert answer["key_group"] in task.key_range.groups.numbers


def test_status_gathers_all_instances(cluster: Cluster) -> None:
    answer = get(cluster["b"].url + "/v1/status")
    assert [(i["id"], i["state"], i["live"]) for i in answer["instances"]] == [
        ("a", "running", True),
        ("b", "running", True),
    ]
    task = answer["instances"][0]["tasks"][0]
    assert (task["state"], task["processed"], task["rate"], task["lag"]) == (
        "running",
        10,
        2.5,
        4,
    )
    assert task["sources"] == [
        {
            "topic": "lines",
            "partition": 0,
            "position": 10,
            "committed": 8,
            "end": 12,
            "lag": 4,
            "stream_time": 5000,
            "silent_s": None,
        }
    ]
    assert (task["written"], task["dropped"], task["dead_letters"]) == (
        {"out": 6},
        [{"node": "windowed", "reason": "late", "records": 3}],
        1,
    )
    assert (task["stream_time"], task["behind_ms"], task["shared"]) == (5000, 700, True)
    assert [
        i["id"] for i in get(cluster["b"].url + "/v1/status?local=true")["instances"]
    ] == ["b"]


def test_an_instance_that_is_gone_is_listed_as_unreachable_and_the_others_answer() -> (
    None
):
    with Cluster(3) as cluster:
        cluster.deal(2, DATA)
        cluster["b"].server.stop()
        answer = get(cluster["c"].url + "/v1/status")
        assert [(i["id"], i["state"]) for i in answer["instances"]] == [
            ("a", "running"),
            ("b", "unreachable"),
            ("c", "running"),
        ]
        assert [task["id"] for task in answer["instances"][1]["tasks"]] == [
            str(task) for task in sorted(cluster.placed["b"])
        ]
        assert "does not answer" in answer["instances"][1]["reasons"][0]["message"]
        assert get(cluster["c"].url + "/v1/stores")["unreachable"] == ["b"]


def metrics_of(node: Node) -> str:
    return httpx.get(node.url + "/metrics", trust_env=False, timeout=60).text


def test_health_says_why_an_instance_is_not_well() -> None:
    with Cluster(1) as cluster:
        cluster.deal(1, DATA)
        node = cluster["a"]
        probes = [node.url + "/health/live", node.url + "/health/ready"]
        assert [
            httpx.get(probe, trust_env=False, timeout=60).status_code
            for probe in probes
        ] == [200, 200]
        task = cluster.task("counts", "w1")
        node.now = reason("restoring", "50 records to go", task)
        assert [
            httpx.get(probe, trust_env=False, timeout=60).status_code
            for probe in probes
        ] == [200, 503]
        assert get(node.url + "/v1/metadata")["instances"][0]["ready"] is False
        assert get(probes[1])["reasons"] == [
            {"code": "restoring", "message": "50 records to go", "task": str(task)}
        ]
        counted = 'coopstreams_health_reasons{code="%s"} %.1f\n'
        assert counted % ("restoring", 1) in (text := metrics_of(node))
        assert counted % ("no-progress", 0) in text
        node.now = Health(live=False, ready=True)
        assert counted % ("restoring", 0) in metrics_of(node)
        assert [
            httpx.get(probe, trust_env=False, timeout=60).status_code
            for probe in probes
        ] == [503, 503]


def test_metrics_count_requests_by_route_not_by_key(cluster: Cluster) -> None:
    node = cluster["a"]
    node.metrics.processed(cluster.placed["a"][0], 5)
    for key in ("w1", "w2", "nowhere"):
        httpx.get(
            f"{node.url}/v1/stores/counts/keys/{key}", trust_env=False, timeout=60
        )
    response = httpx.get(node.url + "/metrics", trust_env=False, timeout=60)
    assert response.headers["content-type"].startswith("text/plain")
    samples = [
        sample
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    ]
    counted = {
        (s.labels["route"], s.labels["status"]): s.value
        for s in samples
        if s.name == "coopstreams_http_requests_total"
    }
    assert counted["/v1/stores/{store}/keys/{key}", "200"] >= 2
    assert counted["/v1/stores/{store}/keys/{key}", "404"] >= 1
    assert [
        s.value for s in samples if s.name == "coopstreams_processed_records_total"
    ] == [5]


def check(
    schema: dict[str, Any], value: Any, root: dict[str, Any], at: str = "answer"
) -> None:
    """Assert that a value matches one of our schemas, by the part of JSON Schema that
    the description uses.
    """
    if "$ref" in schema:
        check(
            root["components"]["schemas"][schema["$ref"].rpartition("/")[2]],
            value,
            root,
            at,
        )
        return
    if "anyOf" in schema:
        for choice in schema["anyOf"]:
            try:
                check(choice, value, root, at)
            except AssertionError:
                continue
            return
        raise AssertionError(f"{at}: {value!r} is none of {schema['anyOf']}")
    assert "enum" not in schema or value in schema["enum"], at
    names = schema.get("type", [])
    kinds: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    assert not names or any(
        isinstance(value, kinds[name])
        for name in ([names] if isinstance(names, str) else names)
    ), f"{at}: {value!r}"
    if names == "object" and "properties" in schema:
        assert set(schema["required"]) <= set(value) <= set(schema["properties"]), (
            f"{at}: {sorted(value)}"
        )
        for name, inner in value.items():
            check(schema["properties"][name], inner, root, f"{at}.{name}")
    if names == "array":
        places = schema.get("prefixItems", [schema["items"]] * len(value))
        for index, inner in enumerate(value):
            check(places[index], inner, root, f"{at}[{index}]")


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/stores", "/v1/stores"),
        ("/v1/stores/counts/keys/w1", "/v1/stores/{store}/keys/{key}"),
        ("/v1/stores/counts/keys?key=w1&key=x", "/v1/stores/{store}/keys"),
        ("/v1/stores/counts/range?limit=3", "/v1/stores/{store}/range"),
        ("/v1/stores/hours/range", "/v1/stores/{store}/range"),
        ("/v1/stores/hours/windows/k", "/v1/stores/{store}/windows/{key}"),
        ("/v1/stores/ever/windows/k", "/v1/stores/{store}/windows/{key}"),
        ("/v1/stores/visits/sessions/k", "/v1/stores/{store}/sessions/{key}"),
        ("/v1/stores/prices/versions/k", "/v1/stores/{store}/versions/{key}"),
        ("/v1/stores/prices/versions/k?as_of=1", "/v1/stores/{store}/versions/{key}"),
        ("/v1/stores/names/keys/k", "/v1/stores/{store}/keys/{key}"),
        ("/v1/stores/names/range", "/v1/stores/{store}/range"),
        ("/v1/metadata", "/v1/metadata"),
        ("/v1/metadata/counts/w1", "/v1/metadata/{store}/{key}"),
        ("/v1/status", "/v1/status"),
        ("/health/live", "/health/live"),
        ("/health/ready", "/health/ready"),
        ("/v1/stores/counts/keys/w1?nope", "/v1/stores/{store}/keys/{key}"),
        ("/v1/stores/nope/keys/w1", "/v1/stores/{store}/keys/{key}"),
    ],
)
def test_answers_are_what_the_description_says(
    cluster: Cluster, path: str, route: str
) -> None:
    document = get(cluster["a"].url + "/openapi.json")
    response = httpx.get(cluster["a"].url + path, trust_env=False, timeout=60)
    check(
        document["paths"][route]["get"]["responses"][str(response.status_code)][
            "content"
        ]["application/json"]["schema"],
        response.json(),
        document,
    )


def test_the_description_has_every_route_with_its_parameters_and_nothing_dangling(
    cluster: Cluster,
) -> None:
    document = get(cluster["a"].url + "/openapi.json")
    app = QueryApp(cluster["a"], cluster["a"].metrics, RequestLimits(), Access())
    routes = {(path.replace(":path", ""), "get") for path in app.answers()} | {
        (path, "post") for path in app.changes()
    }
    assert {
        (path, method) for path, item in document["paths"].items() for method in item
    } == routes
    assert document == description(LIMITS)
    operations = [
        operation for item in document["paths"].values() for operation in item.values()
    ]
    assert len({operation["operationId"] for operation in operations}) == len(
        operations
    )
    for path, operation in zip(document["paths"], operations, strict=True):
        parameters = operation.get("parameters", [])
        in_path = {
            parameter["name"] for parameter in parameters if parameter["in"] == "path"
        }
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert all(
            parameter["required"]
            for parameter in parameters
            if parameter["in"] == "path"
        )
        assert all(answer["description"] for answer in operation["responses"].values())
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(document["components"]["schemas"])


def test_query_parameters_of_the_description_are_those_that_are_understood(
    cluster: Cluster,
) -> None:
    document = get(cluster["a"].url + "/openapi.json")
    values = {
        "limit": "1",
        "from": "1",
        "to": "1",
        "prefix": "1",
        "reverse": "true",
        "local": "true",
        "brief": "true",
        "key": "w1",
        "cursor": "AAAAAA",
        "as_of": "1",
        "max_staleness": "1",
    }
    stores = {"windows": "hours", "sessions": "visits", "versions": "prices"}
    for path, item in document["paths"].items():
        url = cluster["a"].url + path.replace(
            "{store}", stores.get(path.split("/")[-2], "counts")
        ).replace("{key}", "w1")
        for parameter in item.get("get", {}).get("parameters", []):
            if parameter["in"] == "query":
                asked = {parameter["name"]: values[parameter["name"]]} | (
                    {"key": "w1"} if path.endswith("/keys") else {}
                )
                response = httpx.get(url, params=asked, trust_env=False, timeout=60)
                assert response.status_code in (200, 421), (
                    f"{path}?{parameter['name']}: {response.text}"
                )


def test_a_server_knows_its_address_before_it_serves_and_lets_go_of_it() -> None:
    server = QueryServer("127.0.0.1:0")
    assert server.url == f"http://127.0.0.1:{server.port}"
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        QueryServer(f"127.0.0.1:{server.port}")
    server.stop()
    server.stop()
    QueryServer(f"127.0.0.1:{server.port}").stop()


@pytest.mark.parametrize(
    ("advertised", "url"),
    [
        ("db-7:8080", "http://db-7:8080"),
        ("https://queries.example/", "https://queries.example"),
        (None, None),
    ],
)
def test_the_address_for_others_may_be_another_one(
    advertised: str | None, url: str | None
) -> None:
    server = QueryServer("127.0.0.1:0", advertised)
    assert server.url == (url or f"http://127.0.0.1:{server.port}")
    server.stop()


@pytest.mark.parametrize(
    "listen", ["nowhere.invalid:1", "127.0.0.1:high", "127.0.0.1:99999"]
)
def test_an_address_that_cannot_be_is_an_error_at_once(listen: str) -> None:
    with pytest.raises(ConfigError, match="port 0 takes a free one"):
        QueryServer(listen)


@pytest.mark.slow
def test_a_server_that_takes_long_to_come_up_comes_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that was paused for 12 s during its start reported an error of its
    settings, which ended all workers.
    """
    startup = uvicorn.Server.startup

    async def late(
        server: uvicorn.Server, sockets: list[socket.socket] | None = None
    ) -> None:
        await asyncio.sleep(10.5)
        await startup(server, sockets)

    monkeypatch.setattr(uvicorn.Server, "startup", late)
    with Cluster(1) as cluster:
        assert (
            httpx.get(
                f"{cluster['a'].server.url}/v1/stores", trust_env=False
            ).status_code
            == httpx.codes.OK
        )


@pytest.mark.parametrize(
    ("listen", "host"), [("0.0.0.0", None), ("[::]", None), ("[::1]", "[::1]")]
)
def test_a_server_on_all_addresses_is_known_by_the_name_of_its_host(
    listen: str, host: str | None
) -> None:
    server = QueryServer(f"{listen}:0")
    assert server.url == f"http://{host or socket.gethostname()}:{server.port}"
    server.stop()


def test_stopping_finishes_what_is_being_answered_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        server, "DRAIN_S", 60
    )  # a pause of the machine cuts no answer off
    before = set(threading.enumerate())
    with Cluster(1) as cluster:
        cluster.deal(1, {"counts": {f"{i:05}": (i, i) for i in range(5000)}})
        url, answers = cluster["a"].url, []
        asking = threading.Thread(
            target=lambda: answers.append(
                httpx.get(
                    f"{url}/v1/stores/counts/range?limit=5000",
                    trust_env=False,
                    timeout=60,
                )
            )
        )
        asking.start()
        while cluster["a"].reads == 0:
            threading.Event().wait(0.002)
        cluster["a"].server.stop()
        asking.join()
        assert [len(answer.json()["entries"]) for answer in answers] == [5000]
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/health/live", trust_env=False, timeout=60)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("path", ["keys/w1?local=true", "range"])
def test_a_request_that_a_stopping_server_cuts_off_is_to_be_asked_again(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "DRAIN_S", 1)
    monkeypatch.setenv("COOPSTREAMS_NATIVE", "0")
    asked, goes_on = threading.Event(), threading.Event()

    class Slow(Node):
        def view(self, store: str, partition: int, hash_: int) -> Any:
            asked.set()
            goes_on.wait()
            return super().view(store, partition, hash_)

        def views(self, store: str) -> Any:
            asked.set()
            goes_on.wait()
            return super().views(store)

    with (
        Cluster(1, kind=Slow) as cluster,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        cluster.deal(1, DATA)
        url, answers = (
            f"{cluster['a'].url}/v1/stores/counts/{path}",
            list[httpx.Response](),
        )
        asking = threading.Thread(target=lambda: answers.append(client.get(url)))
        asking.start()
        asked.wait()
        stopping = threading.Thread(target=cluster["a"].server.stop)
        stopping.start()
        asking.join()
        goes_on.set()
        stopping.join()
    assert (answers[0].status_code, answers[0].json()["error"]) == (503, "TASK_MOVING")
    assert "Exception in ASGI application\n" not in caplog.messages


def test_importing_the_rooms_entrance_loads_no_web_server() -> None:
    rooms = ("serving.server", "backend", "router")
    code = "; ".join(
        [
            "import sys",
            *(f"import coopstreams.query.{room}" for room in rooms),
            "print(*sys.modules)",
        ]
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert loaded & {"starlette", "uvicorn", "httpx"} == set()


def test_metrics_alone_load_no_web_server() -> None:
    assert Metrics("a", "b").text().startswith(b"# HELP")
