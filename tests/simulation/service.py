"""A service that functions of programs ask and wait for: it takes its time, fails and hangs, and knows what order is.

It is one for all processes of a history: what was asked cannot be taken back, whoever asked it.

Invariant (its oracle): of a key, a record is asked about only when every earlier one has had an answer, whichever
process asked; and no process has two questions of one key under way.
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
AGAIN = Retry(times=10_000, backoff=ms(20), longest=ms(1_000), jitter=0.0, on=(ConnectionError, TimeoutError))
"""Until there is an answer: without jitter, because chance is the seed's."""
LATENCIES_S = (0.0, 0.02, 0.4)
SLOW_S = 5.0
"""Longer than a task that is closed waits for its calls."""
HANGS_S = 1_000.0


def told(value: str) -> str:
    """Return the answer to a question.

    Raises:
        ValueError: there is none: one of eight records is bad.
    """
    if int(value) % 8 == 5:
        raise ValueError(f"nothing is known of {value}")
    return value + "?"


class Service:
    """Notes who asks what."""

    def __init__(self) -> None:
        self.begin(Random(0))

    def begin(self, random: Random) -> None:
        """Forget everything: another history begins."""
        self._random = random
        self._latency_s = random.choice(LATENCIES_S)
        self.wrong: list[str] = []
        """What was asked out of order."""
        self._last: dict[tuple[str, bytes], str] = {}
        """The last record that was written of each key of a topic."""
        self._before: dict[str, str] = {}
        """The record before each one that is not the first of its key in its topic."""
        self._answered: set[str] = set()
        self._asked: dict[tuple[str, str], str] = {}
        """What each process is asking of a key."""

    def written(self, records: Iterable[Written]) -> None:
        """Take note of records that can be asked about."""
        for record in records:
            where, value = (record.topic, record.key), (record.value or b"").decode()
            if (before := self._last.get(where)) is not None:
                self._before[value] = before
            self._last[where] = value

    async def ask(self, value: str) -> str:
        """Return the answer, after a while.

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
        """Return the answers to several questions.

        Raises:
            ConnectionError: this time it failed.
            ValueError: there is none to one of them.
        """
        return [await self.ask(value) for value in values]

    async def ask_in_order(self, key: str, value: str) -> str:
        """Return the answer to a question that must be asked in the order of its key."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        asked, before = (loop.process, key), self._before.get(value)
        if before is not None and before not in self._answered:
            self.wrong.append(f"{loop.process} asks about {value} of {key}, and {before} has had no answer")
        if asked in self._asked:
            self.wrong.append(f"{loop.process} asks about {value} of {key} beside {self._asked[asked]}")
        self._asked[asked] = value
        try:
            return await self.ask(value)
        finally:
            self._asked.pop(asked, None)


service = Service()
"""That of the history that is being played."""
