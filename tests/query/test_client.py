"""The client: Python values in and out, and retries."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self, TypeAlias
from urllib.parse import quote

import httpx
import pytest

from coopstreams.query import local_reads
from coopstreams.query.client import AsyncQueryClient, QueryClient
from coopstreams.query.client_requests import EntryFound, Requests, WindowFound
from coopstreams.topology.errors import QueryError
from tests.query.cluster import HOUR, LIMITS, Cluster, Data

DATA: Data = {
    "counts": {f"w{i}": (i, 100 + i) for i in range(50)}
    | {"": (7, 7), "a/b?": (8, 8), "..": (9, 9)},
    "numbers": {-5: ({"n": 1}, 1), 2**40: ([1], 2)},
    "points": {"a": (1, 1), "7": (2, 2), 7: (3, 3)},
    "blobs": {b"\x00\xff": (b"\xff", 1)},
    "hours": {("k", hour * HOUR): ({"n": hour}, hour) for hour in range(6)},
    "visits": {("k", 10 * n, 10 * n + 5): (n, n) for n in range(9)},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, replace(LIMITS, retry_s=0.0)) as cluster:
        cluster.deal(2, DATA)
        yield cluster


class Awaited:
    """An `AsyncQueryClient` with the methods of a `QueryClient`, each of which runs the
    event loop.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._runner.get_loop()
        self._queries = AsyncQueryClient(url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._queries, name)
        return lambda *given, **named: self._runner.run(method(*given, **named))

    def range(self, *given: Any, **named: Any) -> list[EntryFound]:
        async def collected() -> list[EntryFound]:
            return [entry async for entry in self._queries.range(*given, **named)]

        return self._runner.run(collected())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._runner.run(self._queries.close())
        self._runner.close()


Client: TypeAlias = Callable[..., QueryClient]


@pytest.fixture(scope="module", params=[QueryClient, Awaited])
def client(request: pytest.FixtureRequest) -> Client:
    """A client's class: the blocking one, or the one for asyncio."""
    kind: Client = request.param
    return kind


@pytest.fixture(scope="module")
def queries(client: Client, cluster: Cluster) -> Iterator[QueryClient]:
    with client(cluster["a"].url + "/") as queries:
        yield queries


def test_values_are_found_by_python_keys(
    queries: QueryClient, cluster: Cluster
) -> None:
    for key, (value, timestamp) in DATA["counts"].items():
        found = queries.get("counts", key)
        assert found is not None
        assert (found.key, found.value, found.timestamp, found.owner) == (
            key,
            value,
            timestamp,
            cluster.owner("counts", key).name,
        )
    assert [
        getattr(queries.get("numbers", key), "value", None) for key in (-5, 2**40, 0)
    ] == [{"n": 1}, [1], None]
    assert [
        getattr(queries.get("points", key), "value", None) for key in ("a", "7", 7, "b")
    ] == [1, 2, 3, None]
    assert [
        getattr(queries.get("blobs", key), "value", None)
        for key in (b"\x00\xff", b"", "")
    ] == [
        "base64:/w==",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("serde", "key", "text"),
    [
        ("text", "7", "7"),
        ("json", "7", '"7"'),
        ('avro("string")', "7", '"7"'),
        ("json", 7, "7"),
        ("json", True, "true"),
        ("raw", b"7", "base64:Nw=="),
    ],
)
def test_a_key_is_sent_in_the_form_that_its_serde_is_read_in(
    serde: str, key: Any, text: str
) -> None:
    steps = Requests("http://here", 1.0, None).get("points", key)
    url = next(steps)
    if isinstance(key, str):
        assert url == "http://here/v1/stores?brief=true"
        url = steps.send(
            httpx.Response(200, json={"stores": [{"name": "points", "key": serde}]})
        )
    assert url == f"http://here/v1/stores/points/keys/{quote(text, safe='')}"


def test_an_older_instance_is_asked_for_serdes_in_its_own_words() -> None:
    steps = Requests("http://here", 1.0, None).get("points", "a")
    assert next(steps) == "http://here/v1/stores?brief=true"
    refused = {
        "error": "BAD_PARAMETER",
        "message": 'unknown parameter "brief"',
        "retryable": False,
    }
    assert (
        steps.send(httpx.Response(400, json=refused))
        == "http://here/v1/stores?local=true"
    )
    known = {"stores": [{"name": "points", "key": "text"}]}
    assert (
        steps.send(httpx.Response(200, json=known))
        == "http://here/v1/stores/points/keys/a"
    )


def test_a_key_that_is_not_there_is_none(queries: QueryClient) -> None:
    assert queries.get("counts", "nowhere") is None
    assert [
        found and found.value
        for found in queries.get_many("counts", ["w3", "nowhere", "a/b?"])
    ] == [3, None, 8]
    assert queries.get_many("counts", []) == []


def test_many_long_keys_are_asked_for_in_several_requests(queries: QueryClient) -> None:
    found = queries.get_many(
        "counts",
        [f"{'long ' * 30}{i}" if i % 40 else f"w{i // 40}" for i in range(1200)],
    )
    assert [f and f.value for f in found] == [
        None if i % 40 else i // 40 for i in range(1200)
    ]


def test_ranges_come_in_pages_that_nobody_sees(queries: QueryClient) -> None:
    assert [(e.key, e.value) for e in queries.range("counts", page=7)] == sorted(
        (key, value) for key, (value, _) in DATA["counts"].items()
    )
    assert [e.key for e in queries.range("counts", "w1", "w12")] == [
        "w1",
        "w10",
        "w11",
        "w12",
    ]
    assert [
        e.key for e in queries.range("counts", prefix="w4", reverse=True, page=3)
    ] == sorted((k for k in DATA["counts"] if k.startswith("w4")), reverse=True)
    assert [(e.key, e.window) for e in queries.range("hours", page=4)] == [
        ("k", (h * HOUR, (h + 1) * HOUR)) for h in range(6)
    ]


def test_windows_are_fetched_by_time(queries: QueryClient) -> None:
    assert queries.windows("hours", "k", HOUR, 2 * HOUR) == [
        WindowFound(h * HOUR, (h + 1) * HOUR, {"n": h}, h) for h in (1, 2)
    ]
    assert len(queries.windows("hours", "k")) == 6


def test_windows_and_sessions_come_in_answers_that_fit_into_memory(
    queries: QueryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_reads, "MOST_BYTES", 20)
    hours = [
        WindowFound(hour * HOUR, (hour + 1) * HOUR, {"n": hour}, hour)
        for hour in range(6)
    ]
    visits = [WindowFound(10 * n, 10 * n + 5, n, n) for n in range(9)]
    assert queries.windows("hours", "k") == hours
    assert queries.windows("hours", "k", limit=4) == hours[:4]
    assert queries.sessions("visits", "k") == visits
    assert queries.sessions("visits", "k", 12, 48) == visits[1:5]


def test_many_keys_come_in_answers_that_fit_into_memory(
    queries: QueryClient, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"w{i}" for i in range(50)]
    url = f"{cluster['b'].url}/v1/stores/counts/keys?"
    monkeypatch.setattr(local_reads, "MOST_BYTES", 20)
    answer = httpx.get(
        url + "&".join(f"key={key}" for key in keys), trust_env=False, timeout=60
    )
    assert (answer.status_code, answer.json()["error"]) == (413, "TOO_LARGE")
    assert "fewer" in answer.json()["message"]
    assert [
        found and found.value for found in queries.get_many("counts", keys)
    ] == list(range(50))
    monkeypatch.setattr(local_reads, "MOST_BYTES", 1)
    assert (
        httpx.get(url + "key=w1", trust_env=False, timeout=60).status_code
        == httpx.codes.OK
    )


def test_metadata_status_and_stores(queries: QueryClient, cluster: Cluster) -> None:
    assert [i["id"] for i in queries.metadata()["instances"]] == ["a", "b"]
    assert (
        queries.owner("counts", "w1")["owner"]["id"]
        == cluster.owner("counts", "w1").name
    )
    assert [i["state"] for i in queries.status()["instances"]] == ["running", "running"]
    assert {store["name"] for store in queries.stores()} >= {"counts", "hours"}


def test_what_will_never_succeed_is_raised_at_once(
    client: Client, cluster: Cluster
) -> None:
    with client(cluster["a"].url, deadline_s=3600) as patient:
        with pytest.raises(QueryError, match='no store "nope"') as caught:
            patient.get("nope", "a")
        assert (caught.value.code, caught.value.status) == ("UNKNOWN_STORE", 404)
        with pytest.raises(QueryError, match="is no int64 key"):
            patient.get("numbers", "x")


def test_a_task_that_moves_is_waited_for_until_the_deadline(client: Client) -> None:
    with Cluster(2, replace(LIMITS, retry_s=0.0)) as cluster:
        cluster.deal(2, DATA)
        task, owner = cluster.task("counts", "w1"), cluster.owner("counts", "w1")
        owner.close(task)
        owner.pending[task] = "restoring"
        with (
            client(cluster["a"].url, deadline_s=0.3) as hasty,
            pytest.raises(QueryError) as caught,
        ):
            hasty.get("counts", "w1")
        assert (caught.value.code, caught.value.retryable) == ("TASK_MOVING", True)
        reopening = threading.Timer(0.5, owner.open, (task, DATA))
        reopening.start()
        with client(cluster["a"].url, deadline_s=120) as patient:
            found = patient.get("counts", "w1")
        reopening.join()
        assert found is not None
        assert found.value == 1


def test_an_instance_that_is_not_there_is_an_error_that_says_where(
    client: Client,
) -> None:
    heard: list[QueryError] = []
    with (
        client("http://127.0.0.1:9", deadline_s=0.4, on_wait=heard.append) as queries,
        pytest.raises(QueryError, match=r"127\.0\.0\.1:9 does not answer"),
    ):
        queries.status()
    assert len(heard) == 1, "once, not at each attempt"


def test_a_server_that_is_no_instance_is_an_error_with_what_it_says() -> None:
    steps = Requests("http://web", 30.0, None).ask("/v1/status")
    next(steps)
    with pytest.raises(
        QueryError,
        match=r"HTTP status 200 with a body that is not ours: b'<html>log in",
    ):
        steps.send(httpx.Response(200, content=b"<html>log in</html>"))


def test_a_proxy_whose_instance_does_not_answer_is_asked_again() -> None:
    steps = Requests("http://proxy", 30.0, None).ask("/v1/status")
    next(steps)
    for status in (502, 503, 504):
        assert isinstance(
            steps.send(httpx.Response(status, content=b"<html>no upstream</html>")),
            float,
        )
        assert next(steps) == "http://proxy/v1/status"
    with pytest.raises(QueryError, match="HTTP status 500"):
        steps.send(httpx.Response(500, content=b"<html>wrong</html>"))


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        public = {
            name: method
            for name, method in inspect.getmembers(kind, callable)
            if not name.startswith("_")
        }
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in public.items()
        }

    assert methods(AsyncQueryClient) == methods(QueryClient)
    assert list(inspect.signature(AsyncQueryClient).parameters) == list(
        inspect.signature(QueryClient).parameters
    )


def test_a_pause_of_one_query_holds_up_no_other_of_the_loop() -> None:
    """While one query waits for a moving task, the loop answers others, and the request
    that ends the wait.
    """

    async def both(cluster: Cluster) -> tuple[Any, Any]:
        task, owner = cluster.task("counts", "w1"), cluster.owner("counts", "w1")
        owner.close(task)
        owner.pending[task] = "restoring"
        waits = asyncio.Event()
        async with AsyncQueryClient(
            cluster["a"].url, deadline_s=120, on_wait=lambda _: waits.set()
        ) as queries:
            moving = asyncio.ensure_future(queries.get("counts", "w1"))
            await waits.wait()
            stores = await queries.stores()
            owner.open(task, DATA)
            return await moving, stores

    with Cluster(2, replace(LIMITS, retry_s=0.0)) as cluster:
        cluster.deal(2, DATA)
        found, stores = asyncio.run(both(cluster))
    assert found.value == 1
    assert stores
