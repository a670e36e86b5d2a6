"""A time limit for calls that may never return.

librdkafka's `send_offsets_to_transaction` ignores its time-out while it waits for a
group coordinator whose connection it has given up (librdkafka issues 5456 and 5511;
seen for minutes after a broker's restart). The call runs on a thread of its own, and
the caller goes on without it when the time is over.

Invariant: after the time limit no thread waits for the call; its late effect is void
(its transaction is fenced). Turned down: a thread for each call (ten starts a second,
for a hang that is rare).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Bounded:
    """Runs calls, one at a time, on a thread of its own. A thread whose call never
    returns is abandoned. One thread uses it.
    """

    def __init__(self) -> None:
        self._calls: (
            queue.SimpleQueue[
                tuple[
                    Callable[[], Any],
                    queue.SimpleQueue[tuple[Any, BaseException | None]],
                ]
                | None
            ]
            | None
        ) = None

    def run(self, call: Callable[[], Any], timeout_s: float) -> Any:
        """Return the result of the call, or raise its exception.

        Raises:
            TimeoutError: the call has not returned within `timeout_s`.
        """
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(
                target=_serve,
                args=[self._calls],
                name="bounded",
                daemon=True,
            ).start()
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = (
            queue.SimpleQueue()
        )
        self._calls.put((call, answer))
        try:
            result, error = answer.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise TimeoutError(f"no answer in {timeout_s:g} s") from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let the thread end after its current call. Idempotent."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _serve(calls: queue.SimpleQueue[Any]) -> None:
    while (job := calls.get()) is not None:
        call, answer = job
        try:
            answer.put((call(), None))
        except BaseException as error:  # noqa: BLE001 it is raised where the call was made
            answer.put((None, error))
        del (
            job,
            call,
            answer,
        )  # release the objects of the call (a producer) before the next one
