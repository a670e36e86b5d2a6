"""The exact number of calls for a record: a guard of the compiled loop that needs no
clock.

The programs are those that `make bench` measures.

Calls are those of Python and of C functions that `sys.setprofile` sees. The calls for
each batch are left out. If a figure here grows, the generated code for a record, or a
function that it calls, has become longer.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeAlias

import pytest

from benchmarks import apps
from coopstreams.common.config import Config
from coopstreams.log.kafka.native import native_parts, native_tables
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import NO_TABLES, TaskState
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from tests.conftest import needs_native

SOURCE, RECORDS = TopicPartition(apps.SOURCE, 0), 100
Calls: TypeAlias = Mapping[str, float]


def fail(failure: Failure) -> None:
    raise failure.error


def counted(call: Callable[[], object]) -> Counter[str]:
    """Return the functions that are called meanwhile, with their numbers of calls."""
    calls: Counter[str] = Counter()

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[called.__qualname__] += 1

    gc.disable()  # a finalizer would be counted, too
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def columns(records: int, amount: int = 50, first: int = 0) -> Columns:
    """Return this many records of different keys, within one window."""
    numbers = range(first, first + records)
    values = [
        b'{"user":"u%d","amount":%d,"n":%d}' % (number, amount, number)
        for number in numbers
    ]
    times = [1000] * records
    return Columns(
        [b"u%d" % number for number in numbers], values, times, list(numbers), times
    )


class Task:
    """A program over stores in memory."""

    def __init__(
        self, topology: Topology, *, native: bool, caching: bool = True
    ) -> None:
        (part,) = topology.subtopologies
        config = Config.of({"bootstrap.servers": "nowhere:1"}, topology.application_id)
        tables = native_tables(part, config, caching=caching) if native else NO_TABLES
        self.state = TaskState(
            Database(Memory(), part.stores), part.stores, WHOLE, 1 << 30, tables
        )
        self.program = compile_subtopology(
            topology, part, parts=native_parts() if native else None
        ).bind(self.state.stores, fail, caching=caching)

    def process(self, batch: Columns) -> Counter[str]:
        """Return the calls for records."""
        return counted(lambda: self.program.process(SOURCE, batch))

    def commit(self) -> Counter[str]:
        """Return the calls of a commit up to the bytes for Kafka and the database."""
        calls = counted(self.program.flush) + counted(
            lambda: list(self.state.changes())
        )
        self.state.commit(dict.fromkeys(self.state.stores, 1))
        return calls


Work = Callable[[Task, int], Counter[str]]


def of_one(make: Callable[[], Task], work: Work) -> dict[str, float]:
    """Return the calls for one more record: those for a batch are the same for any
    number of them.
    """
    some, more = work(make(), RECORDS), work(make(), 2 * RECORDS)
    more.subtract(some)
    return {name: calls / RECORDS for name, calls in more.items() if calls}


def first(task: Task, records: int) -> Counter[str]:
    """Process the first records of their keys; the database has some rows."""
    task.process(columns(1, first=1_000_000))
    task.commit()
    return task.process(columns(records))


def again(task: Task, records: int) -> Counter[str]:
    """Process records of rows that have changed since the last commit."""
    task.process(columns(2 * RECORDS))
    return task.process(columns(records))


def filtered(task: Task, records: int) -> Counter[str]:
    """Process records that fail the filter."""
    return task.process(columns(records, amount=5))


def committed(task: Task, records: int) -> Counter[str]:
    """Commit the rows of this many records."""
    task.process(columns(records))
    return task.commit()


PLANES = [False, pytest.param(True, marks=needs_native)]
OUTPUT = {"list.append": 3}
READ_JSON = {"len": 1, "loads": 1}
READ_TYPED = {"len": 1, "Decoder.decode": 1}
JSON = {**READ_JSON, "_json": 1, "dumps": 1, "bytes.find": 1}
TYPED = {
    **READ_TYPED,
    "_typed_json.<locals>.encode": 1,
    "isinstance": 1,
    "Encoder.encode": 1,
    "bytes.find": 1,
}


@pytest.mark.parametrize("native", PLANES)
@pytest.mark.usefixtures("native_plane")
@pytest.mark.parametrize(
    ("topology", "serdes", "reads"),
    [
        pytest.param(apps.stateless, JSON, READ_JSON, id="dicts"),
        pytest.param(apps.typed, TYPED, READ_TYPED, id="typed"),
    ],
)
def test_stateless(
    topology: Topology, serdes: Calls, reads: Calls, native: bool
) -> None:
    def make() -> Task:
        return Task(topology, native=native)

    assert of_one(make, first) == {**serdes, "<lambda>": 2, **OUTPUT}
    assert of_one(make, filtered) == {**reads, "<lambda>": 1}


@pytest.mark.parametrize(
    ("topology", "caching", "record", "new_row", "row_of_a_commit"),
    [
        pytest.param(apps.count, True, {"dict.get": 1}, 12, 10, id="count"),
        pytest.param(
            apps.count,
            False,
            {"dict.get": 1, "Struct.pack": 1, **OUTPUT},
            16,
            6,
            id="count, every update",
        ),
        pytest.param(
            apps.windowed,
            True,
            {"dict.get": 1, **READ_JSON, "<lambda>": 1},
            20,
            13,
            id="windowed sum",
        ),
        pytest.param(
            apps.windowed_field,
            True,
            {"dict.get": 1, **READ_JSON, "add": 1},
            18,
            13,
            id="windowed field",
        ),
    ],
)
def test_with_rows(
    topology: Topology, caching: bool, record: Calls, new_row: int, row_of_a_commit: int
) -> None:
    def make() -> Task:
        return Task(topology, native=False, caching=caching)

    assert of_one(make, again) == record
    assert sum((calls := of_one(make, first)).values()) == new_row, calls
    assert sum((calls := of_one(make, committed)).values()) == row_of_a_commit, calls


@needs_native
@pytest.mark.parametrize(
    ("topology", "caching", "new_row"),
    [
        pytest.param(apps.count, True, 5, id="count"),
        pytest.param(apps.count, False, 5, id="count, every update"),
        pytest.param(apps.windowed_field, True, 0, id="windowed field"),
    ],
)
@pytest.mark.usefixtures("native_plane")
def test_natively_only_a_new_row_costs_calls(
    topology: Topology, caching: bool, new_row: int
) -> None:
    def make() -> Task:
        return Task(topology, native=True, caching=caching)

    assert of_one(make, again) == of_one(make, committed) == {}
    assert sum((calls := of_one(make, first)).values()) == new_row, calls


@needs_native
@pytest.mark.usefixtures("native_plane")
def test_natively_a_function_costs_its_call_and_two_of_the_row() -> None:
    def make() -> Task:
        return Task(apps.windowed, native=True)

    record = {**READ_JSON, "<lambda>": 1, "Rows.value": 1, "Rows.put": 1}
    assert of_one(make, again) == record
    assert of_one(make, first) == {**record, "<lambda>": 2}, "and the initial value"
    assert of_one(make, committed) == {}
