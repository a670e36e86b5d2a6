"""A restart after a commit, from the database or from the changelogs alone, changes no
result of windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_time_limit,
    until_window_closes,
)
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.restore import Restore
from coopstreams.state.task_state import ChangelogBatch, TaskState
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, KeyRange
from tests.durations import ms
from tests.state.bounds import bounds

Written: TypeAlias = list[tuple[bytes | None, bytes | None, int]]
Input: TypeAlias = tuple[str, int]

SOURCE = TopicPartition("in", 0)
INPUTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=16)

PROGRAMS: dict[str, Callable[[KStream[str, str]], Any]] = {
    "sessions": lambda stream: (
        stream.group_by_key()
        .windowed_by(SessionWindows(milliseconds=5, grace=ms(3)))
        .count(store="s")
    ),
    "sliding": lambda stream: (
        stream.group_by_key()
        .windowed_by(SlidingWindows(milliseconds=6, grace=ms(9)))
        .reduce(lambda one, other: one + other, store="s")
    ),
    "emit on close": lambda stream: (
        stream.group_by_key()
        .windowed_by(TimeWindows(milliseconds=10, advance=ms(5), grace=ms(4)))
        .emit_strategy("on_window_close")
        .count(store="s")
    ),
    "sessions on close": lambda stream: (
        stream.group_by_key()
        .windowed_by(SessionWindows(milliseconds=5))
        .emit_strategy("on_window_close")
        .count(store="s")
    ),
    "suppress": lambda stream: (
        stream.group_by_key()
        .windowed_by(TimeWindows(milliseconds=10, grace=ms(4)))
        .count(store="s")
        .suppress(until_window_closes())
    ),
    "time limit": lambda stream: (
        stream.group_by_key().count(store="s").suppress(until_time_limit(ms(15)))
    ),
}


def topology(write: Callable[[KStream[str, str]], Any]) -> Topology:
    builder = StreamsBuilder("app")
    write(builder.stream("in", key=serdes.text, value=serdes.text)).to_stream().to(
        "out"
    )
    return builder.build()


class Life:
    """A task, its database, and the changelogs it has written."""

    def __init__(self, program: Topology, key_range: KeyRange = WHOLE) -> None:
        self._part = program.subtopologies[0]
        self._compiled = compile_subtopology(program, self._part)
        self._range = key_range
        self._logs: dict[str, list[tuple[bytes, bytes | None, int]]] = {
            spec.name: [] for spec in self._part.stores
        }
        self._database = Database(Memory(), self._part.stores)
        self._time = -1
        self._open()

    def send(self, key: str, timestamp: int) -> None:
        self._time = max(self._time, timestamp)
        self.program.process(
            SOURCE, Columns([key.encode()], [b"x"], [timestamp], [0], [self._time])
        )

    def commit(self) -> None:
        for batch in self._state.changes():
            self._log(batch)
        self._state.commit({name: len(log) for name, log in self._logs.items()})

    def begin_anew(self) -> None:
        self._open()

    def move(self) -> None:
        """Reopen elsewhere: only the changelogs remain."""
        self._database = Database(Memory(), self._part.stores)
        for spec in self._part.stores:
            log = self._logs[spec.name]
            restore = Restore(self._database, spec, [self._range], bounds(len(log)))
            keys, values, times = (
                [row[0] for row in log],
                [row[1] for row in log],
                [row[2] for row in log],
            )
            restore.feed(Columns(keys, values, times, range(len(log)), times), len(log))
        self._open()

    def written(self) -> Written:
        return self._written + self._of(self.program)

    def _open(self) -> None:
        self._written = [
            *getattr(self, "_written", []),
            *(self._of(self.program) if hasattr(self, "program") else []),
        ]
        self._state = TaskState(self._database, self._part.stores, self._range, 1 << 20)
        self.program: BoundProgram = self._compiled.bind(
            self._state.stores, _raise, caching=False
        )
        self.program.resume(SOURCE, self._time)

    @staticmethod
    def _of(program: BoundProgram) -> Written:
        out = program.outputs["out"]
        return list(zip(out.keys, out.values, out.timestamps, strict=True))

    def _log(self, batch: ChangelogBatch) -> None:
        self._logs[batch.store] += zip(
            batch.keys, batch.values, batch.timestamps, strict=True
        )


def _raise(failure: Failure) -> None:
    raise failure.error


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=40, deadline=None)
@given(INPUTS, st.integers(1, 6), st.booleans())
def test_what_it_writes_is_what_it_would_have_written(
    name: str, inputs: list[Input], every: int, moves: bool
) -> None:
    program = topology(PROGRAMS[name])
    if (
        name == "sliding" and moves
    ):  # what keys of other key groups have made expire, is not in the changelog
        inputs = [("a", timestamp) for _, timestamp in inputs]
    whole, interrupted = Life(program), Life(program)
    for number, (key, timestamp) in enumerate(inputs, start=1):
        whole.send(key, timestamp)
        interrupted.send(key, timestamp)
        if number % every == 0:
            interrupted.commit()
            (interrupted.move if moves else interrupted.begin_anew)()
    assert interrupted.written() == whole.written()
