"""Compiles a sub-topology to a `Program`: generates one function for each source, and
binds it to each task's stores.

Tracebacks and debuggers show the generated source (`generated_source`).
`Program.compiled(...).text` has it as well.

Relies on: `operators/compiler.py` and `codegen.py` (how code is put together),
`timed_topics`, `call_order`. A new kind of node needs an entry in `OPERATORS`.

Invariant: generated code depends only on the nodes, the record cache, whether tasks
share partitions, whether only the records of each key come in order, whether a failed
record may be dropped, and which stores are native. It contains no data of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from coopstreams.topology.compile.call_order import ahead_of_calls, keys_suffice
from coopstreams.topology.compile.coming_advances import foresees
from coopstreams.topology.compile.operator_time import operator_of
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.compile.program import (
    BoundProgram,
    Code,
    Compiled,
    Program,
)
from coopstreams.topology.compile.timestamps import timestamp_column
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.generated_source import executed
from coopstreams.topology.graph.aggregate_nodes import (
    CogroupMerge,
    Suppress,
    TableAggregate,
)
from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Filter,
    MapValues,
    Node,
    Sink,
    Source,
    SubTopology,
    TableSource,
)
from coopstreams.topology.graph.timed_topics import (
    reads_in_birth_order,
    timed_topics,
)
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.operators import (
    aggregates,
    foreign_key_joins,
    grace_joins,
    native_folds,
    processor_operators,
    stateless,
    stream_stream_join,
    suppress_operators,
    table_joins,
    tables,
)
from coopstreams.topology.operators.analysis import Analysis
from coopstreams.topology.operators.codegen import RecordVariables, Unit
from coopstreams.topology.operators.compiler import Compiler, Operator, Variant
from coopstreams.topology.operators.json_batches import pass_at_once
from coopstreams.topology.operators.json_parts import (
    MakeParts,
    columns_read,
    read_columns,
)
from coopstreams.topology.operators.tables import row_key
from coopstreams.topology.processors import ProcessorWrapper
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec, TableStore

OPERATORS = {
    **stateless.OPERATORS,
    **processor_operators.OPERATORS,
    **tables.OPERATORS,
    **aggregates.OPERATORS,
    **suppress_operators.OPERATORS,
    **table_joins.OPERATORS,
    **grace_joins.OPERATORS,
    **foreign_key_joins.OPERATORS,
    **stream_stream_join.OPERATORS,
}


_Cached: TypeAlias = (
    TableSource
    | Aggregate
    | CogroupMerge
    | TableAggregate
    | TableTableJoin
    | Filter
    | MapValues
)
"""The tables whose updates the record cache holds back, if they have a store."""


def compile_subtopology(
    topology: Topology,
    subtopology: SubTopology,
    wrapper: ProcessorWrapper | None = None,
    parts: MakeParts | None = None,
    *,
    may_drop: bool = False,
    timed: frozenset[str] | None = None,
) -> Program:
    """Return the program of a sub-topology. Its code is generated when a task binds it.

    `wrapper`: wraps each node except the sources; None: no node is wrapped. `parts`:
    makes the reader of parts of JSON values; None: values become dicts. `may_drop`:
    whether a record may be dropped, while the task goes on, if a user function raises.
    `timed`: the timed topics of the topology, computed once by who compiles all of its
    sub-topologies; None: they are computed here.

    Raises:
        TopologyError: two sources read the same topic, or there is no operator for a
            kind of node.
    """
    sources = _sources(subtopology)
    for node in subtopology.nodes:
        if type(node) not in OPERATORS and not isinstance(node, Source):
            raise TopologyError(
                f'"{node.name}" is a {type(node).__name__}, which cannot be compiled'
            )
    sinks = dict.fromkeys(
        node.topic for node in subtopology.nodes if isinstance(node, Sink)
    )
    if timed is None:
        timed = timed_topics(topology.subtopologies)
    timed_sources = timed & frozenset(subtopology.topics)
    in_birth_order = reads_in_birth_order(subtopology, timed)
    title = f"{topology.application_id} sub-topology {subtopology.id}"
    compilation = _Compilation(
        title,
        subtopology,
        OPERATORS,
        wrapper,
        parts,
        may_drop,
        timed,
        clocked=bool(timed_sources) and not in_birth_order,
    )
    first = ahead_of_calls(subtopology)
    ahead = None
    if first is not None:
        before = _Compilation(f"{title} ahead", first, processor_operators.AHEAD)
        ahead = Program(first, (), {}, cache(before.compiled))
    return Program(
        subtopology,
        tuple(sinks),
        {
            topic: timestamp_column(source)
            for topic, source in sources.items()
            if source.timestamp is not None
        },
        cache(compilation.compiled),
        ahead=ahead,
        keys_suffice=first is not None and keys_suffice(subtopology),
        foresees=foresees(subtopology),
        idle_ms={
            topic: source.idle_ms
            for topic, source in sources.items()
            if source.idle_ms is not None
        },
        timed_sources=timed_sources,
        in_birth_order=in_birth_order,
        timed_sinks={
            node.topic: node.name
            for node in subtopology.nodes
            if isinstance(node, Sink) and node.topic in timed
        },
    )


def _sources(subtopology: SubTopology) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    for node in subtopology.nodes:
        for topic in node.topics if isinstance(node, Source) else ():
            if topic in sources:
                raise TopologyError(
                    f'"{sources[topic].name}" and "{node.name}" both read topic "{topic}". Read it once, and branch '
                    "from there."
                )
            sources[topic] = node  # type: ignore[assignment]  # the loop body runs for sources only
    return sources


@dataclass(frozen=True, slots=True)
class _Compilation:
    """The input from which the code of every variant of a program is generated.
    `title`: the name of the code in tracebacks. The other fields are the arguments of
    `compile_subtopology`.
    """

    title: str
    subtopology: SubTopology
    operators: Mapping[type[Node], Operator]
    wrapper: ProcessorWrapper | None = None
    parts: MakeParts | None = None
    may_drop: bool = False
    timed: frozenset[str] = frozenset()
    clocked: bool = False

    def compiled(
        self,
        caching: bool,
        shared: bool = False,
        by_key: bool = False,
        native: frozenset[str] = frozenset(),
        native_by_record: frozenset[str] = frozenset(),
    ) -> Compiled:
        """Return the generated code of one variant; see `Variant`."""
        compiler = Compiler(
            Analysis(self.subtopology),
            self.operators,
            Variant(caching, shared, by_key, native, native_by_record),
            parts=self.parts,
            wrapper=self.wrapper,
            may_drop=self.may_drop,
            timed=self.timed,
            clocked=self.clocked,
        )
        text = _text(compiler, self.subtopology)
        unit = compiler.unit
        made = executed(self.title, text, unit.constants)["make"]

        def make(
            process: BoundProgram,
            stores: Mapping[str, TableStore],
            outputs: Mapping[str, Output],
        ) -> Code:
            return Code(*made(process, stores, outputs))

        nodes = self.subtopology.nodes
        operator_times = {
            topic: tuple(
                nodes[unit.operator_times[name].number].name
                for name in unit.operator_times_of(topic)
            )
            for topic in self.subtopology.topics
        }
        operators = {node.name: operator_of(node, compiler.analysis) for node in nodes}
        return Compiled(
            text,
            tuple(unit.sites),
            tuple(unit.drops),
            make,
            operator_times,
            operators,
        )


def _text(compiler: Compiler, subtopology: SubTopology) -> str:
    """Return the source code of a sub-topology."""
    for node, store in tables.tables_that_expire(compiler):
        tables.expire_rows(compiler, node, store)
    sources = [node for node in subtopology.nodes if isinstance(node, Source)]
    functions = {source.name: _source_function(compiler, source) for source in sources}
    flushes = _flushes(compiler)
    if compiler.shared:
        for source in filter(lambda source: source.topics, sources):
            _tell_time(compiler.unit, source)
    by_topic = {
        topic: functions[source.name] for topic, source in _sources(subtopology).items()
    }
    return compiler.unit.text(by_topic, flushes)


def _flushes(compiler: Compiler) -> list[str]:
    """Generate the functions that forward the updates in the record caches, parents
    first; return their names.

    With a record cache, a suppression forwards at the flush, after the updates that may
    replace those that it holds, rather than when stream time advances.
    """
    names = []
    for node in compiler.analysis.nodes if compiler.caching else ():
        if isinstance(node, Suppress):
            names.append(f"{compiler.unit.identifier('waiting', node.name)}_due")
        elif isinstance(node, TableTableJoin) and table_joins.waits_for_both(
            compiler,
            node,
        ):
            names.append(table_joins.flush(compiler, node))
        elif (cached := _cached(compiler, node)) is not None:
            names.append(compiler.flush(node, *cached))
            stores = compiler.native | compiler.native_by_record
            if isinstance(node, Aggregate) and node.store.name in stores:
                native_folds.forward_at_once(compiler, names[-1], node)
    return names


def _cached(compiler: Compiler, node: Node) -> tuple[StoreSpec, Serde[Any]] | None:
    """Return the store of a table whose updates are held back until the flush, and the
    serde of its row keys.

    None: the node is not a table of this kind, or has no children.
    """
    if isinstance(node, Aggregate) and (node.cogrouped or node.emit_on_close):
        return None  # another node forwards its updates
    if (
        isinstance(node, _Cached)
        and node.store is not None
        and compiler.caches(node)
        and compiler.analysis.edges(node)
    ):
        return node.store, row_key(node, node.store)
    return None


def _source_function(compiler: Compiler, source: Source) -> str:
    """Generate the loop over a batch of a source; return the name of its function."""
    function = compiler.function(compiler.unit.identifier("from", source.name))
    function.parameters = ("keys", "values", "timestamps", "stream_times")
    if compiler.clocked:
        function.parameters += ("births",)
    function.over_batch = True
    with function.loop(""):
        header = len(function.lines) - 1
        tables.expire_first(function, source)
        if source.key.check_key is not None and not source.internal:
            check = compiler.unit.constant("check_key", source.key.check_key)
            with function.guard("deserialization", source.name):
                function.line(f"{check}(key_bytes)")
        record = RecordVariables(
            source.name,
            "key_bytes",
            source.key,
            value_bytes="value_bytes",
        )
        record.value_serde = source.value
        if (
            compiler.parts is not None
            and compiler.unit.wrapper is None
            and (found := columns_read(compiler.analysis, source))
        ):
            read_columns(function, compiler.parts, found)
            record.columns = function.columns
        function.forward(source, record)
    if function.columns.variables:
        pass_at_once(function, source)
    native_folds.settle(function, source)
    columns = {
        "key_bytes": "keys",
        "value_bytes": "values",
        "timestamp": "timestamps",
        "stream_time": "stream_times",
        "birth": "births",
    }
    columns |= {each: f"{each}_column" for each in record.columns.variables}
    # Keys and values are always iterated: the keys' iterator sets the headers, the
    # values' is the cursor.
    used = [
        name
        for name in columns
        if name in ("key_bytes", "value_bytes") or function.mentions(name)
    ]
    function.lines[header] = (
        f"    for {', '.join(used)} in zip({', '.join(columns[name] for name in used)}):"
    )
    return function.name


def _tell_time(unit: Unit, source: Source) -> None:
    """Generate the code by which each record first advances the operator times to its
    columns, which include siblings' records.
    """
    names = unit.operator_times_of(source.topics[0])
    if not names:
        return
    function = next(
        function
        for function in unit.functions
        if function.name == unit.identifier("from", source.name)
    )
    function.parameters = (*function.parameters, "operator_times")
    header, *body = function.lines
    before = [f"before_{name}" for name in names]
    function.lines = [
        f"{header[: header.rindex(' in zip(')]}, ({', '.join(before)},) in "
        f"zip({header[header.rindex(' in zip(') + 8 : -2]}, zip(*operator_times)):",
        *(
            f"        {name} = {at}"
            if unit.by_key
            else f"        if {at} > {name}: move_{name}({at})"
            for at, name in zip(before, names, strict=True)
        ),
        *body,
    ]
    function.assigned.update(names)
