"""A client that queries counts of any instance without pause, and checks that values
never fall and no key vanishes.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import orjson

from tests.broker.waiting import eventually

PAUSE_S = 0.03


@dataclass(slots=True)
class Hammer:
    """Threads that get keys of a store of running counts.

    Shape: `urls` returns where instances answer now; some may be gone. A value is
    compared with those received before the request was sent.
    """

    store: str
    keys: Sequence[str]
    urls: Callable[[], list[str]]
    threads: int = 2
    answers: Counter[str] = field(default_factory=Counter)
    """Counts of answers by kind: `found`, `never seen`, codes of retryable errors,
    names of transport errors.
    """
    wrong: list[str] = field(default_factory=list)
    _seen: dict[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _running: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Hammer:
        for number in range(self.threads):
            self._running.append(
                threading.Thread(
                    target=self._run,
                    args=[number],
                    name=f"hammer-{number}",
                    daemon=True,
                )
            )
            self._running[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._running:
            thread.join(60)

    def await_answers(self) -> None:
        """Query until there were some answers."""
        eventually(lambda: self.answers["found"] > 100, 120, lambda: str(self.answers))

    def check(self) -> None:
        """Check that all answers were right."""
        assert not self.wrong, (
            f"{len(self.wrong)} wrong answers of {self.answers}, for example {self.wrong[:3]}"
        )

    def _run(self, number: int) -> None:
        generator = random.Random(number)
        with httpx.Client(trust_env=False, timeout=20) as client:
            while not self._stop.wait(PAUSE_S):
                urls = self.urls()
                if urls:
                    self._ask(
                        client, generator.choice(urls), generator.choice(self.keys)
                    )

    def _ask(self, client: httpx.Client, url: str, key: str) -> None:
        before = self._seen.get(key, 0)
        try:
            response = client.get(f"{url}/v1/stores/{self.store}/keys/{key}")
        except httpx.TransportError as error:
            self.answers[type(error).__name__] += 1
            return
        answer = orjson.loads(response.content)
        if response.status_code == httpx.codes.OK:
            self.answers["found"] += 1
            self._seen[key] = max(self._seen.get(key, 0), answer["value"])
            if answer["value"] < before:
                self.wrong.append(f"{key} was {before}, now {answer}")
        elif response.status_code == httpx.codes.NOT_FOUND:
            self.answers["never seen"] += 1
            if before:
                self.wrong.append(f"{key} was {before}, now it is not found: {answer}")
        else:
            self.answers[answer["error"]] += 1
            if not answer["retryable"]:
                self.wrong.append(f"{response.status_code}: {answer}")
