"""Opens the sessions of tasks with external sinks.

A sink that is unavailable may take long to fail. So each session is opened by a thread
of its own, which retries until the sink answers. No other task waits for it, and `why`
returns the reason.

Invariant: a session is opened after the barrier, when the group's positions are known.
So if a partition unknown to the sink has no position in the group, none of its records
were ever applied; if it has one, the sink has lost its own.
Relies on: `topology.external_sinks` (what `open` does), `opener` (the barrier before
it).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from coopstreams.commit.progress import Progress
from coopstreams.common.host import SYSTEM, Host, Signal
from coopstreams.log.log import Log
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import AccessDeniedError, ConfigError, LogError
from coopstreams.topology.external_sinks import SinkPartition, SinkSession
from coopstreams.topology.graph.nodes import ApplyTo
from coopstreams.topology.task_id import TaskId

FIRST_PAUSE_S = 0.2
MOST_PAUSE_S = 10.0


@dataclass(slots=True, eq=False)
class _Opening:
    left: Signal
    session: SinkSession | None = None
    error: BaseException | None = None
    why: str = ""
    done: Signal = field(kw_only=True)


class SinkOpenings:
    """The sessions that are being opened. The opener thread calls its methods; any
    thread may call `why`.
    """

    def __init__(
        self,
        application: str,
        log: Log,
        tell: Callable[[], None],
        host: Host = SYSTEM,
    ) -> None:
        """`tell`: called when a session is open, or cannot be opened."""
        self._application = application
        self._log = log
        self._tell = tell
        self._host = host
        self._openings: dict[TaskId, _Opening] = {}

    def begin(
        self,
        task: TaskId,
        node: ApplyTo,
        source: TopicPartition,
        progress: Progress,
    ) -> None:
        """Begin to open the session of a task."""
        opening = self._openings[task] = _Opening(
            self._host.signal(),
            done=self._host.signal(),
        )

        def run() -> None:
            try:
                opening.session = self._opened(opening, node, source, progress)
            except BaseException as error:  # noqa: BLE001 any error: the opener must hear of it
                opening.error = error
            opening.done.set()
            if opening.left.is_set() and opening.session is not None:
                opening.session.close()
            self._tell()

        self._host.thread(run, f"sink-{node.name}").start()

    def take(self) -> list[tuple[TaskId, SinkSession]]:
        """Return the newly opened sessions, each of them once.

        Raises:
            ConfigError: a sink cannot take the records, or lacks positions that it
            should have.
        """
        taken = []
        for task, opening in list(self._openings.items()):
            if not opening.done.is_set():
                continue
            del self._openings[task]
            if opening.error is not None:
                raise opening.error
            assert opening.session is not None
            taken.append((task, opening.session))
        return taken

    def cancel(self, task: TaskId) -> None:
        """Give up the session of a task; close it if it is open."""
        if (opening := self._openings.pop(task, None)) is not None:
            opening.left.set()
            if opening.done.is_set() and opening.session is not None:
                opening.session.close()

    def close(self) -> None:
        """Give up all sessions that `take` has not returned."""
        for task in list(self._openings):
            self.cancel(task)

    def why(self, task: TaskId) -> str | None:
        """Return what a task waits for before its sink is open, in words; None: it
        waits for no sink.
        """
        opening = self._openings.get(task)
        return None if opening is None else opening.why

    def _opened(
        self,
        opening: _Opening,
        node: ApplyTo,
        source: TopicPartition,
        progress: Progress,
    ) -> SinkSession | None:
        """Return the opened session; None: `cancel` gave it up first."""
        pause_s = FIRST_PAUSE_S
        opening.why = f'sink "{node.name}" to be opened'
        while not opening.left.is_set():
            try:
                with ExitStack() as closing:
                    session = self._session(node, source, progress)
                    closing.callback(session.close)
                    if (end := self._log.end_offset(source)) >= session.position:
                        closing.pop_all()
                        return session
                    opening.why = (
                        f'{source} to have offset {session.position}, up to which sink "{node.name}" has applied it: '
                        f"it ends at {end}. A broker may be behind; if it stays so, the log has lost records"
                    )
            except AccessDeniedError:
                raise  # only a user can add the ACL
            except LogError as error:
                opening.why = f'sink "{node.name}": {error}'
            opening.left.wait(pause_s)
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)
        return None

    def _session(
        self,
        node: ApplyTo,
        source: TopicPartition,
        progress: Progress,
    ) -> SinkSession:
        """Open a session once, and check that the sink is not behind the group.

        Raises:
            ConfigError: it is; the message has the cure.
        """
        at = progress.position(source).offset
        partition = SinkPartition(
            self._application,
            node.name,
            source.partition,
            self._log.topic_id(source.topic),
        )
        session = node.target.open(partition, at if progress.begins(source) else None)
        if session.position < at:
            session.close()
            raise ConfigError(
                f"{partition} is applied up to offset {session.position}, but the group has committed {at}: the sink "
                "was put back to an earlier state, or its position was changed. The records in between may be deleted "
                f'from "{source.topic}" by now. Bring the later state back; or begin anew (`coopstreams reset`)'
            )
        return session
