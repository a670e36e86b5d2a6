"""Commands that query a running application: arguments, output, exit status. Others:
tests/docs and tests/broker.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from coopstreams.topology.errors import ConfigError, QueryError
from tests.command_line import app
from tests.query.cluster import HOUR, LIMITS, Cluster, Data

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA: Data = {
    "counts": {"be": (2, 1), "bee": (1, 5), "to": (3, 2)},
    "numbers": {7: ({"n": 1}, 1)},
    "points": {"a": (1, 1), 7: (2, 2)},
    "parcels": {"a": (3, 1)},
    "hours": {("k", hour * HOUR): ({"n": hour}, hour) for hour in range(3)},
    "visits": {("k", 1, 5): (2, 5), ("k", 20, 30): (3, 30)},
    "prices": {"k": ([(10, b"1"), (20, b"2")], 20)},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Cluster(2, replace(LIMITS, retry_s=0.0)) as cluster:
        cluster.deal(2, DATA)
        yield cluster["a"].url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def lines(result: Result) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("store", "key", "value"),
    [
        ("counts", "be", 2),
        ("numbers", "7", {"n": 1}),
        ("points", '"a"', 1),
        ("points", "7", 2),
        ("parcels", '"a"', 3),
    ],
    ids=["text", "number", "JSON text", "JSON number", "Avro"],
)
def test_a_key_is_typed_as_text_and_a_json_key_as_json(
    url: str, store: str, key: str, value: Any
) -> None:
    result = run("query", url, store, key)
    assert result.exit_code == 0
    assert [found["value"] for found in lines(result)] == [value]


def test_a_json_key_that_is_no_json_is_an_error_with_a_cure(url: str) -> None:
    result = run("query", url, "points", "a")
    assert isinstance(result.exception, QueryError)
    assert "a text is written '\"a\"'" in str(result.exception)


def test_a_key_without_a_value_is_silence_and_exit_status_1(url: str) -> None:
    result = run("query", url, "counts", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")


def test_a_window_store_has_windows_to_a_key(url: str) -> None:
    some = run("query", url, "hours", "k", "--limit", "2")
    assert [(found["start"], found["value"]) for found in lines(some)] == [
        (0, {"n": 0}),
        (HOUR, {"n": 1}),
    ]
    assert (
        some.stderr
        == "there are more windows than 2: --limit prints more, --from and --to fewer\n"
    )
    all_ = [
        run("query", url, "hours", "k", *limit) for limit in ((), ("--limit", "200000"))
    ]
    assert [(done.exit_code, done.stderr) for done in all_] == [(0, ""), (0, "")]


def test_an_entry_has_its_window_as_in_the_answer_over_http_and_none_if_it_has_none(
    url: str,
) -> None:
    assert [
        found["window"] for found in lines(run("query", url, "hours", "--limit", "2"))
    ] == [
        {"start": 0, "end": HOUR},
        {"start": HOUR, "end": 2 * HOUR},
    ]
    assert {"window", "key_error"}.isdisjoint(lines(run("query", url, "counts"))[0])


def test_a_session_store_has_sessions_to_a_key(url: str) -> None:
    assert [
        (found["start"], found["end"])
        for found in lines(run("query", url, "visits", "k"))
    ] == [(1, 5), (20, 30)]
    assert [
        found["start"]
        for found in lines(run("query", url, "visits", "k", "--from", "6"))
    ] == [20]
    assert [
        found["start"] for found in lines(run("query", url, "visits", "k", "--to", "6"))
    ] == [1]


def test_a_versioned_store_has_a_latest_value_and_a_past(url: str) -> None:
    assert [found["value"] for found in lines(run("query", url, "prices", "k"))] == [
        "2"
    ]
    assert lines(run("query", url, "prices", "k", "--as-of", "19")) == [
        {"since": 10, "until": 20, "value": "1"}
    ]
    assert run("query", url, "prices", "k", "--as-of", "9").exit_code == 1
    assert [
        found["since"]
        for found in lines(run("query", url, "prices", "k", "--from", "0"))
    ] == [10, 20]


@pytest.mark.parametrize(
    "options",
    [
        ("k", "--as-of", "1", "--from", "2"),
        ("--as-of", "1"),
        ("k", "--from", "yesterday"),
        ("k", "--as-of", "2026-01-31T08:00"),  # in which zone?
    ],
)
def test_times_that_do_not_go_together_are_an_error(
    url: str, options: tuple[str, ...]
) -> None:
    result = run("query", url, "prices", *options)
    assert isinstance(result.exception, QueryError)
    assert result.exception.code == "BAD_PARAMETER"


def test_without_a_key_the_entries_come_in_order(url: str) -> None:
    assert [found["key"] for found in lines(run("query", url, "counts"))] == [
        "be",
        "bee",
        "to",
    ]
    some = run("query", url, "counts", "--prefix", "be", "--limit", "1")
    assert [found["key"] for found in lines(some)] == ["be"]
    assert (
        some.stderr
        == "there are more entries than 1: --limit prints more; --prefix, --from and --to fewer\n"
    )


def test_without_a_key_from_and_to_are_keys(url: str) -> None:
    def keys(*options: str) -> list[str]:
        return [found["key"] for found in lines(run("query", url, "counts", *options))]

    assert keys("--from", "bee") == ["bee", "to"]
    assert keys("--to", "bee") == ["be", "bee"]
    assert keys("--from", "bee", "--to", "bee") == ["bee"]
    assert keys("--from", "bee", "--reverse") == ["to", "bee"]


def test_a_time_may_be_written_as_iso_8601(url: str) -> None:
    asked = ("--as-of", "1970-01-01T01:00:00.019+01:00")
    assert lines(run("query", url, "prices", "k", *asked)) == [
        {"since": 10, "until": 20, "value": "1"}
    ]
    assert [
        found["since"]
        for found in lines(
            run("query", url, "prices", "k", "--from", "1970-01-01T00:00:00.020Z")
        )
    ] == [20]


def test_an_unknown_store_is_an_error_that_names_the_others(url: str) -> None:
    result = run("query", url, "count", "be")
    assert isinstance(result.exception, QueryError)
    assert "counts" in str(result.exception)


def test_the_status_of_two_instances_fits_a_terminal_and_names_their_tasks(
    url: str,
) -> None:
    result = run("status", url)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    for task in ("0_0[0..127]", "0_0[128..255]", "0_1[0..127]", "0_1[128..255]"):
        assert task in result.stdout


def test_one_picture_of_top_fits_a_terminal(url: str) -> None:
    result = run("top", url, "--once")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "words  generation 1, 4 tasks on 2 partitions" in result.stdout
    assert "0_1  " in result.stdout


@pytest.mark.parametrize("format_", ["text", "mermaid", "dot", "svg", "json"])
def test_a_topology_is_drawn_without_a_broker(format_: str) -> None:
    result = run("describe", str(EXAMPLES / "word_count.py"), "--format", format_)
    assert result.exit_code == 0
    assert "word-count-counts-repartition" in result.stdout


def test_a_program_of_named_nodes_is_found_in_its_module(tmp_path: Path) -> None:
    app = tmp_path / "copying.py"
    app.write_text(
        "from coopstreams import TopologyBuilder, serdes\n"
        "topology = TopologyBuilder('copying').add_source('lines', 'in', key=serdes.raw, value=serdes.raw)\n"
        "topology.add_sink('copies', 'out', 'lines', key=serdes.raw, value=serdes.raw)\n"
    )
    for target in (str(app), f"{app}:topology"):
        assert "Sink: copies (topic: out)" in run("describe", target).stdout


def test_a_topology_is_drawn_as_it_runs_with_an_optimization(tmp_path: Path) -> None:
    app = tmp_path / "people.py"
    app.write_text(
        "from coopstreams import StreamsBuilder, serdes\n"
        "builder = StreamsBuilder('people')\n"
        "builder.table('people', key=serdes.text, value=serdes.text, store='kept')\n"
        "topology = builder.build()\n"
    )
    assert (
        "people-kept-changelog" in run("describe", str(app), "--format", "json").stdout
    )
    drawn = run(
        "describe", str(app), "--format", "json", "--optimization", "all"
    ).stdout
    assert "people-kept-changelog" not in drawn
    assert '"changelog": "people"' in drawn
    assert isinstance(
        run("describe", str(app), "--optimization", "some").exception, ConfigError
    )


def test_a_program_that_is_not_there_is_an_error_that_says_so() -> None:
    result = run("describe", "nowhere.py")
    assert isinstance(result.exception, ConfigError)
    assert "nowhere.py" in str(result.exception)


@pytest.mark.parametrize("command", ["run", "describe", "status", "query", "dev"])
def test_every_command_explains_itself(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


STANDS = """
import sys, time
from importlib.abc import MetaPathFinder

module = sys.argv[1]

class Stands(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == module:
            print(name, flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Stands())
from coopstreams.__main__ import main
sys.argv = ["coopstreams", "policy", "get"]
main()
"""
"""Runs a command whose import stands still at a module, which it prints."""


@pytest.mark.parametrize("module", ["typer", "coopstreams.commands.policy"])
def test_ctrl_c_ends_a_command_that_is_imported_without_a_traceback(
    module: str,
) -> None:
    command = [sys.executable, "-c", STANDS, module]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == module
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")
