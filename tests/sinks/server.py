"""A PostgreSQL server for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from coopstreams.dev.process import port_is_free


def programs() -> Path | None:
    """Return the folder of the server's programs; None: it is not on this machine."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    return next(
        iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None
    )


class PostgresServer:
    """A server on a free port, which can be killed and started again on its data."""

    def __init__(self, folder: Path) -> None:
        self._programs = programs()
        self._user = (
            _other_user() if os.getuid() == 0 else None
        )  # the server refuses to run as root
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._log = folder / "postgres.log"
        self._port = next(
            port
            for port in range(18_000 + os.getpid() % 2000, 30_000)
            if port_is_free(port)
        )
        if self._user is not None:
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._data = self._folder / "data"
        make = [
            "initdb",
            "-D",
            str(self._data),
            "-U",
            "tester",
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        subprocess.run(
            [str(self._at(make[0])), *make[1:]],
            check=True,
            capture_output=True,
            user=self._user,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def dsn(self) -> str:
        """The connection string."""
        return f"host=127.0.0.1 port={self._port} user=tester dbname=postgres"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = [
            "-D",
            str(self._data),
            "-p",
            str(self._port),
            "-k",
            str(self._folder),
            "-c",
            "fsync=off",
        ]
        with self._log.open("ab") as log:
            command = [str(self._at("postgres")), *options]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=self._user
            )
        for _ in range(600):
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError(self._log.read_text())

    def stop(self) -> None:
        """End the server and all connections at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """End the server, and remove its data."""
        self.stop()
        shutil.rmtree(self._folder)

    def run(self, text: Any, *values: object) -> list[Any]:
        """Execute a statement, and return its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            done = connection.execute(text, values or None)
            return [] if done.description is None else done.fetchall()

    def _at(self, program: str) -> Path:
        assert self._programs is not None
        return self._programs / program


def _other_user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
