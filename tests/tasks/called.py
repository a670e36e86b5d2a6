"""Programs of one asynchronous operator on an `Engine`, and functions for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import cycle
from typing import Any

from coopstreams.commit.offset_runs import Runs
from coopstreams.tasks.task import Task
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange
from tests.tasks.engine import PATIENCE_S, Engine

SOURCE = TopicPartition("in", 0)
TOPICS = {"in": 1, "other": 1, "out": 1}
Rows = list[tuple[bytes | None, bytes | None, int]]


def until(true: Callable[[], bool], made: Engine) -> None:
    """Move records until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        made.dispatcher.move(0.005)
        assert time.monotonic() < deadline


def done(made: Engine, records: int) -> Callable[[], bool]:
    return lambda: all(
        task.progress.durable(source) >= records
        for task, _ in made.tasks.values()
        for source in task.sources[:1]
    )


def finish(made: Engine, records: int) -> None:
    """Move records until this many of each partition are committed, then stop."""
    until(done(made, records), made)
    made.stop()


def numbered(numbers: Iterable[int], keys: int | None = None) -> Rows:
    """Return records with these values and timestamps, of one key, or of as many keys
    in turn.
    """
    return [
        (b"k" if keys is None else b"k%d" % (number % keys), b"%d" % number, number)
        for number in numbers
    ]


def processed(made: Engine, rows: Rows) -> Task:
    """Have one task process and commit these records, and stop; return the task."""
    task = made.open(WHOLE)
    made.write("in", rows)
    made.start()
    finish(made, len(rows))
    return task


def calls_of(called: Callable[..., Any], **options: Any) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).map_values_async(
        called, value=serdes.json, **options
    ).group_by_key(value=serdes.json).count(store="counts").to_stream().to("out")
    return builder.build()


def forwarding(called: Callable[..., Any], **options: Any) -> Topology:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.json).map_values_async(
        called, value=serdes.json, **options
    ).to("out")
    return builder.build()


class Gate:
    """A function that blocks on one value until it is released, and records its
    arguments.
    """

    def __init__(self, stuck: int) -> None:
        self.stuck = stuck
        self.called: Counter[int] = Counter()
        self.most = self._under_way = 0
        self.let_go = threading.Event()

    async def __call__(self, value: int) -> int:
        self.called[value] += 1
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await asyncio.sleep(0)
        while value == self.stuck and not self.let_go.is_set():
            await asyncio.sleep(0.001)
        self._under_way -= 1
        return value


class Held:
    """A function that returns when it is released, and records its arguments."""

    def __init__(self) -> None:
        self.called: Counter[int] = Counter()
        self.let_go = threading.Event()

    async def __call__(self, value: int) -> int:
        self.called[value] += 1
        while not self.let_go.is_set():
            await asyncio.sleep(0.001)
        return value


def runs(task: Task) -> tuple[int, Runs]:
    (segment,) = task.progress.committed_segments(SOURCE)
    return segment.position, segment.runs


def played(
    topology: Topology,
    records: Sequence[tuple[str, str, int, int]],
    pieces: int,
    **settings: Any,
) -> dict[bytes | None, list[Any]]:
    """Return the outputs of each key, in order. `records`: topic, key, value and
    timestamp of each.
    """
    made = Engine(topology, TOPICS, threads=2, **settings)
    ranges = KeyRange.split(pieces)
    for name in (
        "in",
        "other",
    ):  # all records are there at the start: time decides the order of the sources
        made.write(
            name,
            [
                (key.encode(), b"%d" % value, timestamp)
                for topic, key, value, timestamp in records
                if topic == name
            ],
        )
    made.start()
    for number, each in enumerate(ranges):
        made.open(each, thread=number % 2)
    ends = {
        name: sum(topic == name for topic, *_ in records) for name in ("in", "other")
    }

    def over() -> bool:
        while not made.events.empty():
            made.take(made.events.get())
        return all(
            task.progress.position(source).offset >= ends[source.topic]
            for task, _ in made.tasks.values()
            for source in task.sources
        )

    until(over, made)
    made.stop()
    found: dict[bytes | None, list[Any]] = defaultdict(list)
    out = made.read("out")
    for key, value, timestamp in zip(out.keys, out.values, out.timestamps, strict=True):
        found[key].append((value, timestamp))
    return found


def taking(pauses: list[int]) -> Callable[[int], Awaitable[int]]:
    """Return a function that takes the given milliseconds, call by call, cyclically."""
    next_s = cycle(pauses)

    async def later(value: int) -> int:
        await asyncio.sleep(next(next_s) / 1000)
        return value * 10

    return later
