"""Generates the code of a record's path through the nodes, some inlined and some
called.

A linear run of nodes becomes one function. If a node has several children, each except
the last becomes a function of its own; the last is inlined. The functions are called in
order, so a record passes depth first through one child before the next. Parts that
several children read are deserialised before the calls. With a wrapper
(`ProcessorWrapper`), every node is a function, and the function that the wrapper
returns is called in its place. Without a wrapper, the code has no trace of it.

Invariant: a record reaches the nodes in the order of Kafka Streams, whether they are
inlined or called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from coopstreams.topology.expression_code import positions
from coopstreams.topology.fields import Expression
from coopstreams.topology.graph.nodes import Function as UserFunction
from coopstreams.topology.graph.nodes import Node
from coopstreams.topology.operators.analysis import Analysis, Edge, reads_argument
from coopstreams.topology.operators.codegen import (
    MOST_LOOPS,
    PARAMETERS,
    Function,
    RecordVariables,
    Unit,
)
from coopstreams.topology.operators.expressions import expression, of_value
from coopstreams.topology.operators.json_parts import MakeParts
from coopstreams.topology.operators.self_joins import self_joins
from coopstreams.topology.processors import ProcessorWrapper
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

Operator: TypeAlias = Callable[["Body", Any, RecordVariables], None]
"""A function `(function, node, record)` that generates the code of a node, for a record
from its parent number `record.side`.
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """The conditions under which tasks run a program. Each combination has code of its
    own.
    """

    caching: bool
    """Whether the record cache is on."""
    shared: bool = False
    """Whether other tasks have other keys of the partition. Their records advance the
    stream time of this task.
    """
    by_key: bool = False
    """Whether only the records of each key come in order."""
    native: frozenset[str] = frozenset()
    """The names of stores whose native rows change by batches: see `known_folds`."""
    native_by_record: frozenset[str] = frozenset()
    """The names of stores whose native rows change one by one."""


class Compiler:
    """The generator of one sub-topology's code: a `Unit` and its functions."""

    def __init__(
        self,
        analysis: Analysis,
        operators: Mapping[type[Node], Operator],
        variant: Variant,
        *,
        parts: MakeParts | None = None,
        wrapper: ProcessorWrapper | None = None,
        may_drop: bool = False,
        timed: frozenset[str] = frozenset(),
        clocked: bool = False,
    ) -> None:
        self.analysis = analysis
        self.caching = variant.caching
        self.shared = variant.shared
        self.native = variant.native
        self.native_by_record = variant.native_by_record
        self.timed = timed
        """The topics whose records have births and time marks: see `timed_topics`."""
        self.clocked = clocked
        """Whether all times are the clock of the one topic that the nodes read."""
        self.parts = parts
        """Makes the reader of parts of JSON values. None: values are deserialised to
        dicts.
        """
        self.may_drop = may_drop
        """Whether a record may be dropped, while the task goes on, if a user function
        raises.
        """
        self.unit = Unit(by_key=variant.by_key, wrapper=wrapper)
        self.self_joins = self_joins(
            analysis.nodes,
            frozenset(node.name for node in analysis.nodes if self.caches(node)),
        )
        self.operators = operators
        self._called: dict[object, tuple[str, tuple[str, ...]]] = {}

    def caches(self, node: Node) -> bool:
        """Return whether the record cache holds back the updates of a table until the
        flush.
        """
        return self.caching and node.name not in self.analysis.uncached

    def function(self, name: str) -> Body:
        """Return a new, empty function of the unit."""
        function = Body(self, name)
        self.unit.functions.append(function)
        return function

    def shared_function(
        self,
        what: object,
        name: str,
        write: Callable[[Body], None],
        node: str | None = None,
    ) -> tuple[str, tuple[str, ...]]:
        """Return name and parameters of the function that is registered under `what`.
        The first call generates it by `write`.

        `node`: the node whose code the function begins with, for the wrapper. None: the
        function begins with several nodes, or with a part of a node.
        """
        if what not in self._called:
            function = self.function(f"{name}_{len(self.unit.functions)}")
            write(function)
            function.parameters = tuple(
                part for part in PARAMETERS if function.mentions(part)
            )
            self._called[what] = (function.name, function.parameters)
            if node is not None:
                self.unit.wrap(node, function.name)
        return self._called[what]

    def flush(
        self,
        node: Node,
        store: StoreSpec,
        key: Serde[Any],
    ) -> str:
        """Generate the function that forwards the updates that the record cache holds
        back; return its name.

        `store`, `key`: the store of the table, and the serde of its keys.
        """
        function = self.function(f"flush_{self.analysis.numbers[node.name]}")
        function.over_batch = True
        with function.loop(
            f"for key_bytes, entry in process.flushing(dirty_{self.unit.store(store)}()):"
        ):
            function.line("value, timestamp = entry.value, entry.timestamp")
            with function.block("if value is None and entry.stored is None:"):
                function.line(
                    "continue  # inserted and deleted since the last flush: no child has received it"
                )
            record = RecordVariables(node.name, "key_bytes", key, "value", has_key=True)
            if self.analysis.wants_old(node):
                decode = self.unit.constant("decode_value", store.value.decode)
                function.line(
                    f"old = None if entry.stored is None else {decode}(entry.stored)"
                )
                record.old = "old"
            function.forward(node, record)
        function.read_stream_time(node)
        return function.name

    @property
    def before(self) -> str:
        """The variable of a dict with the values that rows had before the current
        record, by the names of their stores: see `self_joins`.
        """
        return self.unit.made("before", "rows", dict, "")

    def expire(self, operator_time: str, store: StoreSpec) -> str:
        """Have a store's windows expire by an operator time after each batch. Return
        the function that expires them at once.
        """
        name = f"advance_{self.unit.store(store)}"
        self.unit.bind(name, f"{name} = {self.unit.store(store)}.advance")
        if name not in self.unit.operator_times[operator_time].stores:
            self.unit.operator_times[operator_time].stores.append(name)
        return name


class Body(Function):
    """A generated function that can pass records from node to node."""

    def __init__(self, compiler: Compiler, name: str) -> None:
        super().__init__(compiler.unit, name)
        self.compiler = compiler
        self.analysis = compiler.analysis

    def forward(self, node: Node, record: RecordVariables) -> None:
        """Generate code that passes a record to the children of a node. Generate
        nothing for this record afterwards.
        """
        edges = self.analysis.edges(node)
        if len(edges) > 1:
            self._read_once(edges, record)
        for edge in edges[:-1]:
            self._call(edge, record)
        if edges:
            self.enter(edges[-1], record)

    def call_children(
        self,
        node: Node,
        record: RecordVariables,
        to: str | None = None,
    ) -> None:
        """Generate calls that pass a record to the children of a node, or only to the
        child named `to`.

        For a node that forwards in several places, so that its children are not
        inlined.
        """
        for edge in self.analysis.edges(node):
            if to in (None, edge.child.name):
                self._call(edge, record)

    def drop_late(
        self,
        node: Node,
        record: RecordVariables,
        condition: str,
    ) -> None:
        """Generate code that drops and counts a record as late under a condition, and
        passes it to the node's `Late` children.
        """
        with self.block(f"if {condition}:"):
            self.call_late(node, record)
            self.drop(node, "late")

    def call_late(self, node: Node, record: RecordVariables) -> None:
        """Generate calls that pass a late record to the node's `Late` children. They
        are not inlined because late records are rare.
        """
        for edge in self.analysis.late_edges(node):
            self._call(edge, record)

    def enter(self, edge: Edge, record: RecordVariables) -> None:
        """Generate code that passes a record to one child, inlined if possible.
        Generate nothing for this record afterwards.
        """
        inline = (
            self.analysis.has_one_parent(edge.child)
            and self.loops < MOST_LOOPS
            and self.unit.wrapper is None
        )
        (self._write if inline else self._call)(edge, replace(record))

    def read_stream_time(self, node: Node) -> None:
        """Generate the line that sets the stream time at the start of a flush, if a
        node below reads it.
        """
        if self.mentions("stream_time"):
            topics = self.unit.constant("topics", self.analysis.topics(node))
            self.prologue.append(f"stream_time = process.stream_time({topics})")

    def call_of(
        self,
        label: str,
        called: UserFunction,
        record: RecordVariables,
        parts: tuple[str, ...],
    ) -> str:
        """Return the call of a user function with these parts of a record. Arguments
        that the function provably never reads are None.

        `label`: the prefix of the function's name in the code. An
        expression becomes code instead of a call, if its value is a dict or its parts
        are columns.
        """
        of_record = parts in (("value",), ("key", "value"))
        if isinstance(called, Expression) and record.columns.variables and of_record:
            code = self._of_columns(label, called, record, parts)
            if code is not None:
                return code
        read = []
        for at, part in enumerate(parts):
            if part in ("key", "value"):
                reads = reads_argument(called, at, len(parts))
                form = self.key if part == "key" else self.value
                read.append(form(record) if reads else "None")
            else:
                read.append(part)
        call = f"{self.unit.constant(label, called)}({', '.join(read)})"
        if not isinstance(called, Expression):
            return call
        places = positions(called.arguments, len(parts))
        names = {argument: read[at] for argument, at in places.items()}
        return of_value(self.unit, called, names, call, truth=label == "predicate")

    def _of_columns(
        self,
        label: str,
        called: Expression,
        record: RecordVariables,
        parts: tuple[str, ...],
    ) -> str | None:
        """Return the code of an expression that is a column, or whose parts are columns.
        None: it is nested too deeply.
        """
        truth = label == "predicate"
        reads_key = reads_argument(called, 0, len(parts)) and len(parts) > 1
        names = {"key": self.key(record)} if reads_key else {}
        code = record.columns.computed.get((id(called), truth)) or expression(
            self.unit,
            called,
            record.columns.parts.__getitem__,
            names,
            truth=truth,
        )
        if code is None:
            return None
        value, is_read = self.value_if_unread(record)
        arguments = [names.get("key", "None")] * (len(parts) - 1) + [value]
        call = f"{self.unit.constant(label, called)}({', '.join(arguments)})"
        return f"({code} if {is_read} else {call})"

    def stream_time(self, node: Node, record: RecordVariables) -> str:
        """Generate the update of a node's stream time by a record; return the variable
        of the stream time.

        Records that other tasks have of the partition count as well: the output of a
        node must not depend on the number of tasks of a partition.
        """
        operator_time = self.operator_time(node)
        if not self.compiler.clocked:
            with self.block(f"if {record.timestamp} > {operator_time}:"):
                self.line(f"{operator_time} = {record.timestamp}")
        return operator_time

    def birth(self, node: Node, record: RecordVariables) -> str:
        """Generate the update of a node's stream time by a record; return the variable
        of the time that decides whether the record is late.

        Behind a timed topic that is the record's birth. Under at-least-once a record
        may be repeated after the clock has passed its birth, so the later of the two is
        used. Otherwise it is the stream time of the node.
        """
        time = self.stream_time(node, record)
        if not self.compiler.clocked:
            return time
        born = self.fresh("born")
        self.line(f"{born} = {record.birth} if {record.birth} > {time} else {time}")
        return born

    def keep_headers(
        self,
        node: Node,
        entry: str,
    ) -> None:
        """Generate code that keeps the record's headers with the row that it changed,
        if the row's update is held back.
        """
        self.if_headers_are_kept(node, f"{entry}.headers = process.headers")

    def if_headers_are_kept(
        self,
        node: Node,
        keep: str,
    ) -> None:
        """Generate a statement that keeps the record's headers until the update that is
        held back is forwarded. A program that never gets headers only tests a variable.
        """
        if self.compiler.caches(node) and self.analysis.edges(node):
            with self.block("if headed:"):
                self.line(keep)

    def entry_of(self, store: StoreSpec, key_bytes: str) -> str:
        """Generate the look-up of a row of a store; return the variable of its
        entry.
        """
        entry = self.fresh("entry")
        name = self.unit.store(store)
        self.line(f"{entry} = get_{name}({key_bytes}) or load_{name}({key_bytes})")
        self.remember(store, f"{entry}.value")
        return entry

    def remember(self, store: StoreSpec, value: str) -> None:
        """Generate code that remembers the value of a row before a record changes it,
        if a self-join looks it up.
        """
        if store.name in self.compiler.self_joins.first:
            self.line(f"{self.compiler.before}.clear()")
            self.line(f"{self.compiler.before}[{store.name!r}] = {value}")
        elif store.name in self.compiler.self_joins.behind:
            self.line(f"{self.compiler.before}.setdefault({store.name!r}, {value})")

    def touch(
        self,
        store: StoreSpec,
        key_bytes: str,
        entry: str,
    ) -> None:
        """Generate code that marks an entry as changed, after its value and timestamp
        are set.
        """
        name = self.unit.store(store)
        with self.block(f"if not {entry}.dirty:"):
            self.line(f"touch_{name}({key_bytes}, {entry})")
        if store.ttl_ms is not None:
            self.line(f"note_{name}({key_bytes}, {entry})")

    def operator_time(self, node: Node) -> str:
        """Return the name of the generated variable for a node's stream time, and
        declare that this function may change it.
        """
        operator_time = self.unit.operator_time(
            self.analysis.numbers[node.name],
            self.analysis.topics(node),
        )
        self.assigned.add(operator_time)
        return operator_time

    def expire_view(self, node: Node, store: StoreSpec) -> None:
        """Have the windows in the store of a view, or of a join of tables, expire with
        the windows of the tables above.
        """
        if store.kind != "key_value":
            for windows in self.analysis.windows_above(node):
                self.compiler.expire(self.operator_time(windows), store)

    def _read_once(self, edges: list[Edge], record: RecordVariables) -> None:
        """Generate the deserialisation of the parts that several children read. A part
        that only one child reads is deserialised there.
        """
        reads = [
            self.analysis.reads(edge, record.key_serde, record.value_serde)
            for edge in edges
        ]
        if sum(read.key for read in reads) > 1:
            self.key(record)
        if sum(read.value for read in reads) > 1:
            self.value(record)

    def _call(self, edge: Edge, record: RecordVariables) -> None:
        child = edge.child
        inner = record.as_parameters()
        name, parameters = self.compiler.shared_function(
            (child.name, edge.side, record.form()),
            self.unit.identifier("to", child.name),
            lambda body: body._write(edge, inner),
            child.name,
        )
        self.line(
            f"{name}({', '.join(getattr(record, parameter) for parameter in parameters)})"
        )

    def _write(self, edge: Edge, record: RecordVariables) -> None:
        self.line(f"# {edge.child.name}")
        self.compiler.operators[type(edge.child)](
            self,
            edge.child,
            replace(record, side=edge.side),
        )
