"""What `import coopstreams` gives, and what it leaves unloaded."""

import subprocess
import sys

import pytest

import coopstreams


def loaded_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after the statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_coopstreams_loads_neither_spark_nor_a_web_server() -> None:
    assert loaded_after("import coopstreams") & {"pyspark", "starlette", "uvicorn"} == set()


def test_the_command_line_loads_neither_spark_nor_a_web_server() -> None:
    assert loaded_after("import coopstreams.cli") & {"pyspark", "starlette", "uvicorn"} == set()


@pytest.mark.parametrize("room", ["topology", "state"])
def test_the_inner_rooms_do_not_load_the_runtime(room: str) -> None:
    loaded = loaded_after(f"import coopstreams.{room}")
    assert loaded & {"confluent_kafka", "kafka"} == set()


def test_what_a_user_imports_is_sorted_and_there() -> None:
    names = list(coopstreams.__all__)
    assert names == sorted(names)
    assert [name for name in names if not hasattr(coopstreams, name)] == []
