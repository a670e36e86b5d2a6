"""The query routes in a program's own ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from threading import Event, Semaphore
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from coopstreams.query.access import Access
from coopstreams.query.app import MountedApp, QueryApp
from coopstreams.query.backend import NotOpen, OpenView
from coopstreams.query.paths import path_text
from tests.query.cluster import LIMITS, Cluster, Data, Node

DATA: Data = {
    "counts": {
        key: (number, number)
        for number, key in enumerate(["be", "a/b?", "..", "state", ""])
    }
}


def test_mounted_routes_answer_under_their_prefix_while_the_instance_runs() -> None:
    async def answers(cluster: Cluster) -> tuple[int, list[Any], int, int]:
        mounted = MountedApp()
        web = httpx.ASGITransport(Starlette(routes=[Mount("/my/state", app=mounted)]))
        app = QueryApp(
            cluster["a"],
            cluster["a"].metrics,
            LIMITS,
            Access({"operate": ["secret"], "read": ["secret"]}),
        )
        headers = {"authorization": "Bearer secret"}
        async with httpx.AsyncClient(
            transport=web, base_url="http://web/my/state", headers=headers
        ) as client:
            before = (await client.get("/v1/stores")).status_code
            async with mounted.serving(app):
                paths = [
                    f"/v1/stores/counts/keys/{path_text(key)}" for key in DATA["counts"]
                ]
                found = [(await client.get(path)).json()["value"] for path in paths]
                found.append(
                    (await client.get("/v1/metadata/counts/a%2Fb")).json()["key"]
                )
                refused = (
                    await client.get("/v1/stores", headers={"authorization": ""})
                ).status_code
            return before, found, refused, (await client.get("/v1/stores")).status_code

    with Cluster(1, replace(LIMITS, retry_s=0.0)) as cluster:
        cluster.deal(2, DATA)
        before, found, refused, after = asyncio.run(answers(cluster))
    assert found == [0, 1, 2, 3, 4, "a/b"]
    assert (before, refused, after) == (503, 401, 503)


class Asked(Node):
    """Says when it is asked for a view, and gives it when it may."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked, self.goes_on = Semaphore(0), Event()

    def view(self, store: str, partition: int, hash_: int) -> OpenView | NotOpen:
        self.asked.release()
        self.goes_on.wait()
        return super().view(store, partition, hash_)

    def views(self, store: str) -> Sequence[OpenView | NotOpen]:
        self.asked.release()
        self.goes_on.wait()
        return super().views(store)


def test_requests_that_are_under_way_when_the_instance_ends_may_be_repeated() -> None:
    """Of six for a key, four are being read, and two wait for a thread; so it is with
    those for a range.
    """

    async def answers(node: Asked) -> list[httpx.Response]:
        mounted = MountedApp()
        app = QueryApp(node, node.metrics, replace(LIMITS, retry_s=60.0), Access())
        async with (
            httpx.AsyncClient(
                transport=httpx.ASGITransport(mounted), base_url="http://web"
            ) as client,
            AsyncExitStack() as running,
        ):
            await running.enter_async_context(mounted.serving(app))
            paths = [*["keys/be"] * 5, "keys?key=be", *["range"] * 4]
            asking = [
                asyncio.create_task(client.get(f"/v1/stores/counts/{path}"))
                for path in paths
            ]
            for _ in range(4 + 2):
                await asyncio.to_thread(node.asked.acquire)
            ending = asyncio.create_task(running.aclose())
            early, late = await asyncio.wait(
                asking, return_when=asyncio.FIRST_COMPLETED
            )
            assert len(late) >= 4
            node.goes_on.set()
            await ending
            return [await one for one in (*early, *late)]

    with Cluster(1, kind=Asked) as cluster:
        cluster.deal(1, DATA)
        node, task = cluster["a"], cluster.task("counts", "be")
        node.close(task)
        node.pending[task] = "closing"
        assert isinstance(node, Asked)
        found = asyncio.run(answers(node))
    assert {(one.status_code, one.json()["error"]) for one in found} == {
        (503, "TASK_MOVING")
    }
