"""Kafka's jars: downloaded once from a Maven repository, checked against their pins; a
failure names the reason and keeps the valid files.
"""

from __future__ import annotations

import _thread
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from coopstreams.dev import pins
from coopstreams.dev.jars import KAFKA, REPOSITORY, kafka_jars
from coopstreams.topology.errors import DevError

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "http://127.0.0.1:9/"
VERSION = "9.9"
CONTENTS = {f"part-{number}": os.urandom(1000 * (1 + number)) for number in range(20)}
CONSOLE = Console(quiet=True)


class Repository(ThreadingHTTPServer):
    """A Maven repository over HTTP; `asked` has the paths of the requested jars."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.trickles = threading.Event()
        super().__init__(("127.0.0.1", 0), partial(Answer, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}"

    def put(self, artifact: str, content: bytes) -> None:
        path = (
            self.folder / "org" / "example" / artifact / "1.0" / f"{artifact}-1.0.jar"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Answer(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Repository)
        if self.path.endswith(".jar"):
            self.server.asked.append(Path(self.path).name)
        if self.server.trickles.is_set():
            self._trickle()
        else:
            super().do_GET()

    def _trickle(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000000")
        self.end_headers()
        with suppress(OSError):  # the client has closed the connection
            while True:
                self.wfile.write(b"x" * 8192)
                time.sleep(0.01)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
        pass


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """Yield a repository with the files of a pinned version, and an empty cache."""
    monkeypatch.setenv("COOPSTREAMS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pins, "FOLDER", tmp_path)
    lines = [
        f"org.example:{name}:1.0 {len(content)} {hashlib.sha256(content).hexdigest()}"
        for name, content in CONTENTS.items()
    ]
    (tmp_path / f"kafka-{VERSION}.jars").write_text("\n".join(lines))
    with Repository(tmp_path / "repository") as server:
        for name, content in CONTENTS.items():
            server.put(name, content)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_all_files_of_a_version_come_from_the_repository_and_nothing_else_is_left(
    tmp_path: Path, repository: Repository
) -> None:
    jars = kafka_jars(CONSOLE, repository.url, VERSION)
    assert {path.name: path.read_bytes() for path in jars.iterdir()} == {
        f"{name}-1.0.jar": content for name, content in CONTENTS.items()
    }
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [
        f"kafka-{VERSION}",
        f"kafka-{VERSION}.lock",
    ]


def test_a_file_with_another_content_is_not_used_and_the_next_download_fetches_only_what_is_missing(
    repository: Repository,
) -> None:
    repository.put("part-7", CONTENTS["part-7"][:-1] + b"?")
    repository.put("part-8", CONTENTS["part-8"][:-1])
    with pytest.raises(
        DevError,
        match=f"part-[78]-1.0.jar from {repository.url} has not the content that is pinned",
    ) as raised:
        kafka_jars(CONSOLE, repository.url, VERSION)
    assert REPOSITORY in str(raised.value)
    first, repository.asked = repository.asked, []
    for name in ("part-7", "part-8"):
        repository.put(name, CONTENTS[name])
    jars = kafka_jars(CONSOLE, repository.url, VERSION)
    assert {path.name: path.read_bytes() for path in jars.iterdir()} == {
        f"{name}-1.0.jar": content for name, content in CONTENTS.items()
    }
    assert len(set(first)) + len(repository.asked) < 2 * len(CONTENTS), (
        "files that were right came twice"
    )
    assert {"part-7-1.0.jar", "part-8-1.0.jar"} <= set(repository.asked)


def test_a_repository_without_a_file_is_named_with_the_file_and_the_cure(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository.folder / "org/example/part-3/1.0/part-3-1.0.jar").unlink()
    monkeypatch.setenv(REPOSITORY, repository.url + "/")
    with pytest.raises(
        DevError,
        match=rf"Apache Kafka {VERSION} could not be downloaded from {repository.url}.*part-3.*{REPOSITORY}.*run this "
        r"again",
    ):
        kafka_jars(CONSOLE, version=VERSION)


def test_without_a_network_the_error_has_the_cause_and_the_cure(
    repository: Repository, tmp_path: Path
) -> None:
    with pytest.raises(DevError) as raised:
        kafka_jars(CONSOLE, NOBODY, VERSION)
    message = str(raised.value)
    assert f"Apache Kafka {VERSION} could not be downloaded from {NOBODY}" in message
    assert "Connection refused" in message
    assert "HTTPS_PROXY" in message
    assert "0 of 20 files are kept" in message
    assert not (tmp_path / "cache" / f"kafka-{VERSION}").exists()


@pytest.mark.ci
def test_ctrl_c_ends_a_download_at_once_and_in_one_line(
    repository: Repository, tmp_path: Path
) -> None:
    repository.trickles.set()
    environment = os.environ | {
        "COOPSTREAMS_CACHE": str(tmp_path / "cache"),
        REPOSITORY: repository.url,
    }
    command = [
        sys.executable,
        "-m",
        "coopstreams",
        "dev",
        "--data",
        str(tmp_path / "data"),
    ]
    with subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        while not repository.asked:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said


def test_ctrl_c_just_before_the_wait_for_the_files_is_heard(
    repository: Repository,
) -> None:
    """The signal is pending, and the main thread is in a wait that no system call
    interrupts.
    """
    repository.trickles.set()

    def interrupt() -> None:
        while (
            len(repository.asked) < 8
        ):  # all workers: the main thread has begun to wait
            time.sleep(0.01)
        time.sleep(0.1)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        kafka_jars(CONSOLE, repository.url, VERSION)


def test_jars_that_are_there_need_no_network(
    repository: Repository, tmp_path: Path
) -> None:
    jars = tmp_path / "cache" / f"kafka-{VERSION}"
    jars.mkdir(parents=True)
    assert kafka_jars(CONSOLE, NOBODY, VERSION) == jars


def test_a_version_that_is_not_pinned_says_which_are_and_how_to_pin_it(
    repository: Repository,
) -> None:
    with pytest.raises(
        DevError,
        match=rf"Kafka 8.8 is not pinned, only {VERSION}. In a checkout, run: make pin KAFKA=8.8",
    ):
        kafka_jars(CONSOLE, repository.url, "8.8")


def test_the_pinned_files_of_the_version_in_use_are_a_broker_with_all_it_needs() -> (
    None
):
    files = pins.pins(KAFKA)
    assert f"kafka_{pins.SCALA}-{KAFKA}.jar" in {pin.file for pin in files}
    assert len({pin.file for pin in files}) == len(files) == 46
    assert sum(pin.size for pin in files) < 50_000_000
    assert all(len(bytes.fromhex(pin.sha256)) == 32 for pin in files)
