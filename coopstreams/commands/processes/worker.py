"""The worker's side of supervision: it reads its restarts, reports that it runs and why
it ends, and ends if its supervisor dies.

Everything comes from environment variables (`supervisor.py`). In an unsupervised
process they are not set, and these functions do nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping

from coopstreams.commands.processes.supervisor import (
    LAST_END,
    LAST_WORDS,
    MOST_WORDS,
    RAN,
    RESTARTS,
    SUPERVISOR,
)
from coopstreams.tasks.lifecycle import StateListener, StreamsState

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


def past(environment: Mapping[str, str]) -> dict[str, str | int | float]:
    """Return the fields `restarts` and `last_end` for `/v1/status`; empty: this process
    is not a restarted worker.
    """
    restarts = int(environment.get(RESTARTS, "0"))
    return (
        {"restarts": restarts, "last_end": environment.get(LAST_END, "")}
        if restarts
        else {}
    )


def end_with_supervisor(
    environment: Mapping[str, str],
    stop: Callable[[], None],
) -> bool:
    """Have `stop` called when the supervisor dies, because nothing else would end this
    process. Return whether there is a supervisor.
    """
    supervisor = environment.get(SUPERVISOR)
    if supervisor is None:
        return False
    threading.Thread(
        target=_watch,
        args=(int(supervisor), stop),
        name="parent",
        daemon=True,
    ).start()
    return True


def say_running(environment: Mapping[str, str]) -> StateListener:
    """Return a state listener that reports to the supervisor, if there is one, when the
    instance runs for the first time.
    """
    told = threading.Event()

    def listen(state: StreamsState, _: StreamsState) -> None:
        if state is StreamsState.RUNNING and not told.is_set():
            told.set()
            _tell(RAN, environment)

    return listen


def say_why(error: BaseException, environment: Mapping[str, str]) -> None:
    """Report to the supervisor, if there is one, why this process ends."""
    _tell(
        f"{type(error).__name__}: {error}"[:MOST_WORDS].encode(errors="replace"),
        environment,
    )


def _tell(said: bytes, environment: Mapping[str, str]) -> None:
    descriptor = environment.get(LAST_WORDS)
    if descriptor is None:
        return
    try:
        os.write(int(descriptor), said)
    except OSError as refused:
        log.debug("the supervisor does not hear %r: %s", said, refused)


def _watch(supervisor: int, stop: Callable[[], None]) -> None:
    while os.getppid() == supervisor:
        threading.Event().wait(LOOK_EVERY_S)
    stop()
