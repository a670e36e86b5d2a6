"""Generates the way of a batch of JSON values that goes through filters, a mapper and a
new key to its sink as columns: see `json_parts`.

Invariant: the outputs are those of the loop, which takes any batch with headers, or with
a record that was not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import not_
from typing import Any, Final

from coopstreams.topology.graph.nodes import (
    DropNullKeys,
    Filter,
    MapValues,
    Node,
    SelectKey,
    Sink,
    Source,
)
from coopstreams.topology.operators.codegen import ColumnVariables
from coopstreams.topology.operators.compiler import Body
from coopstreams.topology.operators.json_parts import linear_run
from coopstreams.topology.serdes import Serde, float64, text


@dataclass(frozen=True, slots=True)
class _Batch:
    """The code of a batch's columns, on their way to the sink.

    Shape: `tests`: the conditions of the way. `serdes`: of keys and values, whose items
    are not yet bytes; None: they are. `truths`: the variables of the filters' truths, and
    whether these are negated.
    """

    keys: str = "keys"
    values: str = "batch.values"
    key: Serde[Any] | None = None
    value: Serde[Any] | None = None
    tests: tuple[str, ...] = ()
    truths: Mapping[str, bool] = field(default_factory=dict)


_CLASSES: Final = ((text, "str"), (float64, "float"))
"""The serdes that write any value of a class."""


def pass_at_once(function: Body, source: Source) -> None:
    """Generate the code before the loop over a source that appends a batch to the
    output of its sink, if all records were read and have no headers.

    This is possible if before the sink there are only filters, a mapper and a new key,
    which are columns.
    """
    checks_keys = source.key.check_key is not None and not source.internal
    if checks_keys or function.unit.expiring:
        return
    nodes = list(linear_run(function.analysis, source))
    sink = nodes[-1]
    if not isinstance(sink, Sink) or sink.topic in function.compiler.timed:
        return
    batch = _Batch()
    for node in nodes[:-1]:
        behind = _behind(function.columns, batch, node, sink)
        if behind is None:
            return
        batch = behind
    if batch.keys != "keys" or sink.key == source.key:
        _append_at_once(function, batch, sink)


def _behind(
    columns: ColumnVariables,
    batch: _Batch,
    node: Node,
    sink: Sink,
) -> _Batch | None:
    """Return the batch behind a node; None: records have to go one by one."""
    if batch.values != "batch.values" and not isinstance(node, DropNullKeys):
        return (
            None  # it reads the mapped value, even if an earlier node has its function
        )
    match node:
        case Filter(predicate=predicate):
            truth = columns.computed.get((id(predicate), True))
            # Two filters of one condition have the truths of the first.
            if truth is None or truth in batch.truths:
                return None
            return replace(batch, truths={**batch.truths, truth: node.negate})
        case MapValues(mapper=mapper) if id(mapper) in columns.json:
            return replace(batch, values=f"{columns.json[id(mapper)]}_column")
        case MapValues(mapper=mapper):
            test = _is_written(columns.of(mapper), sink.value)
            values = f"{columns.of(mapper)}_column"
            more = (*batch.tests, test or "")
            written = replace(batch, values=values, value=sink.value, tests=more)
            return written if test else None
        case SelectKey(mapper=mapper):
            test = _is_written(columns.of(mapper), sink.key)
            keys = f"{columns.of(mapper)}_column"
            more = (*batch.tests, test or "")
            written = replace(batch, keys=keys, key=sink.key, tests=more)
            return written if test else None
        case DropNullKeys() if batch.key is not None:
            return batch  # the test of their class has found none
    return None


def _is_written(variable: str | None, serde: Serde[Any]) -> str | None:
    """Return the test that a serde writes all items of a column; None: it may not."""
    for known, class_ in _CLASSES:
        if variable is not None and serde == known:
            return f"{variable}_class is {class_}"
    return None


def _append_at_once(
    function: Body,
    batch: _Batch,
    sink: Sink,
) -> None:
    """Generate the code that appends a batch to an output."""
    unit = function.unit
    out = unit.output(sink.topic)
    lines = []
    passed = "{}"
    if batch.truths:
        # The truths of the last filter are those of all: see `Parts.columns`.
        last, negate = list(batch.truths.items())[-1]
        passed = f"{unit.constant('compress', compress)}({{}}, {last}_column)"
        if negate:
            not_true = unit.constant("not_", not_)
            lines = [f"{last}_column = list(map({not_true}, {last}_column))"]
    for column, given, serde in (
        ("keys", batch.keys, batch.key),
        ("values", batch.values, batch.value),
        ("timestamps", "timestamps", None),
    ):
        items = passed.format(given)
        if serde is not None:
            items = f"map({unit.constant(f'encode_{column}', serde.encode)}, {items})"
        lines.append(f"{out}.{column}.extend({items})")
    # A list of another class notes the time of each append.
    plain = f"{out}.timestamps.__class__ is list"
    tests = ["all_read", "not headed", "keys is batch.keys", plain, *batch.tests]
    function.prologue += [
        f"if {' and '.join(tests)}:",
        *(f"    {line}" for line in [*lines, "return"]),
    ]
