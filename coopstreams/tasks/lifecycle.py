"""The state of an instance, and its listeners: of states, restores and errors.

    created -> rebalancing <-> running
                    |             |----> pending-shutdown -> not-running
                    `-------------`----> pending-error ----> error

An error while the instance closes its tasks turns pending-shutdown into error.
Invariant: a listener is called by the thread whose work it reports, so a slow listener
delays that work. An exception in a listener ends the instance.
Relies on: `instance.coop_streams` and `instance.instance` (move the state).
Source: Kafka Streams `KafkaStreams.State`, `StateListener`, `StateRestoreListener`,
`StreamsUncaughtExceptionHandler` (KIP-671).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ApplicationStoppedError, ConfigError

if TYPE_CHECKING:
    from coopstreams.tasks.events import Failed

log = logging.getLogger(__name__)


class StreamsState(Enum):
    """The state of an instance.

    Running: it is a member of the group, the group does not refuse it tasks, and all of
    its tasks are open.
    """

    CREATED = "created"
    REBALANCING = "rebalancing"
    RUNNING = "running"
    PENDING_SHUTDOWN = "pending-shutdown"
    NOT_RUNNING = "not-running"
    PENDING_ERROR = "pending-error"
    ERROR = "error"


ENDING = {
    StreamsState.PENDING_SHUTDOWN,
    StreamsState.NOT_RUNNING,
    StreamsState.PENDING_ERROR,
    StreamsState.ERROR,
}
"""The states of an instance that is giving up its tasks, or has given them up."""


class RestoreListener:
    """Called while the stores of tasks that open are restored from their changelogs.
    Subclass and override.

    A changelog partition is read once for all tasks of an instance that need it. If
    another task opens meanwhile, the end moves.
    """

    def on_restore_start(
        self,
        partition: TopicPartition,
        store: str,
        start: int,
        end: int,
    ) -> None:
        """Called when a restore begins. `start` and `end`: offsets of the changelog,
        half-open.
        """

    def on_batch_restored(
        self,
        partition: TopicPartition,
        store: str,
        position: int,
        records: int,
    ) -> None:
        """Called after each batch: it had `records` of the tasks' key ranges, and the
        state is at offset `position`.
        """

    def on_restore_end(
        self,
        partition: TopicPartition,
        store: str,
        records: int,
    ) -> None:
        """Called when the store is restored. `records`: how many records of its tasks'
        key ranges were read in all.
        """

    def on_restore_suspended(
        self,
        partition: TopicPartition,
        store: str,
        records: int,
    ) -> None:
        """Called when the tasks that need the store were given up before it was
        restored.
        """


class StreamThreadExceptionResponse(Enum):
    """What an error ends: the stream thread (a new thread replaces it), this instance,
    or all instances.
    """

    REPLACE_THREAD = "replace-thread"
    SHUTDOWN_CLIENT = "shutdown-client"
    SHUTDOWN_APPLICATION = "shutdown-application"


StateListener: TypeAlias = Callable[[StreamsState, StreamsState], None]
"""Called with the new state and the old one."""
UncaughtExceptionHandler: TypeAlias = Callable[
    [BaseException], StreamThreadExceptionResponse
]
"""Called with an error that no retry cures."""


class Lifecycle:
    """The state of one instance, and its listeners.

    The thread that runs the instance calls `to` and `response`.
    """

    def __init__(
        self,
        on_state: StateListener | None = None,
        on_error: UncaughtExceptionHandler | None = None,
        restore_listener: RestoreListener | None = None,
    ) -> None:
        self.state = StreamsState.CREATED
        self.restore_listener = restore_listener or RestoreListener()
        self._on_state = on_state
        self._on_error = on_error

    def to(self, state: StreamsState) -> None:
        """Change to this state; call the listener if it differs from the present one."""
        if state is not self.state:
            before = self.state
            self.state = state
            log.debug("%s -> %s", before.value, state.value)
            if self._on_state is not None:
                self._on_state(state, before)

    def response(self, failure: Failed) -> StreamThreadExceptionResponse:
        """Return what `on_error` answers to an error. An error from another instance
        always ends this one.

        Raises:
            ConfigError: `on_error` returned something else. An exception of `on_error`
            is passed on. Either hides the original error, which is logged.
        """
        if self._on_error is None or isinstance(failure.error, ApplicationStoppedError):
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        why = f"{failure.where}: {type(failure.error).__name__}: {failure.error}"
        try:
            answer = self._on_error(failure.error)
        except BaseException:
            log.error("%s; the instance ends because on_error raised", why)
            raise
        if not isinstance(answer, StreamThreadExceptionResponse):
            members = ", ".join(str(member) for member in StreamThreadExceptionResponse)
            log.error("%s; the instance ends because of the answer of on_error", why)
            raise ConfigError(
                f"on_error returned {answer!r}: it must be one of {members}"
            ) from failure.error
        if (
            answer is StreamThreadExceptionResponse.REPLACE_THREAD
            and failure.thread is None
        ):
            log.error(
                "only a stream thread can be replaced, but it was the %s that failed: the instance ends",
                failure.where,
            )
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        return answer
