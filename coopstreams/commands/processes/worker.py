"""The worker's side of a supervisor: its restarts, that it runs, the reason of its end,
and its end if the supervisor dies.

All of it comes from the environment (`supervisor.py`); an unsupervised process finds
nothing there.
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
    """Return the fields of a restarted worker for `/v1/status`: `restarts` and
    `last_end`; of other processes, none.
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
    """Call `stop` when the supervisor dies, since nothing else would end this process;
    return whether there is one.
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
    """Return a listener that tells the supervisor, if there is one, when the instance
    runs for the first time.
    """
    told = threading.Event()

    def listen(state: StreamsState, _: StreamsState) -> None:
        if state is StreamsState.RUNNING and not told.is_set():
            told.set()
            _tell(RAN, environment)

    return listen


def say_why(error: BaseException, environment: Mapping[str, str]) -> None:
    """Send the reason why this process ends to its supervisor, if there is one."""
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
