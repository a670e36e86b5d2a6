"""The progress of a stage's tasks: each writes a small file into the folder of the run,
which the driver reads.

    history   a partition of a topic on its way to the tasks
    task      a task: a partition's key range

Invariant: progress reports never affect the run: a report that cannot be written is a
warning in the log of the task, which continues. Turned down: Spark's status tracker and
accumulators (missing in Spark Connect; they report a task only when it has ended, and
not which task).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import msgspec

from coopstreams.state.storage import Storage
from coopstreams.topology.errors import SnapshotError

log = logging.getLogger(__name__)

EVERY_S = 1.0

Kind = Literal["history", "task"]
Bounds = tuple[int, int] | None
"""Offsets [start, end) of a source. None for a table or another stage, whose end is
unknown until it is reached.
"""


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of a task (`kind` "task"), or of reading a partition ("history").

    Units: `records` that it took; `position` and `target` in offsets, over all sources.
    `target` is None if it is not known.
    """

    kind: Kind
    name: str
    records: int
    position: int
    target: int | None
    done: bool = False


_REPORTS = msgspec.json.Decoder(TaskProgress)


class Reporter:
    """Writes the progress of one task, or of reading one partition. Belongs to one
    thread.

    `folder`: that of the stage's reports; None: write nothing. `sources`: the offset
    bounds of the sources, in order.
    """

    def __init__(
        self,
        folder: str | None,
        kind: Kind,
        file: str,
        name: str,
        sources: Sequence[Bounds],
    ) -> None:
        self._storage = None if folder is None else Storage(folder)
        self._kind: Kind = kind
        self._file = f"{kind}-{file}"
        self._name = name
        self._starts = [None if bounds is None else bounds[0] for bounds in sources]
        known = [bounds for bounds in sources if bounds is not None]
        self._target = (
            sum(end - start for start, end in known)
            if len(known) == len(sources)
            else None
        )
        self._reached = [0] * len(sources)
        self._records = 0
        self._said_at = -EVERY_S
        self._say(done=False)

    def took(
        self,
        source: int,
        records: int,
        next_offset: int,
    ) -> None:
        """Note records of a source; `next_offset` is the first offset behind them."""
        self._records += records
        self._reached[source] = next_offset - (self._starts[source] or 0)
        if time.monotonic() - self._said_at >= EVERY_S:
            self._say(done=False)

    def end(self) -> None:
        """Report that the work is done."""
        self._say(done=True)

    def _say(self, *, done: bool) -> None:
        if self._storage is None:
            return
        position = (
            self._target if done and self._target is not None else sum(self._reached)
        )
        report = TaskProgress(
            self._kind,
            self._name,
            self._records,
            position,
            self._target,
            done,
        )
        try:
            self._storage.write(self._file, msgspec.json.encode(report))
        except SnapshotError as error:
            log.warning(
                "%s continues, but cannot report its progress: %s",
                self._name,
                error,
            )
            self._storage = None
        self._said_at = time.monotonic()


class ProgressWatcher:
    """Reads the reports of a stage once a second, on its own thread, and passes them to
    `tell`; once more when its block ends without error.

    Raises (on leaving the block):
        Exception: what `tell` raised.
    """

    def __init__(
        self,
        folder: str,
        tell: Callable[[Sequence[TaskProgress]], None],
    ) -> None:
        self._storage = Storage(folder)
        self._tell = tell
        self._seen: dict[str, TaskProgress] = {}
        self._stop = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._look()
            if self._failed is not None:
                raise self._failed

    def _run(self) -> None:
        while self._failed is None and not self._stop.wait(EVERY_S):
            self._look()

    def _look(self) -> None:
        if self._failed is not None:
            return
        try:
            self._tell(self._reports())
        except (
            SnapshotError,
            msgspec.DecodeError,
        ) as error:  # not all storages write a name as a whole
            log.warning("how far the tasks are cannot be told: %s", error)
        except (
            Exception
        ) as error:  # `tell` belongs to the user: raise its error where the block ends
            log.debug("the progress of the tasks is no longer reported", exc_info=True)
            self._failed = error

    def _reports(self) -> list[TaskProgress]:
        """Return the latest report of each task, in the order of their names."""
        for name in self._storage.names():
            seen = self._seen.get(name)
            if name.startswith(".") or (
                seen is not None and seen.done
            ):  # a dot file is still being written
                continue
            data = self._storage.read(name)
            if data is not None:
                self._seen[name] = _REPORTS.decode(data)
        return [report for _, report in sorted(self._seen.items())]
