"""An instance in a program, without brokers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from coopstreams import CoopStreams, StreamsBuilder, StreamsState, serdes
from coopstreams.dev.process import wait_until
from coopstreams.state.directory import StateDirectory
from coopstreams.topology.errors import ConfigError, LogError


def without_brokers(folder: Path, **settings: str) -> CoopStreams:
    builder = StreamsBuilder("retried")
    builder.stream("in", key=serdes.text, value=serdes.text).to("out")
    nowhere = {
        "bootstrap.servers": "127.0.0.1:1",
        "connect.timeout.ms": 1000,
        "http.listen": "",
    }
    own = {name.replace("_", "."): value for name, value in settings.items()}
    return CoopStreams(builder.build(), {**nowhere, "state.dir": str(folder), **own})


def test_an_instance_that_could_not_start_does_not_start_behind_its_error_when_it_is_tried_again(
    tmp_path: Path,
) -> None:
    app = without_brokers(tmp_path)
    with pytest.raises(LogError), app:
        pass

    async def entered() -> None:
        async with app:
            pass

    for again in (app.run, app.__enter__, lambda: asyncio.run(entered())):
        with pytest.raises(
            RuntimeError, match="has run before, it is error: make another CoopStreams"
        ):
            again()


def test_ctrl_c_while_a_block_is_entered_ends_the_instance(tmp_path: Path) -> None:
    """No block was entered, so nothing else would stop it: it would run on behind the
    program's back.
    """
    app = without_brokers(tmp_path)

    def strike() -> None:
        while app.state is StreamsState.CREATED:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    striking = threading.Thread(target=strike)
    striking.start()
    with pytest.raises(KeyboardInterrupt), app:
        pytest.fail("no broker answers")
    striking.join()
    # Ctrl-C waits for the end only so long: on a busy machine it comes later.
    assert wait_until(lambda: app.state is StreamsState.NOT_RUNNING, 60)
    StateDirectory(tmp_path, "retried", 0).close()


def test_a_block_of_asyncio_that_is_cancelled_while_it_is_entered_waits_for_the_end_of_the_instance(
    tmp_path: Path,
) -> None:
    """Otherwise a program that ends then leaves a member behind, which the group waits
    for.
    """
    app = without_brokers(tmp_path)

    async def entered() -> None:
        async with app:
            pytest.fail("no broker answers")

    async def cancelled() -> None:
        entering = asyncio.create_task(entered())
        while app.state is StreamsState.CREATED:
            await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert app.state is StreamsState.NOT_RUNNING

    asyncio.run(cancelled())


@pytest.mark.parametrize(
    ("url", "says"),
    [("gs://bucket/snapshots", "gcsfs"), ("s4://bucket", "Protocol not known: s4")],
)
def test_snapshots_that_cannot_be_read_are_an_error_at_start(
    tmp_path: Path, url: str, says: str
) -> None:
    with pytest.raises(
        ConfigError,
        match=f'snapshots.dir: "{url}" is no storage for snapshots: .*{says}',
    ):
        without_brokers(tmp_path, snapshots_dir=url).run()


def test_a_folder_of_snapshots_that_is_not_there_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder, warned in ((tmp_path / "snapshost", True), (tmp_path, False)):
        caplog.clear()
        with pytest.raises(LogError):
            without_brokers(tmp_path, snapshots_dir=str(folder)).run()
        assert (
            f"snapshots.dir = {folder}: there is no such folder" in caplog.text
        ) is warned
