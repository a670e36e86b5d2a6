"""Which function of the program a thread runs, from its frames."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coopstreams import Processor, Record, StreamsBuilder, Topology, serdes
from coopstreams.tasks.running_functions import running_function
from coopstreams.testing import TopologyTestDriver

GATE = threading.Event()


def slow(value: int) -> int:
    GATE.wait(20)
    return value


class Slow(Processor[str, int, str, int]):
    """Waits for each record."""

    def process(self, record: Record[str, int]) -> None:
        GATE.wait(20)


class Called:
    """A function that is an object."""

    def __call__(self, value: int) -> int:
        return slow(value)


def mapped(function: Callable[[int], int]) -> Callable[[Any], None]:
    def program(stream: Any) -> None:
        stream.map_values(function, value=serdes.int64, name="mapped").to("out")

    return program


def processed(stream: Any) -> None:
    stream.process(Slow, name="processed", by_key=True)


def built(program: Callable[[Any], None]) -> Topology:
    builder = StreamsBuilder("app")
    program(builder.stream("in", key=serdes.text, value=serdes.int64))
    return builder.build()


def seen(topology: Topology) -> str:
    """Return what the thread of a driver runs, once it has taken a record."""
    GATE.clear()

    def run() -> None:
        with TopologyTestDriver(topology) as driver:
            driver.input("in", serdes.text, serdes.int64).send("a", 1, 5)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if found := running_function(thread.ident, topology.nodes):
                return found
            time.sleep(0.01)
        raise AssertionError("no function runs")
    finally:
        GATE.set()
        thread.join()


@pytest.mark.parametrize(
    ("program", "node"),
    [
        (mapped(slow), "mapped"),
        (mapped(lambda value: slow(value + 1)), "mapped"),
        (mapped(partial(slow)), "mapped"),
        (mapped(Called()), "mapped"),
        (processed, "processed"),
    ],
)
def test_the_node_and_the_line_of_the_function_are_named(
    program: Callable[[Any], None], node: str
) -> None:
    found = seen(built(program))
    assert re.fullmatch(
        rf"a function of {node} \(.*test_running_functions\.py, line \d+, in \w+\)",
        found,
    )


def test_a_function_that_is_not_written_in_python_counts_too() -> None:
    sleep: Any = time.sleep
    assert seen(built(mapped(sleep))) == "a function"


def test_a_thread_that_waits_elsewhere_runs_no_function() -> None:
    assert running_function(None, ()) == ""
    assert running_function(10**9, ()) == ""
