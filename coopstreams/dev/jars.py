"""Kafka's jars, downloaded once into the cache by jgo, a Maven client on PyPI: no
PySpark, no Maven, no tarball.

The files and their SHA-256 are pinned (`pins.py`). They come from Maven Central, which
is jgo's default, or from the repository that `DEFAULT_ARTIFACT_REPOSITORY` names, the
variable that Spark reads for the same purpose. jgo uses requests, so `HTTPS_PROXY`,
`NO_PROXY`, `REQUESTS_CA_BUNDLE` and `~/.netrc` apply.

Invariant: the folder that `kafka_jars` returns is complete, and each file in it has its
pinned content. A download that breaks off leaves the files it has checked in a
`.partial` folder, and the next download fetches the missing files.
Turned down: the Ivy inside PySpark (400 MB, to download 45), a client of our own
(proxies, certificates and rate limits are jgo's), keeping half of a file (the largest
has 10 MB).
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_EXCEPTION,
    Future,
    wait,
)
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from coopstreams.dev.cache import cache_folder, locked
from coopstreams.dev.pins import Pin, pins
from coopstreams.state.worker_pool import WorkerPool
from coopstreams.topology.errors import DevError

if TYPE_CHECKING:
    from jgo.maven import MavenContext

Reported = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""jgo calls it with a file's name and size; the context manager yields a function that
takes newly received bytes.
"""

KAFKA = "4.2.1"
"""The newest Kafka without KAFKA-20734. In 4.3.0, 4.3.1 and 4.4.0, a transaction
coordinator mistakes a partition that has no leader for a moment (a broker stops, the
partition has one replica) for a deleted one: it calls the transaction complete, and the
partition never gets its marker. Exactly-once then loses records.
`tests/broker/test_hanging_transactions.py` reproduces it; do not upgrade to a version
that loses records there.
"""

REPOSITORY = "DEFAULT_ARTIFACT_REPOSITORY"
_AT_A_TIME = 8
_TIMEOUT_S = 20
_LISTEN_EVERY_S = 0.2


def kafka_jars(
    console: Console,
    repository: str | None = None,
    version: str = KAFKA,
) -> Path:
    """Return the folder with the jars of a version of Kafka; download them if they are
    not there yet.

    Raises:
        DevError: jgo is not installed, the download failed, or a file differs from its
        pinned content; the message has the cure.
    """
    jars = cache_folder() / f"kafka-{version}"
    if jars.is_dir():
        return jars
    with locked(jars.with_name(jars.name + ".lock")):
        if not jars.is_dir():
            _download(version, jars, console, repository or os.environ.get(REPOSITORY))
    return jars


def _download(
    version: str,
    jars: Path,
    console: Console,
    repository: str | None,
) -> None:
    wanted = pins(version)
    partial = jars.with_name(jars.name + ".partial")
    checked = partial / "checked"
    checked.mkdir(parents=True, exist_ok=True)
    missing = [pin for pin in wanted if not (checked / pin.file).exists()]
    total = sum(pin.size for pin in wanted)
    rest = sum(pin.size for pin in missing)
    where = repository or "Maven Central"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=console)
    bar = progress.add_task("downloading", total=total, completed=total - rest)
    download = _Download(
        partial / "maven",
        checked,
        repository,
        lambda count: progress.advance(bar, count),
    )
    console.print(
        f"Downloading Apache Kafka {version} from {where}: {len(missing)} files, {rest / 1e6:.0f} MB, once, "
        f"into {jars}",
        highlight=False,
        soft_wrap=True,
    )
    with progress:
        try:
            download.run(missing)
        except (OSError, RuntimeError) as error:  # raised by requests and by jgo
            have = sum((checked / pin.file).exists() for pin in wanted)
            raise DevError(
                f"Apache Kafka {version} could not be downloaded from {where}: {error}. Is there a network? Behind a "
                f"proxy set HTTPS_PROXY; for another Maven repository set {REPOSITORY} to its URL. Then run this "
                f"again: {have} of {len(wanted)} files are kept"
            ) from error
    checked.rename(jars)
    shutil.rmtree(partial, ignore_errors=True)


class _Download:
    """Downloads files from a Maven repository into a folder, several at a time; a
    failure cancels the others.
    """

    def __init__(
        self,
        cache: Path,
        folder: Path,
        repository: str | None,
        progress: Callable[[int], None],
    ) -> None:
        self._folder = folder
        self._where = repository or "Maven Central"
        self._progress = progress
        self._stopped = threading.Event()
        self._maven = maven(cache, repository, self._reported)

    def run(self, files: list[Pin]) -> None:
        """Fetch files; return when the folder has all of them.

        Raises:
            OSError, RuntimeError: a download failed.
            DevError: a file differs from its pinned content.
        """
        workers = WorkerPool("download", _AT_A_TIME)
        futures: list[Future[None]] = []
        try:
            for pin in sorted(files, key=lambda pin: -pin.size):
                futures.append(Future())
                workers.put(self, partial(self._fetch_for, futures[-1], pin))
            done = _wait(futures, FIRST_EXCEPTION)
        finally:
            # Ctrl-C: do not wait for a repository that does not answer
            self._stopped.set()
        _wait(futures, ALL_COMPLETED)
        for future in done:
            future.result()

    def _fetch_for(self, future: Future[None], pin: Pin) -> None:
        """Fetch a file, and set the result of `future`, or the error that it raises."""
        try:
            if not self._stopped.is_set():
                self._fetch(pin)
        except Exception as error:  # noqa: BLE001 raised by whoever waits for the files
            future.set_exception(error)
        else:
            future.set_result(None)

    def _fetch(self, pin: Pin) -> None:
        artifact = (
            self._maven.project(pin.group, pin.artifact)
            .at_version(pin.version)
            .artifact()
        )
        if artifact.cached_path is not None:
            artifact.cached_path.unlink(
                missing_ok=True
            )  # incomplete: jgo writes under the final name
        path = artifact.resolve()
        if not pin.is_content_of(path):
            raise DevError(
                f"{pin.file} from {self._where} has not the content that is pinned (SHA-256 {pin.sha256}): it is not "
                f"used. Does a mirror or a proxy answer with something else? Set {REPOSITORY} to the URL of a Maven "
                "repository that has it, and run this again"
            )
        path.rename(self._folder / pin.file)

    @contextmanager
    def _reported(self, _file: str, _size: int) -> Iterator[Callable[[int], None]]:
        def advance(count: int) -> None:
            if self._stopped.is_set():
                raise RuntimeError("stopped")
            self._progress(count)

        yield advance


def _wait(futures: list[Future[None]], until: str) -> set[Future[None]]:
    """Return the finished futures, as `concurrent.futures.wait` does; raise
    KeyboardInterrupt soon after Ctrl-C.

    Python handles a signal between two steps of the main thread. A signal just before a
    wait without a limit would be handled only when that wait ends: one of some hundred
    downloads went on after Ctrl-C.
    """
    while True:
        done, others = wait(futures, _LISTEN_EVERY_S, until)
        if not others or (
            until == FIRST_EXCEPTION
            and any(future.exception() is not None for future in done)
        ):
            return done


def maven(
    cache: Path,
    repository: str | None,
    reported: Reported | None = None,
) -> MavenContext:
    """Return a client that keeps downloads in `cache`, and does not use the machine's
    own Maven repository.

    Raises:
        DevError: jgo is not installed.
    """
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise DevError(
            f"downloading Kafka needs jgo ({error}). Run: pip install 'coopstreams[dev]'"
        ) from error
    remote = {"repository": repository.rstrip("/")} if repository else None
    return MavenContext(
        PythonResolver(progress_callback=reported),
        cache,
        [],
        remote,
        timeout=_TIMEOUT_S,
    )
