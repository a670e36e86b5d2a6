"""A service on this machine that is slow, sometimes fails, and sometimes does not
answer at all.

It answers a line with the same line. Test applications call it by `asked`.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Self

FAILS, STUCK, SILENT = 0.05, 0.001, 0.001
"""The probabilities of no answer with a closed connection, of one after `STUCK_S`, and
of none at all.
"""
LATENCY_S, STUCK_S = 0.01, 3.0


class SlowService:
    """The service, on a thread of its own, as a context manager. `address`: HOST:PORT."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="slow service", daemon=True
        )
        self.address = ""
        self.answered = self.failed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        serving = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        )
        host, port = serving.result(30).sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        line, chance = await reader.readline(), self._random.random()
        if chance < SILENT:
            await reader.read()  # until the caller gives up
        elif chance < SILENT + FAILS:
            self.failed += 1
        else:
            await asyncio.sleep(
                STUCK_S
                if chance > 1 - STUCK
                else self._random.expovariate(1 / LATENCY_S)
            )
            self.answered += 1
            writer.write(line)
        writer.close()


async def asked(address: str, question: int) -> None:
    """Call the service, and wait for its answer.

    Raises:
        ConnectionError: it failed.
    """
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"%d\n" % question)
        if not await reader.readline():
            raise ConnectionError("the service is restarting")
    finally:
        writer.close()
