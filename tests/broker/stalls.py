"""Measures how long records waited for their results, with the reasons that the workers
reported.

Times are the brokers' (`message.timestamp.type=LogAppendTime`), independent of clients.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import httpx

from tests.broker.reading import Record

LONG_S = 3.0
"""The shortest wait that counts as a stall."""
EVERY_S = 0.5
ANSWER_S = 0.5
ALL_ANSWER_S = 5.0
NEAR_S = 1.5


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which records of a partition waited. Units: seconds since the epoch."""

    partition: int
    start: float
    end: float
    longest_s: float
    """The longest wait of a record; `end - start` is longer for consecutive stalls."""


@dataclass(slots=True)
class Faults:
    """A fault, and its time."""

    done: list[tuple[float, str]] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Note a fault that happens now."""
        self.done.append((time.time(), what))
        print(time.strftime("%H:%M:%S"), what, flush=True)

    def between(self, start: float, end: float) -> list[str]:
        """Return the faults in this time."""
        return [what for at, what in self.done if start <= at <= end]


def waits(orders: Iterable[Record], counts: Iterable[Record]) -> list[Stall]:
    """Return the wait of each order for its count: the nth order of a key waits until
    its count is n.
    """
    came: dict[tuple[bytes, int], Record] = {}
    for record in counts:
        came.setdefault(
            (record.key or b"", int.from_bytes(record.value or b"", "big")), record
        )  # repeated counts: the first one
    seen: Counter[bytes] = Counter()
    found = []
    for order in orders:
        if len(order.value or b"") != 8:
            continue  # unreadable, on purpose
        seen[order.key or b""] += 1
        count = came.get((order.key or b"", seen[order.key or b""]))
        if count is not None:
            found.append(
                Stall(
                    order.partition,
                    order.timestamp / 1000,
                    count.timestamp / 1000,
                    (count.timestamp - order.timestamp) / 1000,
                )
            )
    return found


def stalls(waited: Iterable[Stall], long_s: float = LONG_S) -> list[Stall]:
    """Return the stalls, longest first. Overlapping waits of a partition are one, from
    its first slow record on.
    """
    by_partition = defaultdict(list)
    for wait in waited:
        if wait.longest_s > long_s:
            by_partition[wait.partition].append(wait)
    found: list[Stall] = []
    for partition, some in by_partition.items():
        some.sort(key=lambda wait: wait.start)
        merged = [some[0]]
        for wait in some[1:]:
            if wait.start <= merged[-1].end:
                last = merged[-1]
                merged[-1] = Stall(
                    partition,
                    last.start,
                    max(last.end, wait.end),
                    max(last.longest_s, wait.longest_s),
                )
            else:
                merged.append(wait)
        found += merged
    return sorted(found, key=lambda stall: -stall.longest_s)


@dataclass(frozen=True, slots=True)
class Said:
    """The reason of a worker's bad health; `code` is empty if its health was good."""

    at: float
    worker: int
    code: str
    message: str
    task: str | None

    def concerns(self, partition: int) -> bool:
        """Whether it may explain missing counts of a partition: it concerns one of its
        tasks, or the whole worker.
        """
        return bool(self.code) and (
            self.task is None or self.task.startswith(f"0_{partition}[")
        )


@dataclass(slots=True)
class Reasons:
    """A thread that polls the workers' health and reasons."""

    urls: Callable[[], Mapping[int, str]]
    seen: list[Said] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Reasons:
        self._threads = [
            threading.Thread(target=run, name="reasons", daemon=True)
            for run in (self._ask_each, self._ask_of_others)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def of(self, stall: Stall) -> Counter[str]:
        """Return how often each reason was reported during a stall, by worker and code,
        with its last message.
        """
        said = [
            one
            for one in self.seen
            if stall.start <= one.at <= stall.end and one.concerns(stall.partition)
        ]
        last = {(one.worker, one.code): one.message for one in said}
        counts = Counter((one.worker, one.code) for one in said)
        return Counter(
            {
                f"worker {worker} {code}: {last[worker, code]}": count
                for (worker, code), count in counts.items()
            }
        )

    def silent_s(self, stall: Stall) -> float:
        """Return how long a stall had no reported reason, after its first `LONG_S`.

        Units: seconds, to a half; a reason counts for a moment before and after.
        """
        named = [
            one.at
            for one in self.seen
            if stall.start - NEAR_S <= one.at <= stall.end + NEAR_S
            and one.concerns(stall.partition)
        ]
        slots = range(int(LONG_S / EVERY_S), int((stall.end - stall.start) / EVERY_S))
        return EVERY_S * sum(
            not any(abs(at - stall.start - slot * EVERY_S) < NEAR_S for at in named)
            for slot in slots
        )

    def _ask_each(self) -> None:
        with httpx.Client(trust_env=False, timeout=ANSWER_S) as client:
            while not self._stop.wait(EVERY_S):
                for worker, url in self.urls().items():
                    self.seen += _ask(client, worker, url)

    def _ask_of_others(self) -> None:
        """The rest of `coopstreams status`: processes that do not answer, with their
        tasks.
        """
        with httpx.Client(trust_env=False, timeout=ALL_ANSWER_S) as client:
            while not self._stop.wait(EVERY_S):
                self.seen += next(
                    (
                        said
                        for said in (
                            _ask_of_others(client, url) for url in self.urls().values()
                        )
                        if said is not None
                    ),
                    [],
                )


def _ask(client: httpx.Client, worker: int, url: str) -> list[Said]:
    now = time.time()
    try:
        answer = client.get(f"{url}/health/ready").json()
    except httpx.ConnectError:
        return []  # the worker does not run
    except httpx.TransportError:
        return [Said(now, worker, "no-answer", "it does not answer", None)]
    return [
        Said(now, worker, reason["code"], reason["message"], reason["task"])
        for reason in answer["reasons"]
    ]


def _ask_of_others(client: httpx.Client, url: str) -> list[Said] | None:
    """Return the reasons that an instance reports for unreachable processes; None: it
    does not answer.
    """
    now = time.time()
    try:
        instances = client.get(f"{url}/v1/status").json()["instances"]
    except httpx.TransportError:
        return None
    return [
        Said(now, -1, reason["code"], reason["message"], task["id"])
        for instance in instances
        if instance["state"] == "unreachable"
        for reason in instance["reasons"]
        for task in instance["tasks"]
    ]
