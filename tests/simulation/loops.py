"""The event loop of a simulated machine: asyncio's own, on a fiber and in virtual time.

A callback of the loop is one turn: no other fiber runs inside of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from coopstreams.common.host import Host


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs the asynchronous functions of users, of one process. `host`: its clock, its
    fiber and its name.
    """

    _run_once: Callable[[], None]
    """One pass of callbacks: `BaseEventLoop` has it, but not its type stub."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host, self._news = host, host.signal()
        self._selector = self
        host.thread(self._run, "calls").start()

    @property
    def process(self) -> str:
        """The name of the process."""
        return self._host.called()

    def end(self) -> None:
        """Cancel everything that waits; the process has ended."""
        asyncio._set_running_loop(self)
        try:
            while tasks := asyncio.all_tasks(self):
                for task in tasks:
                    task.cancel()
                self._run_once()
        finally:
            asyncio._set_running_loop(None)
            self.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the fiber: an error in a callback is a bug of ours."""
        raise context.get("exception") or AssertionError(context["message"])

    def _run(self) -> None:
        while True:
            self._run_once()

    # --- what BaseEventLoop leaves to others ---

    def time(self) -> float:
        return self._host.now()

    def select(self, timeout: float | None) -> list[Any]:
        """Wait for time or for another fiber: there are no sockets."""
        asyncio._set_running_loop(None)
        if timeout is None or timeout > 0:
            self._news.wait(timeout)
        self._news.clear()
        asyncio._set_running_loop(self)
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._news.set()
