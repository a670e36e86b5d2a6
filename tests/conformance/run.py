"""Runs a case, and compares the results with those of the real library.

Invariant: no case ends the run: a step without a counterpart, or an unexpected error,
is a difference of that case.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from traceback import format_exception_only
from typing import Any, Literal, TypeAlias

from coopstreams import StreamsBuilder
from coopstreams.testing import OutputRecord, TopologyTestDriver
from coopstreams.topology.errors import CoopStreamsError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.serdes import Windowed
from tests.conformance import (
    ops_aggregations,
    ops_joins,
    ops_processors,
    ops_stateless,
    tables,
)
from tests.conformance.world import KEY, VALUE, NotSupportedError, World
from tests.durations import ms

Case: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Level = Literal["strict", "per-key"]
Backend = Literal["rocksdb", "memory"]

OPS = {
    **ops_stateless.OPS,
    **ops_aggregations.OPS,
    **ops_joins.OPS,
    **ops_processors.OPS,
}
CONFIG = {
    "processing_exception_handler": "processing.exception.handler",
    "topology_optimization": "topology.optimization",
}


ONE_TIME = (
    "Kafka's test driver has one stream time for all sub-topologies: what comes back through a repartition topic moves "
    "the time of a processor in front of it. In production it does not, nor here. With one time, the case passes."
)


@dataclass(slots=True)
class Outcome:
    """The result of a case. It passed if there is no difference; `explained`: the
    reason of a difference that comes from the library's test driver, not from Kafka
    Streams.
    """

    name: str
    family: str
    quirks: list[str]
    differences: list[str] = field(default_factory=list)
    explained: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the results are the expected ones."""
        return not self.differences


@dataclass(slots=True)
class Seen:
    """The results of a case, in the format of `expected`; `error`: the index of the
    input that failed, and a text.
    """

    outputs: list[Row]
    error: tuple[int, str] | None
    stores: Mapping[str, list[Row]]
    answers: list[Any]


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file, one a line."""
    return [
        json.loads(line)
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]


def run(
    case: Case,
    *,
    ranges: int = 1,
    level: Level = "strict",
    backend: Backend = "memory",
    optimization: str = "none",
) -> Outcome:
    """Return the outcome of a case. `optimization`: the default for cases without one."""
    outcome = Outcome(case["name"], case["family"], case.get("quirks", []))
    try:
        with (
            tempfile.TemporaryDirectory()
            if backend == "rocksdb"
            else nullcontext() as folder
        ):
            seen = _seen(
                case, ranges, Path(folder) if folder is not None else None, optimization
            )
        outcome.differences += _differences(case, seen, level)
        if outcome.differences and not [
            *_differences(
                case, _seen(case, ranges, None, optimization, one_time=True), level
            )
        ]:
            outcome.explained = ONE_TIME
    except NotSupportedError as missing:
        outcome.differences.append(f"not supported: {missing}")
    except Exception as error:  # noqa: BLE001 a case that cannot be run is a case that failed
        outcome.differences.append(f"not run: {_told(error)}")
    return outcome


def translated(case: Case) -> tuple[World, Topology]:
    """Return the topology of a case, written with the public API.

    Raises:
        NotSupportedError: the API has no counterpart of a step.
    """
    world = World(StreamsBuilder("conformance"))
    for op in case["topology"]:
        if op["op"] not in OPS:
            raise NotSupportedError(op["op"])
        node = OPS[op["op"]](world, op)
        if node is not None:
            world.nodes[op["id"]] = node
    return world, world.builder.build()


def _seen(
    case: Case,
    ranges: int,
    state_dir: Path | None,
    optimization: str,
    *,
    one_time: bool = False,
) -> Seen:
    world, topology = translated(case)
    config = {"topology.optimization": optimization}
    for name, value in case.get("config", {}).items():
        if name not in CONFIG:
            raise NotSupportedError(f"config {name}")
        config[CONFIG[name]] = value
    with TopologyTestDriver(topology, ranges, config, state_dir=state_dir) as driver:
        world.driver = driver
        shared: dict[str, int] = {}
        for task in driver._all_tasks() if one_time else ():
            shared |= task.program._stream_times
            task.program._stream_times = shared
        error = _feed(driver, case["inputs"], commit=state_dir is not None)
        outputs = [_output(record) for record in _in_order(driver.outputs(), world)]
        if error is not None:
            return Seen(outputs, error, {}, [])
        times = sorted(
            {
                given["timestamp_ms"]
                for given in case["inputs"]
                if "timestamp_ms" in given
            }
        )
        stores = {
            name: tables.rows(world, name, expected, times)
            for name, expected in case["expected"]["stores"].items()
        }
        return Seen(
            outputs,
            None,
            stores,
            [tables.answer(world, query) for query in case.get("queries", [])],
        )


def _feed(
    driver: TopologyTestDriver, inputs: list[Row], *, commit: bool
) -> tuple[int, str] | None:
    """Send the inputs; return the index of the failed one, and its error. With
    `commit`, each input is committed before the next.
    """
    for index, given in enumerate(inputs):
        try:
            if "advance_wall_clock_ms" in given:
                driver.advance(ms(given["advance_wall_clock_ms"]))
            else:
                headers = [
                    (name, text.encode()) for name, text in given.get("headers", [])
                ]
                driver.input(given["topic"], KEY, VALUE).send(
                    given["key"], given["value"], given["timestamp_ms"], headers or None
                )
            if commit:
                driver.commit()
        except CoopStreamsError as error:
            return index, _told(error)
    return None


def _in_order(
    outputs: list[OutputRecord[Any, Any]], world: World
) -> Iterator[OutputRecord[Any, Any]]:
    """Yield outputs and side effects in the order in which they happened."""
    waiting = list(reversed(world.side_effects))
    for forwarded, record in enumerate(outputs):
        while waiting and waiting[-1][0] <= forwarded:
            yield waiting.pop()[1]
        yield record
    while waiting:
        yield waiting.pop()[1]


def _output(record: OutputRecord[Any, Any]) -> Row:
    key = record.key
    shown = (
        {"key": key.key, "window": [key.start_ms, key.end_ms]}
        if isinstance(key, Windowed)
        else key
    )
    row = {
        "topic": record.topic,
        "key": shown,
        "value": record.value,
        "timestamp_ms": record.timestamp,
    }
    if record.headers:
        row["headers"] = [
            [name, None if text is None else text.decode()]
            for name, text in record.headers
        ]
    return row


def _differences(case: Case, seen: Seen, level: Level) -> Iterator[str]:
    expected = case["expected"]
    wanted = expected.get("error")
    if wanted is None and seen.error is not None:
        yield f"failed at input {seen.error[0]}: {seen.error[1]}"
    elif wanted is not None and seen.error is None:
        yield f"did not fail; it should at input {wanted['at_input']}"
    elif (
        wanted is not None
        and seen.error is not None
        and wanted["at_input"] != seen.error[0]
    ):
        yield f"failed at input {seen.error[0]} instead of {wanted['at_input']}: {seen.error[1]}"
    if level == "strict":
        yield from _difference("outputs", expected["outputs"], seen.outputs)
    else:
        left, right = _by_key(expected["outputs"]), _by_key(seen.outputs)
        for at in sorted({*left, *right}):
            yield from _difference(
                f"outputs of {at}", left.get(at, []), right.get(at, [])
            )
    for name, rows in expected["stores"].items() if seen.error is None else ():
        yield from _difference(
            f"store {name}",
            sorted(rows, key=_line),
            sorted(seen.stores[name], key=_line),
        )
    for query, had, got in zip(
        case.get("queries", []),
        expected.get("query_results", []),
        seen.answers,
        strict=False,
    ):
        yield from _difference(f"query {_line(query)}", _listed(had), _listed(got))


def _by_key(outputs: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in outputs:
        key = row["key"]["key"] if isinstance(row["key"], dict) else row["key"]
        found.setdefault(f"{row['topic']} {_line(key)}", []).append(row)
    return found


def _difference(what: str, expected: list[Any], got: list[Any]) -> Iterator[str]:
    had, has = [_line(row) for row in expected], [_line(row) for row in got]
    if had != has:
        yield "\n".join(
            [
                what,
                *list(unified_diff(had, has, "expected", "got", n=1, lineterm=""))[2:],
            ]
        )


def _listed(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def _line(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, sort_keys=True)


def _told(error: BaseException) -> str:
    return " ".join("".join(format_exception_only(error)).split())
