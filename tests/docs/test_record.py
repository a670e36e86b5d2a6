"""docs/record.md: ten stations, in order, and the generated function that it shows is the one that runs."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from coopstreams.commands.loading import load_topology
from coopstreams.topology.compile.compile import compile_subtopology
from tests.docs.pages import ROOT, blocks, links, prose

RECORD = ROOT / "docs" / "record.md"
EXAMPLE = ROOT / "examples" / "word_count.py"


def test_there_are_ten_hops_and_each_names_a_function_with_a_link() -> None:
    hops = [line for line in prose(RECORD) if re.match(r"\*\*\d+\. ", line)]
    assert [int(line.partition(".")[0].strip("*")) for line in hops] == list(range(1, 11))
    assert all(re.match(r"\*\*\d+\. [^:]+: \[`[\w.]+`\]\([\w./]+\.py\)", line) for line in hops)


def test_the_page_leads_through_every_room_that_a_record_passes() -> None:
    rooms = {
        Path(link.path).parent.as_posix().removeprefix("../") for link in links(RECORD) if link.path.endswith(".py")
    }
    runtime = {f"coopstreams/{room}" for room in ("instance", "tasks", "commit", "group", "log", "log/kafka", "query")}
    assert runtime | {"state", "topology/compile", "topology/operators"} <= rooms


def test_the_generated_function_on_the_page_is_the_one_that_is_compiled() -> None:
    topology = load_topology(str(EXAMPLE))
    generated = textwrap.dedent(
        compile_subtopology(topology, topology.subtopologies[1]).compiled(True, False).text.partition("\n\n")[2]
    )
    (shown,) = [block.text for block in blocks(RECORD) if block.language == "text"]
    assert generated.startswith(shown)
