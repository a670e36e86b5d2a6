"""What an instance is doing, in one word, and who hears of it: the listeners of states, restores and errors.

    created -> rebalancing <-> running
                    |             |----> pending-shutdown -> not-running
                    `-------------`----> pending-error ----> error

What fails while the instance drains turns pending-shutdown into error.
Invariant: listeners are called by the thread that does what they are told of, so what takes long in one holds that up.
An exception in one ends the instance: nothing is swallowed.
Source: Kafka Streams `KafkaStreams.State`, `StateListener`, `StateRestoreListener`, `StreamsUncaughtExceptionHandler`
(KIP-671).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Literal, TypeAlias, get_args

from coopstreams.tasks.events import Failed
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ApplicationStoppedError, ConfigError

log = logging.getLogger(__name__)


class StreamsState(Enum):
    """What an instance is doing. Running: a member of the group, with every task open that it was given and not kept
    waiting.
    """

    CREATED = "created"
    REBALANCING = "rebalancing"
    RUNNING = "running"
    PENDING_SHUTDOWN = "pending-shutdown"
    NOT_RUNNING = "not-running"
    PENDING_ERROR = "pending-error"
    ERROR = "error"


class RestoreListener:
    """Subclass it, and define what you want to hear of: how the stores of tasks that open are restored from their
    changelogs.

    One partition of a changelog is read once for all tasks of an instance that need it: a task that opens meanwhile
    moves the end.
    """

    def on_restore_start(self, partition: TopicPartition, store: str, start: int, end: int) -> None:
        """Reading begins: offsets of the changelog, half-open."""

    def on_batch_restored(self, partition: TopicPartition, store: str, position: int, records: int) -> None:
        """So many records were read; the state stands at this position."""

    def on_restore_end(self, partition: TopicPartition, store: str, records: int) -> None:
        """The store is restored; so many records were read altogether."""

    def on_restore_suspended(self, partition: TopicPartition, store: str, records: int) -> None:
        """The tasks that needed it were given up before it was restored."""


StateListener: TypeAlias = Callable[[StreamsState, StreamsState], None]
"""Called with the new state and the old one."""
Response: TypeAlias = Literal["replace-thread", "shutdown-client", "shutdown-application"]
"""What ends because of an error: a stream thread, which a new one replaces; this instance; or all instances."""
UncaughtExceptionHandler: TypeAlias = Callable[[BaseException], Response]


class Lifecycle:
    """The state of one instance, and its listeners. `to` and `response` belong to whoever runs the instance."""

    def __init__(self) -> None:
        self.state = StreamsState.CREATED
        self.state_listener: StateListener = lambda *_: None
        self.restore_listener = RestoreListener()
        self.handler: UncaughtExceptionHandler = lambda _: "shutdown-client"

    def check_created(self) -> None:
        """Do nothing if the instance has not run.

        Raises:
            ConfigError: it has; listeners are set before.
        """
        if self.state is not StreamsState.CREATED:
            raise ConfigError(f"the instance is {self.state.value}: set listeners and handlers before it runs")

    def to(self, state: StreamsState) -> None:
        """Be in this state; whoever listens is told if that is another one."""
        if state is not self.state:
            before, self.state = self.state, state
            log.debug("%s -> %s", before.value, state.value)
            self.state_listener(state, before)

    def response(self, failure: Failed) -> Response:
        """Return what the handler makes of an error; of one that came from another instance, it is not asked.

        Raises:
            ConfigError: the handler returns something else.
        """
        if isinstance(failure.error, ApplicationStoppedError):
            return "shutdown-client"
        answer = self.handler(failure.error)
        if answer not in get_args(Response):
            words = ", ".join(get_args(Response))
            raise ConfigError(
                f"the uncaught exception handler returned {answer!r}: it must be one of {words}"
            ) from failure.error
        if answer == "replace-thread" and failure.thread is None:
            log.error(
                "only a stream thread can be replaced, but it was the %s that failed: the instance ends", failure.where
            )
            return "shutdown-client"
        return answer
