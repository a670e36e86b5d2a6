"""The query routes in a program's own ASGI server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from coopstreams.query.access import Access
from coopstreams.query.app import MountedApp, QueryApp
from coopstreams.query.paths import path_text
from tests.query.cluster import LIMITS, Cluster, Data

DATA: Data = {"counts": {key: (number, number) for number, key in enumerate(["be", "a/b?", "..", "state", ""])}}


def test_mounted_routes_answer_under_their_prefix_while_the_instance_runs() -> None:
    async def answers(cluster: Cluster) -> tuple[int, list[Any], int, int]:
        mounted = MountedApp()
        web = httpx.ASGITransport(Starlette(routes=[Mount("/my/state", app=mounted)]))
        app = QueryApp(cluster["a"], cluster["a"].metrics, LIMITS, Access({"operate": ["secret"], "read": ["secret"]}))
        headers = {"authorization": "Bearer secret"}
        async with httpx.AsyncClient(transport=web, base_url="http://web/my/state", headers=headers) as client:
            before = (await client.get("/v1/stores")).status_code
            async with mounted.serving(app):
                paths = [f"/v1/stores/counts/keys/{path_text(key)}" for key in DATA["counts"]]
                found = [(await client.get(path)).json()["value"] for path in paths]
                found.append((await client.get("/v1/metadata/counts/a%2Fb")).json()["key"])
                refused = (await client.get("/v1/stores", headers={"authorization": ""})).status_code
            return before, found, refused, (await client.get("/v1/stores")).status_code

    with Cluster(1, replace(LIMITS, retry_s=0.0)) as cluster:
        cluster.deal(2, DATA)
        before, found, refused, after = asyncio.run(answers(cluster))
    assert found == [0, 1, 2, 3, 4, "a/b"]
    assert (before, refused, after) == (503, 401, 503)
