"""Conventions that no linter checks: allowed imports, no notes for later."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
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

IN_A_CYCLE = {
    f"coopstreams.topology.dsl.{name}"
    for name in (
        "branches",
        "cogrouped",
        "grouped",
        "kstream",
        "ktable",
        "stream_calls",
        "stream_joins",
        "windowed",
    )
}
"""The types of the DSL: a method of one returns another, and their annotations name it.
docs/internals/architecture.md says why; none may come in.
"""

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
            "end_offsets",
            "group_requests",
            "heartbeats",
            "kafka_member",
            "kafka_network",
            "broker_lookup",
            "transaction_requests",
            "hanging_transactions",
        )
    ),
    "jgo": ("coopstreams/dev/jars.py", "coopstreams/dev/pins.py"),
    "psycopg": ("coopstreams/sinks/postgres.py",),
    "pyspark": ("coopstreams/spark/*.py",),
    "rocksdict": ("state/rocks.py", "state/sst.py"),
    "starlette": ("coopstreams/query/*.py",),
    "uvicorn": ("coopstreams/query/*.py",),
}
UNDOCUMENTED = {
    "heartbeats.py",
    "kafka_member.py",
    "kafka_network.py",
    "broker_lookup.py",
}
"""Where names of kafka-python are used that its documentation lacks:
tests/group/test_kafka_python.py has all of them.
"""
PURE = {
    "fastavro",
    "google",
    "jsonschema_rs",
    "msgspec",
    "orjson",
    "sortedcontainers",
    "xxhash",
    "coopstreams",
}
IMPURE = {"asyncio", "multiprocessing", "socket", "subprocess", "threading", "time"}
HOSTED = (
    "coopstreams/instance/",
    "coopstreams/opening/",
    "coopstreams/preflight/",
    "coopstreams/tasks/",
    "coopstreams/commit/",
    "coopstreams/group/",
    "coopstreams/consumer/",
)
SPEAKS_WITH_BROKERS = {
    f"coopstreams/group/{name}.py"
    for name in (
        "admin",
        "connection",
        "coordinator",
        "end_offsets",
        "group_settings",
        "hanging_transactions",
        "broker_lookup",
        "heartbeats",
        "kafka_member",
    )
}
SEEN_FROM_OUTSIDE = {
    "coopstreams/consumer/cooperative_fetch.py",
    "coopstreams/instance/coop_streams.py",
}
"""Modules called by programs and administrators: simulations do not control them."""
ASKED_OF_THE_HOST = {
    "asyncio",
    "multiprocessing",
    "queue",
    "random",
    "socket",
    "subprocess",
    "time",
    "uuid",
}
LATER = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements below a node. Expressions, most of the nodes, have none."""
    inner = (
        part
        for field in ("body", "orelse", "finalbody", "handlers", "cases")
        for part in getattr(node, field, ())
    )
    for part in inner:
        if isinstance(part, ast.stmt):
            yield part
        yield from statements(part)


def names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from (origin, *(f"{origin}.{name.name}" for name in node.names))


@cache
def imported(path: str) -> tuple[str, ...]:
    """Return the full names of all imports in a module.

    A relative import begins with a dot; `from a import b` is `a` and `a.b`.
    """
    return tuple(names_in(statements(ast.parse(source(path)))))


def module_name(path: str) -> str:
    name = path.removesuffix(".py").replace("/", ".")
    return name if name.partition(".")[0] == "coopstreams" else f"coopstreams.{name}"


def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports: at the top, in functions and for
    type checking.

    Packages are left out: an `__init__` re-exports.
    """
    modules = {
        module_name(path): path for path in LIBRARY if not path.endswith("__init__.py")
    }
    return {
        name: modules.keys() & set(imported(path)) for name, path in modules.items()
    }


def at_the_top(path: str) -> set[str]:
    """Return the full names that a module imports at its top level."""
    body = [
        node
        for node in ast.parse(source(path)).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return set(names_in(body))


def in_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Return the nodes that can reach themselves."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            new = graph[ahead.pop()] - seen
            seen |= new
            ahead += new
        return seen

    return {node for node in graph if node in reached(node)}


def found(
    paths: Iterable[str], look: Callable[[str], Iterable[str]]
) -> dict[str, list[str]]:
    """Return the violations of a rule, by module."""
    return {path: forbidden for path in paths if (forbidden := list(look(path)))}


@pytest.mark.ci
def test_modules_import_in_one_direction() -> None:
    graph = import_graph()
    assert in_cycles(graph) == IN_A_CYCLE
    modules = {
        module_name(path): path for path in LIBRARY if not path.endswith("__init__.py")
    }
    assert (
        in_cycles(
            {name: modules.keys() & at_the_top(path) for name, path in modules.items()}
        )
        == set()
    )
    folders: dict[str, set[str]] = {}
    for module, others in graph.items():
        folder = module.rpartition(".")[0]
        folders.setdefault(folder, set()).update(
            {other.rpartition(".")[0] for other in others} - {folder}
        )
    assert in_cycles(folders) == set()


def test_nothing_is_left_for_later() -> None:
    assert (
        found(
            LIBRARY + OTHERS,
            lambda path: filter(LATER.search, source(path).splitlines()),
        )
        == {}
    )


def test_imports_have_full_names() -> None:
    assert (
        found(
            LIBRARY + OTHERS,
            lambda path: (name for name in imported(path) if name.startswith(".")),
        )
        == {}
    )
    bare = found(
        LIBRARY + OTHERS,
        lambda path: (
            name
            for name in imported(path)
            if name.partition(".")[0] in ("state", "topology")
        ),
    )
    assert bare == {}, "a bare name is a second copy of the module"


def strangers(path: str) -> Iterator[str]:
    """Yield the libraries that a module imports without permission."""
    for name in imported(path):
        places = MAY_IMPORT.get(name.partition(".")[0])
        if places is not None and not any(fnmatch(path, place) for place in places):
            yield name


def test_a_library_stays_behind_its_adapter() -> None:
    assert found(LIBRARY, strangers) == {}


def test_what_kafka_python_does_not_document_is_used_in_one_place() -> None:
    documented = ("kafka", "kafka.errors", "kafka.protocol")
    elsewhere = [path for path in LIBRARY if Path(path).name not in UNDOCUMENTED]
    undocumented = found(
        elsewhere,
        lambda path: (
            name
            for name in imported(path)
            if name.partition(".")[0] == "kafka"
            and name not in documented
            and not name.startswith(("kafka.errors.", "kafka.protocol."))
        ),
    )
    assert undocumented == {}


def asked_of_the_system(path: str) -> Iterator[str]:
    """Yield the modules of time, threads and randomness that a module imports instead
    of using its `Host`.
    """
    yield from {name.partition(".")[0] for name in imported(path)} & ASKED_OF_THE_HOST
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "threading":
            yield from {f"threading.{node.attr}"} - {
                "threading.Lock",
                "threading.RLock",
            }


def test_only_the_host_is_asked_for_time_threads_and_chance() -> None:
    """So a simulation controls them: see `coopstreams/common/host.py`. Locks held
    without waiting are exempt.
    """
    hosted = [
        path
        for path in LIBRARY
        if path.startswith(HOSTED)
        and path not in SPEAKS_WITH_BROKERS | SEEN_FROM_OUTSIDE
    ]
    assert hosted
    assert found(hosted, asked_of_the_system) == {}


def test_every_room_has_its_place_among_the_layers() -> None:
    contracts = tomllib.loads(source("pyproject.toml"))["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = [
        contract["layers"] for contract in contracts if contract["id"] == "rooms"
    ]
    placed = tuple(name.strip() for layer in layers for name in layer.split("|"))
    full = [module_name(path) for path in LIBRARY if not path.endswith("__init__.py")]
    assert [
        name
        for name in full
        if not f"{name}.".startswith(tuple(f"{place}." for place in placed))
    ] == []


def test_topology_is_pure() -> None:
    pure = (
        PURE | (set(sys.stdlib_module_names) - IMPURE) | {"annotationlib"}
    )  # of Python 3.14, and pure
    topology = [path for path in LIBRARY if path.startswith("topology/")]
    assert topology
    assert (
        found(
            topology,
            lambda path: {name.partition(".")[0] for name in imported(path)} - pure,
        )
        == {}
    )


def test_types_are_made_ready_for_msgspec_while_modules_load() -> None:
    """Where two threads are the first to decode a type, at the same time, msgspec 0.22
    ends the process: segfault.
    """
    late = [
        f"{path}:{call.lineno}"
        for path in LIBRARY
        if path != "topology/avro.py"  # its serdes make a Decoder of their type, too
        and "msgspec." in source(path)
        for call in ast.walk(ast.parse(source(path)))
        if isinstance(call, ast.Call)
        and (called := ast.unparse(call.func)).startswith("msgspec.")
        and (
            called == "msgspec.convert"
            or any(keyword.arg == "type" for keyword in call.keywords)
        )
    ]
    assert late == [], "make a Decoder when the module is loaded, or the serde made"
