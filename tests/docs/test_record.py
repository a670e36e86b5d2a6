"""docs/internals/record.md: ten stations, in order, and the shown generated function is the real
one.
"""

from __future__ import annotations

import gc
import re
import sys
import textwrap
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from coopstreams.commands.topology_target import load_topology
from coopstreams.common.config import Config
from coopstreams.log.kafka.native import SETTING, native_tables
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import NO_TABLES, TaskState
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.keys import WHOLE
from tests.conftest import needs_native
from tests.docs.pages import ROOT, blocks, links, prose

RECORD = ROOT / "docs" / "internals" / "record.md"
EXAMPLE = ROOT / "examples" / "word_count.py"
BEFORE_RECORDS = {"compile_subtopology", "Body.forward", "aggregate"}
RECORDS = 1000


def test_there_are_ten_hops_and_each_names_a_function_with_a_link() -> None:
    hops = [line for line in prose(RECORD) if re.match(r"\*\*\d+\. ", line)]
    assert [int(line.partition(".")[0].strip("*")) for line in hops] == list(
        range(1, 11)
    )
    assert all(
        re.match(r"\*\*\d+\. [^:]+: \[`[\w.]+`\]\([\w./]+\.py\)", line) for line in hops
    )


def test_the_page_leads_through_every_room_that_a_record_passes() -> None:
    rooms = {
        Path(link.path).parent.as_posix().removeprefix("../../")
        for link in links(RECORD)
        if link.path.endswith(".py")
    }
    runtime = {
        f"coopstreams/{room}"
        for room in (
            "instance",
            "tasks",
            "commit",
            "group",
            "log",
            "log/kafka",
            "query",
        )
    }
    assert runtime | {"state", "topology/compile", "topology/operators"} <= rooms


def test_the_generated_function_on_the_page_is_the_one_that_is_compiled() -> None:
    topology = load_topology(str(EXAMPLE))
    generated = textwrap.dedent(
        compile_subtopology(topology, topology.subtopologies[1])
        .compiled(True, False)
        .text.partition("\n\n")[2]
    )
    (shown,) = [block.text for block in blocks(RECORD) if block.language == "text"]
    assert generated.startswith(shown)


def test_the_page_counts_the_functions_that_it_names() -> None:
    text = RECORD.read_text()
    stations = text[
        text.index("## While records flow") : text.index("## Who made the way")
    ]
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./\.\./([\w/]+\.py)\)", stations)
    run = {
        (function, module)
        for function, module in named
        if function not in BEFORE_RECORDS
    }
    modules = {module for _, module in run}
    assert (
        f"name {len(run)} functions in {len(modules)} modules that run between" in text
    )


def calls(
    program: BoundProgram, source: TopicPartition, keys: list[bytes | None]
) -> tuple[Counter[str], Counter[str]]:
    """Process a batch with these keys; count the Python functions that it calls, and
    those that its loop calls.
    """
    called: Counter[str] = Counter()
    by_loop: Counter[str] = Counter()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called[frame.f_code.co_qualname] += 1
            if frame.f_back is not None and frame.f_back.f_code.co_name.startswith(
                "from_"
            ):
                by_loop[frame.f_code.co_qualname] += 1

    times = list(range(len(keys)))
    columns = Columns(keys, [b""] * len(keys), times, times, times)
    gc.disable()  # a finalizer would be called by the loop
    sys.setprofile(look)
    try:
        program.process(source, columns)
    finally:
        sys.setprofile(None)
        gc.enable()
    return called, by_loop


def bound(*, native: bool) -> tuple[BoundProgram, TopicPartition]:
    """Return the second half of the example, and its source."""
    topology = load_topology(str(EXAMPLE))
    part = topology.subtopologies[1]
    config = Config.of({"bootstrap.servers": "nowhere:1"}, topology.application_id)
    tables = native_tables(part, config, caching=True) if native else NO_TABLES
    assert bool(tables) == native
    state = TaskState(
        Database(Memory(), part.stores), part.stores, WHOLE, 1 << 30, tables
    )
    program = compile_subtopology(topology, part).bind(
        state.stores, lambda failure: None, caching=True
    )
    return program, TopicPartition(part.topics[0], 0)


KEYS: list[bytes | None] = [b"%d" % number for number in range(RECORDS)]


def test_a_record_costs_two_calls_at_most_and_none_if_its_row_has_changed_before() -> (
    None
):
    program, source = bound(native=False)
    _, by_loop = calls(program, source, KEYS)
    assert by_loop == {"Table.load": RECORDS, "Table.touch": RECORDS}
    called, by_loop = calls(program, source, KEYS)
    assert not by_loop
    assert max(called.values()) < RECORDS / 10, "as often for any number of records"


@needs_native
def test_on_the_native_plane_a_record_that_comes_again_costs_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SETTING, "1")
    program, source = bound(native=True)
    calls(program, source, KEYS)
    called, by_loop = calls(program, source, KEYS)
    assert by_loop == {"BoundProgram.at_hand": 1}
    assert max(called.values()) < RECORDS / 10, "as often for any number of records"
