"""Engines to test against: each test that takes `new_engine` runs in memory, on RocksDB
and on SQLite.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest

from coopstreams.state.engine import Engine
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from tests.state.sqlite_engine import Sqlite

BUCKET = "snapshots"
NewEngine: TypeAlias = Callable[[], Engine]


@pytest.fixture(params=["memory", "rocks", "sqlite"])
def new_engine(request: pytest.FixtureRequest, tmp_path: Path) -> NewEngine:
    """Return a function that makes an empty engine: one of ours, or one of a user's
    kind.
    """
    numbers = count()

    def on_disk() -> Engine:
        folder = tmp_path / f"engine-{next(numbers)}"
        folder.mkdir()
        return Rocks(folder) if request.param == "rocks" else Sqlite(folder)

    return Memory if request.param == "memory" else on_disk


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Return the address of a server that speaks S3, in this process."""
    from moto.server import ThreadedMotoServer  # slow to import

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an existing S3 bucket; drivers find address and credentials in
    the environment.
    """
    import s3fs

    variables = {
        "ENDPOINT_URL": s3_server,
        "ACCESS_KEY_ID": "key",
        "SECRET_ACCESS_KEY": "secret",
        "DEFAULT_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    files = s3fs.S3FileSystem()
    if not files.exists(BUCKET):
        files.mkdir(BUCKET)
    return f"s3://{BUCKET}"
