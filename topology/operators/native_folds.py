"""Generates the code of aggregations whose rows are numbers in native memory: their
input is columns instead of records.

The nodes before the aggregation remain a loop over records, whose last lines append to
columns. The columns are added to the store after the last record of a batch. They are
added after each record where a reducer may raise, so that the error belongs to one
record, and where updates are forwarded at once with headers. A count directly below its
source takes the batch as it is, without a loop.

Invariant: between two batches the columns are empty, so every reader of the store sees
all records of earlier batches.
Source: `aggregates` is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from coopstreams.topology.graph.known_folds import (
    finish_of,
    is_only_state,
    known_kind,
    plain_sinks,
    shown_serde,
    taken_at_once,
)
from coopstreams.topology.graph.nodes import (
    Aggregate,
    MapValues,
    Node,
    Sink,
    Source,
)
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler
from coopstreams.topology.serdes import float64

_COLUMNS = ("keys", "values", "timestamps", "before", "headers", "births")
_POSITIONAL = 4


def fold(
    function: Body,
    node: Aggregate,
    record: RecordVariables,
    key_bytes: str,
) -> None:
    """Generate code that appends a record to the columns of an aggregation."""
    name = function.unit.identifier("fold", node.name)
    _begin(function.compiler, node, name)
    if node.windows is not None:
        function.compiler.expire(function.operator_time(node), node.store)
    if (values := _batches(function, node, record, key_bytes)) is not None:
        _add_batch(function, node, name, values)
    function.line(f"add_keys_{name}({key_bytes})")
    function.line(f"add_timestamps_{name}({record.timestamp})")
    if node.windows is not None and function.compiler.shared:
        function.line(f"add_before_{name}({function.operator_time(node)})")
    if node.windows is not None and function.compiler.clocked:
        function.line(f"add_births_{name}({record.birth})")
    singly = []
    if function.compiler.caches(node):
        with function.block("if headed:"):
            function.line(f"add_headers_{name}(process.headers or ())")
    else:
        singly.append("headed")
    if node.aggregator is not None:
        value = function.value(record)
        function.line(f"add_values_{name}({value})")
        singly += [f"not ({_takes(node, f'{value}.__class__')})", f"odd_{name}"]
        if known_kind(node) == "mean":  # adding a larger integer to a total may raise
            singly.append(f"not {-1 << 63} <= {value} < {1 << 63}")
    if singly:
        with function.block(f"if {' or '.join(singly)}:"):
            function.line(f"settle_{name}()")


def settle(function: Body, source: Source) -> None:
    """Generate the code after the loop over a source that adds the columns to the
    stores, for each aggregation that the source's records may reach.
    """
    for node in function.analysis.nodes:
        if isinstance(node, Aggregate) and node.store.name in function.compiler.native:
            name = function.unit.identifier("fold", node.name)
            if source.topics[0] in function.analysis.topics(node):
                function.epilogue += [f"if keys_{name}:", f"    settle_{name}()"]


def forward_at_once(
    compiler: Compiler,
    flush: str,
    node: Aggregate,
) -> None:
    """Generate code that forwards updates from the record cache as columns, if the
    nodes below are sinks that allow it.

    `flush`: the name of the function that forwards the updates one by one.
    """
    sinks = plain_sinks(node, compiler.analysis.nodes)
    suppression = taken_at_once(node, compiler.analysis.nodes)
    if sinks is None and suppression is None:
        return
    function = next(each for each in compiler.unit.functions if each.name == flush)
    store = compiler.unit.store(node.store)
    lines = writes(compiler, sinks or ())
    if suppression is not None:
        waiting = compiler.unit.identifier("waiting", suppression.name)
        lines = [f"{waiting}.take(*updates)"]
        if not compiler.clocked:
            analysis = compiler.analysis
            now = compiler.unit.operator_time(
                analysis.numbers[suppression.name],
                analysis.topics(suppression),
            )
            lines.append(f"{now} = max({now}, max(updates[2], default=-1))")
    function.prologue += [
        f"updates = None if headed else {store}.rows.updates({encoder(compiler, node)})",
        "if updates is not None:",
        *(f"    {line}" for line in lines),
        "    return",
    ]


def forward_closed_at_once(
    function: Body,
    node: Aggregate,
    closing: str,
    operator_time: str,
) -> None:
    """Generate code that forwards the windows that close as columns, if the nodes below
    are sinks that allow it.

    `closing`: the name of the task's `NativeClosing`.
    """
    compiler = function.compiler
    sinks = plain_sinks(node, compiler.analysis.nodes)
    if not may_be_columns(sinks, compiler):
        return
    columns = f"{closing}.columns({operator_time}, {encoder(compiler, node)})"
    write_columns(function, columns, sinks)


def _begin(
    compiler: Compiler,
    node: Aggregate,
    name: str,
) -> None:
    """Bind the columns of an aggregation, and generate the function that adds them to
    its store.
    """
    unit = compiler.unit
    store = compiler.unit.store(node.store)
    columns = [
        part
        for part, used in zip(
            _COLUMNS,
            (
                True,
                node.aggregator is not None,
                True,
                node.windows is not None and compiler.shared,
                compiler.caches(node),
                node.windows is not None and compiler.clocked,
            ),
            strict=True,
        )
        if used
    ]
    lines = [f"{store}_rows = {store}.rows", f"odd_{name} = False"]
    for part in columns:
        lines += [f"{part}_{name} = []", f"add_{part}_{name} = {part}_{name}.append"]
    unit.bind(name, *lines)
    if any(known.name == f"settle_{name}" for known in unit.functions):
        return
    function = compiler.function(f"settle_{name}")
    given = [
        f"{part}_{name}" if part in columns else "None"
        for part in _COLUMNS[:_POSITIONAL]
    ]
    named = []
    if compiler.caches(node):
        named.append(f"headers=headers_{name} or None")
    if "births" in columns:
        named.append(f"births=births_{name}")
    _call(
        function,
        node,
        given,
        ", ".join(named),
    )
    for part in columns:
        function.line(f"{part}_{name}.clear()")
    _count_late(function, node)
    if node.aggregator is not None:
        _note_odd(function, node, name)
        with function.block("for error in errors:"):
            function.line(f"fail({unit.site('processing', node.name)}, error)")


def _add_batch(
    function: Body,
    node: Aggregate,
    name: str,
    values: str,
) -> None:
    """Generate the code before the loop that adds a batch as it is, if its records have
    no headers.

    `values`: the column of the values. In a reduce, all values must be numbers of the
    reduce's class, and so must the earlier values, so that no record can fail.
    """
    lines = Body(function.compiler, "")
    times = node.windows is not None and function.compiler.shared
    given = ["keys", values, "timestamps", "operator_times[0]" if times else "None"]
    fits = "not headed and keys is batch.keys"
    if node.aggregator is not None:
        fits += f" and ({_takes(node, values.removesuffix('_column') + '_class')}) and not odd_{name}"
    with lines.block(f"if {fits}:"):
        named = f"drops_null_values={node.drops_null_values}"
        if node.windows is not None and function.compiler.clocked:
            named += ", births=births"
        _call(lines, node, given, named)
        lines.line(f"dropped[{function.unit.drop(node.name, 'null-key')}] += null_keys")
        if node.drops_null_values:
            lines.line(
                f"dropped[{function.unit.drop(node.name, 'null-value')}] += null_values"
            )
        _count_late(lines, node)
        if node.aggregator is not None:
            _note_odd(lines, node, name)
        lines.line("return")
    function.assigned |= lines.assigned
    function.prologue += [
        "batch = process.at_hand()[1]",
        *(line[4:] for line in lines.lines),
    ]


def _batches(
    function: Body,
    node: Aggregate,
    record: RecordVariables,
    key_bytes: str,
) -> str | None:
    """Return the column of the values if a batch can be added as it is, by its keys;
    else None.

    This is possible for a count of all records of a source, and for a fold of an
    expression of their values that is a column.
    """
    found = _column_of(function, node)
    if found is None:
        return None
    source, values = found
    at_hand = (
        function.over_batch
        and len(node.parents) == 1
        and isinstance(source, Source)
        and source.timestamp is None
        and (source.key.check_key is None or source.internal)
        and record.key_bytes == key_bytes == "key_bytes"
        and is_only_state(node, function.analysis.nodes)
    )
    return values if at_hand else None


def _column_of(function: Body, node: Aggregate) -> tuple[Node, str] | None:
    """Return the node whose records an aggregation folds by an expression, and the
    column of that. For a count, the column is all values. None: there is no column.
    """
    analysis = function.analysis
    above = analysis.named(node.parents[0])
    if len(analysis.edges(above)) != 1:
        return None
    if node.aggregator is None:
        return above, "batch.values"
    if not isinstance(above, MapValues):
        return None
    source = analysis.named(above.parents[0])
    variable = function.columns.of(above.mapper)
    if len(analysis.edges(source)) != 1 or variable is None:
        return None
    return source, f"{variable}_column"


def _call(
    function: Body,
    node: Aggregate,
    columns: Sequence[str],
    more: str,
) -> None:
    """Generate the call that adds columns to the store, and the code that forwards the
    updates if no record cache holds them back.

    `more`: further arguments of the call.
    """
    store = function.unit.store(node.store)
    reducer = (
        "None"
        if node.aggregator is None
        else function.unit.constant("reducer", node.aggregator)
    )
    # Where records bring the operator time before them, it has advanced since the first
    # of them.
    brought = columns[-1].startswith("before")
    operator_time = (
        "-1" if node.windows is None or brought else function.operator_time(node)
    )
    after = "_" if node.windows is None else "reached" if brought else operator_time
    sinks = (
        []
        if function.compiler.caches(node)
        else plain_sinks(node, function.analysis.nodes) or []
    )
    function.line(
        f"{after}, null_keys, null_values, late, errors, updates = {store}_rows.add({', '.join(columns)}, {operator_time}, "
        f"{', '.join(filter(None, [f'{store}.stored', reducer, more, 'updates=True' if sinks else '']))})"
    )
    if node.windows is not None and brought:
        with function.block(f"if reached > {(now := function.operator_time(node))}:"):
            function.line(f"{now} = reached")
    for line in writes(function.compiler, sinks):
        function.line(line)


def _note_odd(
    function: Body,
    node: Aggregate,
    name: str,
) -> None:
    function.assigned.add(f"odd_{name}")
    function.line(f"odd_{name} = {function.unit.store(node.store)}_rows.odd")


def _takes(node: Aggregate, class_: str) -> str:
    """Return the condition that values of class `class_` are numbers that the store can
    hold.
    """
    if known_kind(node) == "mean":
        return f"{class_} is float or {class_} is int"
    return f"{class_} is {'float' if node.store.value == float64 else 'int'}"


def _count_late(function: Body, node: Aggregate) -> None:
    if node.windows is not None:
        function.line(f"dropped[{function.unit.drop(node.name, 'late')}] += late")


def encoder(compiler: Compiler, node: Aggregate) -> str:
    """Return the arguments that serialise an update of a row: the function, and whether
    its bytes are those of the row in the store, too.
    """
    finish = finish_of(node)
    if finish is None or node.store.name in compiler.native:
        return f"{compiler.unit.store(node.store)}.encode_row, True"
    made = _shown_bytes(finish, shown_serde(node).encode)
    return f"{compiler.unit.constant('encode_shown', made)}, False"


def _shown_bytes(
    finish: Callable[[Any], Any],
    encode: Callable[[Any], bytes],
) -> Callable[[Any], bytes]:
    """Return the function that serialises what a table shows of a row."""
    return lambda row: encode(finish(row))


def may_be_columns(
    sinks: Sequence[Sink] | None,
    compiler: Compiler,
) -> TypeGuard[Sequence[Sink]]:
    """Whether `writes` may append updates to these sinks, which have none with
    births.
    """
    return sinks is not None and all(sink.topic not in compiler.timed for sink in sinks)


def write_columns(function: Body, columns: str, sinks: Sequence[Sink]) -> None:
    """Generate code that appends updates to the outputs of the sinks, and ends the
    function; it goes on if `columns`, the code of the updates, gives None.
    """
    function.line(f"updates = {columns}")
    with function.block("if updates is not None:"):
        for line in writes(function.compiler, sinks):
            function.line(line)
        function.line("return")


def writes(compiler: Compiler, sinks: Sequence[Sink]) -> list[str]:
    """Return the lines that append the updates to the outputs of the sinks."""
    outputs = [compiler.unit.output(sink.topic) for sink in sinks]
    return [
        f"{out}.{column}.extend(updates[{at}])"
        for out in outputs
        for at, column in enumerate(("keys", "values", "timestamps"))
    ]
