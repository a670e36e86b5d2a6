"""The ways to name a topology on the command line, and the errors when there is none."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from coopstreams.commands.processes.restarts import FAILED, WRONG, exit_status
from coopstreams.commands.topology_target import load_topology
from coopstreams.topology.errors import ConfigError, CoopStreamsError

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
    with pytest.raises(
        ConfigError,
        match=r"has no variable `wrongname`; topologies there: orders, other",
    ):
        load_topology(f"{program}:wrongname")
    with pytest.raises(ConfigError, match=r"number in .* is int, not a topology"):
        load_topology(f"{program}:number")
    assert load_topology(f"{program}:orders").application_id == "orders"


FAILS = """
from coopstreams import StreamsBuilder
def limit(given):
    return int(given["limit"])
try:
    limit({})
except KeyError as error:
    raise RuntimeError("no limit") from error
"""


def test_an_error_in_the_program_is_shown_with_its_own_lines_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "failing_program.py"
    program.write_text(FAILS)
    with caplog.at_level(logging.DEBUG), pytest.raises(CoopStreamsError) as caught:
        load_topology(str(program))
    said = str(caught.value).splitlines()
    assert said[0] == f"{program} cannot be loaded."
    assert [line.strip() for line in said if line.startswith("  File ")] == [
        f'File "{program}", line 6, in <module>',
        f'File "{program}", line 4, in limit',
        f'File "{program}", line 8, in <module>',
    ]
    assert "KeyError: 'limit'" in said
    assert said[-1] == "RuntimeError: no limit"
    assert "topology_target.py" in caplog.text, "--verbose shows all lines"


def test_a_module_is_there_even_if_it_imports_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing one may have a name with which its own begins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "some_orders.py").write_text("import some_order\n")
    with pytest.raises(
        ConfigError,
        match=r"^some_orders cannot be loaded\.(.|\n)*No module named 'some_order'",
    ):
        load_topology("some_orders")
    for name in ("some_order", "./some_orders"):
        with pytest.raises(
            ConfigError, match=rf'^there is no module "{name}" here; for a file'
        ):
            load_topology(name)


def test_a_program_that_is_no_python_is_shown_where_it_is_not(tmp_path: Path) -> None:
    program = tmp_path / "torn_program.py"
    program.write_text("topology = (\n")
    with pytest.raises(CoopStreamsError, match=r"SyntaxError: '\(' was never closed"):
        load_topology(str(program))


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("topology = (", WRONG),
        ("import no_such_module", WRONG),
        ("import os; os.environ['NO_SUCH_LIMIT']", WRONG),
        ("raise ConnectionRefusedError(111, 'the registry')", FAILED),
        ("import httpx; raise httpx.ConnectError('the registry')", FAILED),
    ],
)
def test_a_program_that_has_to_be_mended_is_not_started_again_and_one_that_had_no_answer_is(
    program: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "some_program.py").write_text(program)
    with pytest.raises(
        CoopStreamsError, match=r"some_program.py cannot be loaded\."
    ) as caught:
        load_topology(str(tmp_path / "some_program.py"))
    assert exit_status(caught.value) == status
