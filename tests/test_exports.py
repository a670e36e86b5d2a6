"""The names that `import coopstreams` offers, and the modules that it does not load."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import coopstreams
from coopstreams.commands.cli import COMMANDS
from coopstreams.query.client import QueryClient
from coopstreams.topology import errors

ROOT = Path(__file__).resolve().parent.parent


def loaded_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after the
    statement.
    """
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_coopstreams_loads_neither_spark_nor_a_client_nor_a_web_server() -> (
    None
):
    assert (
        loaded_after("import coopstreams")
        & {
            "pyspark",
            "starlette",
            "uvicorn",
            "httpx",
            "confluent_kafka",
            "kafka",
            "rocksdict",
        }
        == set()
    )


def test_errors_are_had_with_coopstreams_and_cost_nothing_more() -> None:
    assert coopstreams.errors.TopologyError is errors.TopologyError
    assert loaded_after(
        "from coopstreams import errors; errors.QueryError"
    ) == loaded_after("import coopstreams")


def test_the_query_client_is_loaded_when_it_is_asked_for() -> None:
    assert coopstreams.QueryClient is QueryClient
    loaded = loaded_after("from coopstreams import QueryClient")
    assert "httpx" in loaded
    assert loaded & {"starlette", "uvicorn", "confluent_kafka", "rocksdict"} == set()


def test_a_query_client_without_its_extra_is_an_error_with_the_cure() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None; from coopstreams import QueryClient"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "pip install 'coopstreams[http]'" in done.stderr


WITHOUT_HTTPX = "import sys; sys.modules['httpx'] = None; "


@pytest.mark.ci
@pytest.mark.parametrize(
    "command",
    [
        "query URL counts be",
        "status URL",
        "run examples/word_count.py --bootstrap-servers localhost:9",
    ],
)
def test_a_command_without_its_extra_ends_in_one_line_before_it_connects(
    command: str,
) -> None:
    code = f"{WITHOUT_HTTPX}from coopstreams.__main__ import main; sys.argv[1:] = {command.split()}; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode != 0
    assert 'needs httpx: pip install "coopstreams[http]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert "does not answer" not in done.stderr


@pytest.mark.ci
def test_an_application_without_the_extra_can_be_made() -> None:
    """It answers no queries; the error of a request for them names the missing extra."""
    subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_HTTPX}from coopstreams import CoopStreams"],
        check=True,
    )


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'KafkaStreams'"):
        coopstreams.KafkaStreams  # noqa: B018 asking is the test


@cache
def said_to(*words: str) -> tuple[str, set[str]]:
    """Return the output of `coopstreams …`, and the modules loaded then."""
    code = f"""
import sys
from coopstreams.__main__ import main
sys.argv = ["coopstreams", *{words}]
try:
    main()
except SystemExit:
    print("loaded:", *sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    text, _, modules = done.stdout.partition("loaded:")
    return text, set(modules.split())


@pytest.mark.parametrize(
    ("command", "others"),
    [
        (
            "run",
            {
                "coopstreams.consumer",
                "coopstreams.commands.check",
                "coopstreams.commands.reset",
            },
        ),
        (
            "status",
            {
                "coopstreams.commands.topology_target",
                "confluent_kafka",
                "kafka",
                "rocksdict",
            },
        ),
        (
            "query",
            {
                "coopstreams.commands.topology_target",
                "confluent_kafka",
                "kafka",
                "rocksdict",
            },
        ),
        ("dev", {"coopstreams.commands.command_settings", "kafka", "rocksdict"}),
    ],
)
def test_a_command_loads_no_other_one_and_only_what_it_needs(
    command: str, others: set[str]
) -> None:
    text, loaded = said_to(command, "--help")
    assert f"Usage: coopstreams {command}" in text
    everything, all_loaded = said_to("--help")
    assert f" {command} " in everything
    assert all_loaded >= others
    assert loaded & others == set()
    assert all_loaded & {"pyspark", "starlette", "uvicorn"} == set()


def test_the_version_is_told_without_the_modules_of_the_commands() -> None:
    text, loaded = said_to("--version")
    assert text.startswith("coopstreams ")
    assert loaded & {place.partition(":")[0] for place in COMMANDS.values()} == set()


@pytest.mark.parametrize("room", ["topology", "state"])
def test_the_inner_rooms_do_not_load_the_runtime(room: str) -> None:
    loaded = loaded_after(f"import coopstreams.{room}")
    assert loaded & {"confluent_kafka", "kafka"} == set()


def test_what_a_user_imports_is_sorted_and_there() -> None:
    names = list(coopstreams.__all__)
    assert names == sorted(names)
    assert [name for name in names if not hasattr(coopstreams, name)] == []
