"""Faults of a storage: transient ones are retried, others leave the restore to the
changelog. `s3fs` against a server over HTTP.
"""

from __future__ import annotations

import http.client
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.published_snapshot import Snapshots
from coopstreams.state.snapshot_download import Downloads, SnapshotDownload
from tests.state.bounds import bounds
from tests.state.rows import stored
from tests.state.test_published_snapshot import (
    CHANGELOG,
    PARTITION,
    ended,
    publish,
    restored,
)
from tests.state.test_restore import SPEC, some_log

LOG = some_log(500)
TRUTH = stored(restored(LOG, 600))
numbers = count()


class Flaky(ThreadingHTTPServer):
    """Forwards requests to a server; the first download of each path fails, and the
    second one is cut short.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.upstream = urlsplit(upstream).netloc
        self.asked: Counter[str] = Counter()


class Passing(BaseHTTPRequestHandler):
    """A forwarded request."""

    protocol_version = "HTTP/1.1"

    @property
    def flaky(self) -> Flaky:
        """Return the server behind a flaky forwarder."""
        assert isinstance(self.server, Flaky)
        return self.server

    def do_GET(self) -> None:
        """Answer a download or a listing."""
        path = urlsplit(self.path).path
        self.flaky.asked[path] += 1
        if self.flaky.asked[path] == 1:
            self.answer(
                503,
                [],
                b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
            )
            return
        status, headers, body = self.passed_on()
        self.answer(
            status,
            headers,
            body,
            len(body) // 2 if self.flaky.asked[path] == 2 else len(body),
        )

    def do_HEAD(self) -> None:
        """Answer as the server behind does."""
        self.answer(*self.passed_on())

    def passed_on(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the answer of the server behind: status, headers, body."""
        connection = http.client.HTTPConnection(self.flaky.upstream, timeout=60)
        connection.request(
            self.command,
            self.path,
            headers={
                name: value
                for name, value in self.headers.items()
                if name.lower() != "host"
            },
        )
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        skipped = {"transfer-encoding", "connection"} | (
            {"content-length"} if self.command == "GET" else set()
        )
        return (
            answer.status,
            [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in skipped
            ],
            body,
        )

    def answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
        upto: int | None = None,
    ) -> None:
        """Send the answer, up to this many bytes; a shorter one ends the connection."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command == "GET":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:upto])
            self.close_connection = upto is not None and upto < len(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


@contextmanager
def answering(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make new clients find S3 at an address."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def published(bucket: str) -> str:
    """The URL of a snapshot in a bucket."""
    url = f"{bucket}/faults-{os.getpid()}-{next(numbers)}"
    publish(url, restored(LOG, 600))
    return url


def restored_from_snapshot(url: str, folder: Path) -> tuple[Database, int]:
    """Return a database restored from the whole snapshot, and the number of keys from
    it.
    """
    database, downloads = (
        Database(Memory(), [SPEC]),
        Downloads(lambda: 0.0),
    )  # never silent
    snapshots = Snapshots(url, "app", folder / "incoming")
    return database, ended(
        SnapshotDownload(
            downloads,
            snapshots,
            database,
            SPEC,
            PARTITION,
            CHANGELOG,
            range(256),
            bounds(1000),
        ),
        downloads,
    ).keys


@pytest.mark.ci
def test_errors_that_pass_and_answers_that_are_cut_short_cost_only_a_repetition(
    published: str, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Flaky(s3_server)
    serving = Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        with answering(f"http://127.0.0.1:{server.server_port}", monkeypatch):
            database, keys = restored_from_snapshot(published, tmp_path)
    finally:
        server.shutdown()
        serving.join(60)
        server.server_close()
    assert (keys, stored(database)) == (len(TRUTH), TRUTH)
    files = [path for path in server.asked if path.endswith(".sst")]
    assert len(files) > 20
    assert all(server.asked[path] >= 3 for path in files)


def test_a_bucket_that_is_not_there_is_left_out(
    published: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(
        "AWS_MAX_ATTEMPTS", "1"
    )  # otherwise the test waits for the driver's own retries
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        with (
            answering(f"http://127.0.0.1:{nobody.getsockname()[1]}", monkeypatch),
            caplog.at_level(logging.WARNING),
        ):
            database, keys = restored_from_snapshot(published, tmp_path)
    assert (keys, database.is_empty()) == (0, True)
    assert "Could not connect" in caplog.text
    assert "The changelog restores it." in caplog.text
