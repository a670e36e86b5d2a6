"""A service that asynchronous functions of programs call: it is slow, fails and hangs,
and checks the order of calls.

All processes of a history share it.

Invariant (its oracle): a record is queried only after every earlier one of its key has
had an answer, in any process; and no process has two calls of one key under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

from coopstreams import Retry
from tests.durations import ms
from tests.simulation.answers import Written
from tests.simulation.loops import VirtualLoop

TIMEOUT = ms(8_000)
AGAIN = Retry(
    times=10_000,
    backoff=ms(20),
    longest=ms(1_000),
    jitter=0.0,
    on=(ConnectionError, TimeoutError),
)
"""Retries until there is an answer: without jitter, which would not follow the seed."""
LATENCIES_S = (0.0, 0.02, 0.4)
SLOW_S = 5.0
"""Longer than a closing task may wait for its calls."""
HANGS_S = 1_000.0


def told(value: str) -> str:
    """Return the answer of a record.

    Raises:
        ValueError: there is none: one of eight records is bad.
    """
    if int(value) % 8 == 5:
        raise ValueError(f"nothing is known of {value}")
    return value + "?"


class Service:
    """The service of a history: answers calls, and notes violations of their order."""

    def __init__(self) -> None:
        self.begin(Random(0))

    def begin(self, random: Random) -> None:
        """Reset for another history."""
        self._random = random
        self._latency_s = random.choice(LATENCIES_S)
        self.wrong: list[str] = []
        """Calls out of order, in words."""
        self._last: dict[tuple[str, bytes], str] = {}
        """The last record written of each key of a topic."""
        self._before: dict[str, str] = {}
        """By record, the earlier record of the same topic and key, if there is one."""
        self._answered: set[str] = set()
        self._asked: dict[tuple[str, str], str] = {}
        """The call under way of each process and key."""

    def written(self, records: Iterable[Written]) -> None:
        """Note records that may be queried."""
        for record in records:
            where, value = (record.topic, record.key), (record.value or b"").decode()
            if (before := self._last.get(where)) is not None:
                self._before[value] = before
            self._last[where] = value

    async def ask(self, value: str) -> str:
        """Return the answer after a delay.

        Raises:
            ConnectionError: this time it failed.
            ValueError: there is none.
        """
        chance = self._random.random()
        slow_s = HANGS_S if chance < 0.02 else SLOW_S if chance < 0.04 else 0.0
        if latency_s := slow_s or self._random.random() * self._latency_s:
            await asyncio.sleep(latency_s)
        if chance > 0.85:
            raise ConnectionError(f"no answer about {value}")
        self._answered.add(value)
        return told(value)

    async def ask_together(self, values: list[str]) -> list[str]:
        """Return the answers of several records.

        Raises:
            ConnectionError: this time it failed.
            ValueError: one of them has none.
        """
        return [await self.ask(value) for value in values]

    async def ask_in_order(self, key: str, value: str) -> str:
        """Return the answer to a call that must follow the order of its key."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        asked, before = (loop.process, key), self._before.get(value)
        if before is not None and before not in self._answered:
            self.wrong.append(
                f"{loop.process} asks about {value} of {key}, and {before} has had no answer"
            )
        if asked in self._asked:
            self.wrong.append(
                f"{loop.process} asks about {value} of {key} beside {self._asked[asked]}"
            )
        self._asked[asked] = value
        try:
            return await self.ask(value)
        finally:
            self._asked.pop(asked, None)


service = Service()
"""The service of the current history."""
