"""An instance in a program, without brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.topology.errors import LogError


def test_an_instance_that_could_not_start_does_not_start_behind_its_error_when_it_is_tried_again(
    tmp_path: Path,
) -> None:
    builder = StreamsBuilder("retried")
    builder.stream("in", key=serdes.text, value=serdes.text).to("out")
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "connect.timeout.ms": 1000, "http.listen": ""}
    app = CoopStreams(builder.build(), {**nowhere, "state.dir": str(tmp_path)})
    with pytest.raises(LogError), app:
        pass

    async def entered() -> None:
        async with app:
            pass

    for again in (app.run, app.__enter__, lambda: asyncio.run(entered())):
        with pytest.raises(RuntimeError, match="has run before, it is error: make another CoopStreams"):
            again()
