"""`async with CoopStreams(...)`: instances in a program of asyncio, which answers
queries with its own server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from coopstreams import (
    AsyncQueryClient,
    CoopStreams,
    StreamsBuilder,
    StreamsState,
    serdes,
)
from coopstreams.topology.errors import LogError, ProcessingError, QueryError
from tests.broker.counting import Counting
from tests.conftest import PATIENT, Kafka

KEYS = [f"key {number}" for number in range(12)]


@asynccontextmanager
async def served(app: CoopStreams, listener: socket.socket) -> AsyncIterator[None]:
    """Run the instance as the lifespan of a web server with its queries under /state."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    web = Starlette(routes=[Mount("/state", app=app.asgi())], lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(web, log_config=None, lifespan="on"))
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def owners(client: AsyncQueryClient) -> set[str | None]:
    """Return the owner of each key; None for a key that is moving."""
    found = [(await client.owner("counts", key))["owner"] for key in KEYS]
    return {owner and owner["url"] for owner in found}


@pytest.mark.ci
@pytest.mark.broker
def test_instances_in_one_event_loop_find_each_other_by_the_servers_of_the_program(
    kafka: Kafka, tmp_path: Path
) -> None:
    async def found() -> list[int]:
        async with AsyncExitStack() as open_:
            urls, apps = [], []
            for number in range(2):
                listener = socket.create_server(("127.0.0.1", 0))
                urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}/state")
                apps.append(
                    counting.app(
                        tmp_path,
                        number,
                        http_listen="",
                        application_server=urls[-1],
                        ranges_per_partition=4,
                    )
                )
                await open_.enter_async_context(served(apps[-1], listener))
            while {app.state for app in apps} != {StreamsState.RUNNING}:
                await asyncio.sleep(0.05)
            clients = [
                await open_.enter_async_context(AsyncQueryClient(url, deadline_s=60))
                for url in urls
            ]
            while await owners(clients[0]) != set(urls):
                await asyncio.sleep(0.05)
            for client in clients:
                while [
                    row and row.value for row in await client.get_many("counts", KEYS)
                ] != [2] * len(KEYS):
                    await asyncio.sleep(0.05)
            return [entry.value async for entry in clients[1].range("counts")]

    counting = Counting.make(kafka)
    counting.write(KEYS * 2)
    assert asyncio.run(found()) == [2] * len(KEYS)


@pytest.mark.broker
def test_an_error_cancels_the_block_and_is_raised_by_it(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    builder = StreamsBuilder(counting.application)
    rows = (
        builder.stream(counting.source, key=serdes.text, value=serdes.raw)
        .group_by_key()
        .count(store="rows")
    )
    rows.to_stream().peek(lambda _key, _value: 1 // 0).to(counting.sink)
    app = CoopStreams(
        builder.build(),
        {**kafka.settings, **PATIENT, "state.dir": str(tmp_path), "http.listen": ""},
    )
    reached = []

    async def body() -> None:
        async with app:
            counting.write(["key"])
            try:
                await asyncio.Event().wait()
            finally:
                reached.append("the end of the block")

    with pytest.raises(ProcessingError, match="ZeroDivisionError"):
        asyncio.run(body())
    assert reached == ["the end of the block"]
    assert app.state is StreamsState.ERROR
    with pytest.raises(QueryError) as caught:
        app.store("rows").get("key")
    assert caught.value.code == "TASK_MOVING"


@pytest.mark.broker
def test_ctrl_c_drains_and_stays_a_cancellation(kafka: Kafka, tmp_path: Path) -> None:
    """`asyncio.run` makes Ctrl-C the cancellation of its task."""
    app = Counting.make(kafka).app(tmp_path, http_listen="")

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with app:
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()

    async def cancelled() -> bool:
        return (
            await asyncio.gather(asyncio.ensure_future(body()), return_exceptions=True)
        )[0].__class__ is (asyncio.CancelledError)

    assert asyncio.run(cancelled())
    assert app.state is StreamsState.NOT_RUNNING


def test_a_start_that_fails_raises_and_holds_up_nothing_else(tmp_path: Path) -> None:
    builder = StreamsBuilder("unreachable")
    builder.stream("in", key=serdes.raw, value=serdes.raw).to("out")
    app = CoopStreams(
        builder.build(),
        {
            "bootstrap.servers": "127.0.0.1:9",
            "state.dir": str(tmp_path),
            "connect.timeout.ms": 1000,
            "http.listen": "",
        },
    )
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def body() -> None:
        other = asyncio.ensure_future(turning())
        try:
            async with app:
                pytest.fail("it began")
        finally:
            other.cancel()

    with pytest.raises(LogError, match=r"127\.0\.0\.1:9"):
        asyncio.run(body())
    assert turns > 1
