"""A file system whose downloads wait until a test releases them: `held:///folder`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem


class Gate:
    """Holds the downloads that match `holds`, each half-way. Closed at first."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        self.holds = holds
        self.opened = threading.Event()
        self.held: list[str] = []
        """The requests that are held."""


class LocalFiles(LocalFileSystem):  # type: ignore[misc]
    """Local files under another protocol."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the path of a file; before fsspec 2026.4, that of local files only."""
        plain = (
            path.removeprefix(f"{cls.protocol}://") if isinstance(path, str) else path
        )
        return super()._strip_protocol(plain)


class Held(LocalFiles):
    """The file system: local files whose downloads wait at gates."""

    protocol = "held"
    gates: ClassVar[dict[str, Gate]] = {}

    def get_file(
        self, path1: str, path2: str, callback: Any = None, **options: Any
    ) -> None:
        """Copy a file in two halves; between them, wait."""
        gate = next(
            gate
            for folder, gate in list(self.gates.items())
            if path1.startswith(folder)
        )
        data = Path(path1).read_bytes()
        with Path(path2).open("wb") as file:
            file.write(data[: len(data) // 2])
            callback.relative_update(len(data) // 2)
            if gate.holds(path1):
                gate.held.append(path1)
                gate.opened.wait()
            file.write(data[len(data) // 2 :])
            callback.relative_update(len(data) - len(data) // 2)


@contextmanager
def gate(folder: str, holds: Callable[[str], bool] = lambda _: True) -> Iterator[Gate]:
    """Hold the downloads of a folder until the end of the test."""
    fsspec.register_implementation("held", Held, clobber=True)
    made = Held.gates[folder] = Gate(holds)
    try:
        yield made
    finally:
        made.opened.set()


def on_the_way() -> list[threading.Thread]:
    """Return this process's threads that download snapshots."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name in ("manifest", "snapshot", "ingest")
    ]


def fetchers() -> list[threading.Thread]:
    """Return this process's threads that fetch slices."""
    return [thread for thread in threading.enumerate() if thread.name == "snapshot"]
