"""Habits that no linter checks: sizes, who may import which library, nothing left for later."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted(
    path.relative_to(ROOT).as_posix()
    for room in ("coopstreams", "state", "topology")
    for path in (ROOT / room).rglob("*.py")
)
OTHERS = sorted(
    path.relative_to(ROOT).as_posix()
    for room in ("tests", "examples", "benchmarks")
    for path in (ROOT / room).rglob("*.py")
)

MODULE_LINES = 500
FUNCTION_STATEMENTS = 45

MAY_IMPORT = {
    "confluent_kafka": ("coopstreams/log/kafka/*.py",),
    "fsspec": ("state/storage.py",),
    "kafka": tuple(
        f"coopstreams/group/{name}.py"
        for name in (
            "codec",
            "connection",
            "coordinator",
            "end_requests",
            "ends",
            "requests",
            "transaction_requests",
            "transactions",
        )
    ),
    "jgo": ("coopstreams/dev/jars.py", "coopstreams/dev/pins.py"),
    "pyspark": ("coopstreams/spark/*.py",),
    "rocksdict": ("state/rocks.py", "state/sst.py"),
    "starlette": ("coopstreams/query/*.py",),
    "uvicorn": ("coopstreams/query/*.py",),
}
PURE = {"msgspec", "orjson", "sortedcontainers", "xxhash", "coopstreams"}
IMPURE = {"asyncio", "multiprocessing", "socket", "subprocess", "threading", "time"}
HOSTED = (
    "coopstreams/instance/",
    "coopstreams/opening/",
    "coopstreams/tasks/",
    "coopstreams/commit/",
    "coopstreams/group/",
)
SPEAKS_WITH_BROKERS = {
    f"coopstreams/group/{name}.py"
    for name in ("admin", "connection", "coordinator", "ends", "settings", "transactions")
}
SEEN_FROM_OUTSIDE = {"coopstreams/commit/offsets.py", "coopstreams/instance/app.py"}
"""What programs and administrators call: no part of what a simulation decides."""
ASKED_OF_THE_HOST = {"asyncio", "multiprocessing", "queue", "random", "socket", "subprocess", "time", "uuid"}
LATER = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))


def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def imported(path: str) -> Iterator[str]:
    """Yield the full names that a module imports, wherever in it; a relative import begins with a dot."""
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def long_functions(path: str) -> Iterator[str]:
    """Yield the functions that have too many statements: how the formatter breaks their lines does not count."""
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = sum(isinstance(part, ast.stmt) for part in ast.walk(node)) - 1
            if statements > FUNCTION_STATEMENTS:
                yield f"{path}:{node.lineno} {node.name}: {statements} statements"


@pytest.mark.parametrize("path", LIBRARY + OTHERS)
def test_a_module_fits_in_one_head(path: str) -> None:
    lines = len(source(path).splitlines())
    assert lines <= MODULE_LINES, f"{lines} lines: split it by idea"
    assert list(long_functions(path)) == []


@pytest.mark.parametrize("path", LIBRARY + OTHERS)
def test_nothing_is_left_for_later(path: str) -> None:
    assert [line for line in source(path).splitlines() if LATER.search(line)] == []


@pytest.mark.parametrize("path", LIBRARY + OTHERS)
def test_imports_have_full_names(path: str) -> None:
    names = list(imported(path))
    assert [name for name in names if name.startswith(".")] == []
    assert [name for name in names if name.partition(".")[0] in ("state", "topology")] == [], (
        "a bare name is a second copy of the module"
    )


@pytest.mark.parametrize("path", LIBRARY)
def test_a_library_stays_behind_its_adapter(path: str) -> None:
    strangers = [
        name
        for name in imported(path)
        for library, places in MAY_IMPORT.items()
        if name.partition(".")[0] == library and not any(fnmatch(path, place) for place in places)
    ]
    assert strangers == []


@pytest.mark.parametrize(
    "path",
    [path for path in LIBRARY if path.startswith(HOSTED) and path not in SPEAKS_WITH_BROKERS | SEEN_FROM_OUTSIDE],
)
def test_only_the_host_is_asked_for_time_threads_and_chance(path: str) -> None:
    """So that a simulation decides them: see `coopstreams/common/host.py`. A lock that nobody waits in is no matter of
    the host's.
    """
    assert {name.partition(".")[0] for name in imported(path)} & ASKED_OF_THE_HOST == set()
    used = {
        node.attr
        for node in ast.walk(ast.parse(source(path)))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "threading"
    }
    assert used <= {"Lock", "RLock"}


def test_every_room_has_its_place_among_the_layers() -> None:
    contracts = tomllib.loads(source("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["id"] == "rooms"]
    placed = tuple(name.strip() for layer in layers for name in layer.split("|"))
    modules = [path.removesuffix(".py").replace("/", ".") for path in LIBRARY if not path.endswith("__init__.py")]
    full = [name if name.startswith("coopstreams.") else f"coopstreams.{name}" for name in modules]
    assert [name for name in full if not f"{name}.".startswith(tuple(f"{place}." for place in placed))] == []


@pytest.mark.parametrize("path", [path for path in LIBRARY if path.startswith("topology/")])
def test_topology_is_pure(path: str) -> None:
    roots = {name.partition(".")[0] for name in imported(path)}
    assert roots - PURE - (set(sys.stdlib_module_names) - IMPURE) == set()
