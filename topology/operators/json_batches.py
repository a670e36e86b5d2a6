"""Generates the way of a batch of JSON values that goes through filters and a mapper to
its sink as columns: see `json_parts`.

Invariant: the outputs are those of the loop, which takes any batch with headers, or with
a record that was not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from operator import not_

from coopstreams.topology.graph.nodes import Filter, MapValues, Sink, Source
from coopstreams.topology.operators.compiler import Body
from coopstreams.topology.operators.json_parts import linear_run


def pass_at_once(function: Body, source: Source) -> None:
    """Generate the code before the loop over a source that appends a batch to the
    output of its sink, if all records were read and have no headers.

    This is possible if there are only filters, and perhaps a mapper whose JSON is a
    column, before the sink, and keys go to it as they are.
    """
    columns = function.columns
    checks_keys = source.key.check_key is not None and not source.internal
    if checks_keys or function.unit.expiring:
        return
    values = "batch.values"
    truths: dict[str, bool] = {}
    for node in linear_run(function.analysis, source):
        match node:
            case Filter(predicate=predicate):
                truth = columns.computed.get((id(predicate), True))
                # Two filters of one condition have the truths of the first.
                if truth is None or truth in truths:
                    return
                truths[truth] = node.negate
            case MapValues(mapper=mapper) if id(mapper) in columns.json:
                values = f"{columns.json[id(mapper)]}_column"
            case Sink() if node.key == source.key:
                if node.topic not in function.compiler.timed:
                    _append_at_once(function, node, values, truths)
                return
            case _:
                return


def _append_at_once(
    function: Body,
    sink: Sink,
    values: str,
    truths: Mapping[str, bool],
) -> None:
    """Generate the code that appends a batch to an output. `truths`: the variables of
    the filters' truths, and whether these are negated.
    """
    unit = function.unit
    out = unit.output(sink.topic)
    lines = []
    passed = "{}"
    if truths:
        # The truths of the last filter are those of all: see `Parts.columns`.
        last, negate = list(truths.items())[-1]
        passed = f"{unit.constant('compress', compress)}({{}}, {last}_column)"
        if negate:
            lines = [
                f"{last}_column = list(map({unit.constant('not_', not_)}, {last}_column))"
            ]
    for column, given in (
        ("keys", "keys"),
        ("values", values),
        ("timestamps", "timestamps"),
    ):
        lines.append(f"{out}.{column}.extend({passed.format(given)})")
    # A list of another class notes the time of each append.
    plain = f"{out}.timestamps.__class__ is list"
    function.prologue += [
        f"if all_read and not headed and keys is batch.keys and {plain}:",
        *(f"    {line}" for line in [*lines, "return"]),
    ]
