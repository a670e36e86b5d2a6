"""The ways to name a topology on the command line, and the errors when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from coopstreams.commands.loading import load_topology
from coopstreams.topology.errors import ConfigError

PROGRAM = """
from coopstreams import StreamsBuilder, serdes
orders = StreamsBuilder("orders")
orders.stream("in", key=serdes.text, value=serdes.text).to("out")
other = orders.build()
number = 7
"""


def test_a_name_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    program = tmp_path / "named_program.py"
    program.write_text(PROGRAM)
    with pytest.raises(ConfigError, match=r"has no variable `wrongname`; topologies there: orders, other"):
        load_topology(f"{program}:wrongname")
    with pytest.raises(ConfigError, match=r"number in .* is int, not a topology"):
        load_topology(f"{program}:number")
    assert load_topology(f"{program}:orders").application_id == "orders"
