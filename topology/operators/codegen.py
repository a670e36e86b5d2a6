"""Writes the Python source of a compiled sub-topology: a unit and its functions.

All code for a batch is local to one function: a record is a few local variables, an
operator a few lines, a drop is `continue`. During generation, a `RecordVariables`
tracks which variables hold the key and the value, as bytes and as objects, and
generates the missing form where it is first needed. So only parts that a node reads are
deserialised, and only parts that a node changed are serialised.

Invariant: null is never passed to a serde.
Invariant: `try` encloses one call of a user function or serde, never the nodes below:
an error belongs to one node and one record. Turned down: composed closures (140 ns more
for three operators: measured), node objects with `forward` (twice the time).
"""

from __future__ import annotations

import re
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import (
    KW_ONLY,
    dataclass,
    field,
    replace,
)
from typing import Any

from coopstreams.topology.failures import Phase
from coopstreams.topology.graph.nodes import Node, Sink
from coopstreams.topology.json_text import LONG_BYTES, reader_of_short
from coopstreams.topology.processors import ProcessorWrapper
from coopstreams.topology.serde import unreadable, unwritable
from coopstreams.topology.serdes import Serde, raw
from coopstreams.topology.stores import StoreSpec

PARAMETERS = (
    "key_bytes",
    "key",
    "value_bytes",
    "value",
    "old",
    "timestamp",
    "stream_time",
    "birth",
    "latest",
)
"""The names of a record's variables at the start of a function that takes one
record.
"""

_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")

MOST_LOOPS = 8
"""The most nested loops in one function. CPython allows 20 nested blocks, and some are
needed for a `try` and a window loop.
"""


@dataclass(frozen=True, slots=True)
class ColumnVariables:
    """The variables of what was read of the values before the loop: see `json_parts`.

    Shape: `parts`: of parts of the values, by name. `computed`: of expressions, by the
    id of the expression and whether the variable has only its truth.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[tuple[int, bool], str] = field(default_factory=dict)
    json: Mapping[int, str] = field(default_factory=dict)
    """The variables of the JSON of expressions, by the id of the expression."""

    @property
    def variables(self) -> list[str]:
        """All of them, each once."""
        found = (self.parts, self.computed, self.json)
        return list(dict.fromkeys(each for some in found for each in some.values()))

    def of(self, function: object) -> str | None:
        """Return the variable of a function's values, if it is an expression that is a
        column; else None.
        """
        return self.computed.get((id(function), False))


@dataclass(slots=True)
class RecordVariables:
    """The names of the variables that hold the current record, at one point of the
    generated code.

    Shape: key and value each have at least one form. `key_serde` belongs to
    `key_bytes`, and `value_serde` to `value_bytes`; without bytes it is None. `columns`:
    the variables of what was read of the value; `unread`: the variable of the whole
    value, for records that were not read. `stream_time` is the source
    partition's. `dense`: the value is never null.
    `old`: for a table's update, the old value as an object; None if no node needs it.
    `latest`: for a versioned table's update, whether it is the latest of its row; None
    if every update is.
    """

    source: str
    """The source node of the bytes. If they cannot be deserialised, the failure names
    this node.
    """
    key_bytes: str | None
    key_serde: Serde[Any] | None
    value: str | None = None
    timestamp: str = "timestamp"
    stream_time: str = "stream_time"
    _: KW_ONLY
    birth: str = "birth"
    """The variable of the birth; used only in a program that follows a clock: see
    `timed_topics`.
    """
    key: str | None = None
    value_bytes: str | None = None
    value_serde: Serde[Any] | None = None
    has_key: bool = False
    """Whether the key is known not to be null."""
    dense: bool = False
    old: str | None = None
    latest: str | None = None
    side: int = 0
    """The number of the parent from which the record comes."""
    columns: ColumnVariables = ColumnVariables()
    unread: str | None = None
    json: tuple[str, str] | None = None
    """The variable of the value's JSON, and the test that it is set; if it is not, the
    value is.
    """

    def with_key(self, key: str) -> RecordVariables:
        """Return the variables of the same record with another key."""
        return replace(self, key_bytes=None, key=key, key_serde=None, has_key=False)

    def with_value(self, value: str, old: str | None = None) -> RecordVariables:
        """Return the variables of the same record with another value."""
        return replace(
            self,
            value_bytes=None,
            value=value,
            value_serde=None,
            dense=False,
            old=old,
            columns=ColumnVariables(),
            unread=None,
            json=None,
        )

    def form(self) -> tuple[object, ...]:
        """Return a value that is equal for two records exactly if one generated
        function can take both.
        """
        missing = tuple(getattr(self, part) is None for part in PARAMETERS)
        return (
            *missing,
            self.key_serde,
            self.value_serde,
            self.source,
            self.has_key,
            self.dense,
        )

    def as_parameters(self) -> RecordVariables:
        """Return the variables of the same record inside a function that takes it as
        parameters.
        """
        named = {part: part for part in PARAMETERS if getattr(self, part) is not None}
        return replace(self, **named, columns=ColumnVariables(), unread=None)  # type: ignore[arg-type]


@dataclass(slots=True)
class OperatorTime:
    """The stream time of one node in the generated code.

    `number`: the number of the node. `topics`: the topics whose records reach the node.
    `due`: the names of functions that are called when records of other tasks advance
    the time.
    """

    number: int
    topics: tuple[str, ...]
    due: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    """The names of functions that are called with the time at which a task resumes."""
    stores: list[str] = field(default_factory=list)
    """The names of functions that are called with the time after each batch, so that
    stores expire windows.
    """


class Unit:
    """The source code of one sub-topology during generation.

    Shape: `constants` are the values that the code refers to and all tasks share;
    `binding` are the lines that fetch the objects of one task.
    """

    def __init__(
        self,
        *,
        by_key: bool = False,
        wrapper: ProcessorWrapper | None = None,
    ) -> None:
        self.by_key = by_key
        """Whether only the records of each key come in order. Then an operator time is
        the current record's, and may go back.
        """
        self.wrapper = wrapper
        """The wrapper of each node's function. None: there is no wrapper, and nodes are
        inlined where possible.
        """
        self.constants: dict[str, object] = {}
        self.binding: list[str] = []
        self.functions: list[Function] = []
        self.sites: list[tuple[Phase, str]] = []
        self.drops: list[tuple[str, str]] = []
        self.operator_times: dict[str, OperatorTime] = {}
        self.expiring: dict[str, tuple[str, ...]] = {}
        """The stores whose rows expire, with the topics whose stream time decides
        it.
        """
        self._bound: set[str] = set()
        self._identifiers: dict[tuple[str, str], str] = {}
        self._wrapped: list[str] = []
        """The lines that wrap the functions of nodes. They run once for each task."""

    def constant(self, label: str, value: object) -> str:
        """Return the name by which the code refers to a value: the label, made
        unique.
        """
        name = label
        n = 1
        while name in self.constants and self.constants[name] is not value:
            n += 1
            name = f"{label}_{n}"
        self.constants[name] = value
        return name

    def identifier(self, prefix: str, name: str) -> str:
        """Return a unique Python name for a user's name; the same arguments give the
        same name.
        """
        if (prefix, name) not in self._identifiers:
            wanted = f"{prefix}_{re.sub(r'[^0-9a-zA-Z]', '_', name)}"
            unique = wanted
            n = 1
            while unique in self._identifiers.values():
                n += 1
                unique = f"{wanted}_{n}"
            self._identifiers[prefix, name] = unique
        return self._identifiers[prefix, name]

    def bind(self, name: str, *lines: str) -> str:
        """Return the name, and have these lines run once for each task."""
        if name not in self._bound:
            self._bound.add(name)
            self.binding += lines
        return name

    def made(
        self,
        prefix: str,
        node: str,
        make: Callable[..., object],
        given: str,
    ) -> str:
        """Return the name of the generated variable for a node's object. Each task
        makes it by a call of `make`.

        `given`: the code of the call's arguments.
        """
        name = self.identifier(prefix, node)
        self.constants.setdefault(f"make_{name}", make)
        return self.bind(name, f"{name} = make_{name}({given})")

    def site(self, phase: Phase, node: str) -> int:
        """Return the number of a phase and node in which a record can fail."""
        if (phase, node) not in self.sites:
            self.sites.append((phase, node))
        return self.sites.index((phase, node))

    def drop(self, node: str, reason: str) -> int:
        """Return the number of the counter of records that a node drops for a
        reason.
        """
        if (node, reason) not in self.drops:
            self.drops.append((node, reason))
        return self.drops.index((node, reason))

    def store(self, spec: StoreSpec) -> str:
        """Return the name of the generated variable for a store. With the prefix
        `get_`, `load_`, `touch_` or `dirty_`, it is the variable of a method.
        """
        name = self.identifier("store", spec.name)
        functions = {
            "get": "entries.get",
            "load": "load",
            "touch": "touch",
            "dirty": "dirty",
        }
        if spec.ttl_ms is not None:
            functions["note"] = "note"
        return self.bind(
            name,
            f"{name} = stores[{spec.name!r}]",
            *(f"{short}_{name} = {name}.{full}" for short, full in functions.items()),
        )

    def output(self, topic: str) -> str:
        """Return the name of the generated variable for a topic's output. With the
        prefix `key_`, `value_` or `timestamp_`, it is the function that appends to a
        column.
        """
        name = self.identifier("out", topic)
        columns = {"key": "keys", "value": "values", "timestamp": "timestamps"}
        return self.bind(
            name,
            f"{name} = outputs[{topic!r}]",
            *(
                f"{part}_{name} = {name}.{column}.append"
                for part, column in columns.items()
            ),
        )

    def births(self, topic: str) -> str:
        """Return the name of the generated variable for the function that appends to
        the births of a timed topic's output.
        """
        name = f"birth_{self.output(topic)}"
        return self.bind(name, f"{name} = outputs[{topic!r}].births.append")

    def operator_time(self, number: int, topics: Sequence[str]) -> str:
        """Return the name of the generated variable for a node's stream time: the
        largest timestamp that it has received from `topics`.
        """
        name = f"operator_time_{number}"
        self.operator_times.setdefault(name, OperatorTime(number, tuple(topics)))
        return self.bind(
            name,
            *(
                f"{variable} = -1"
                for variable in dict.fromkeys([name, self._reached_by_all(name)])
            ),
        )

    def wrap(self, node: str, function: str) -> None:
        """Have the wrapper, if there is one, wrap the function of a node."""
        if self.wrapper is not None:
            wrapper = self.constant("wrapper", self.wrapper)
            self._wrapped.append(f"{function} = {wrapper}({node!r}, {function})")

    def text(self, sources: dict[str, str], flushes: Sequence[str]) -> str:
        """Return the whole source: a function that binds the generated functions to the
        objects of one task.

        `sources`: the function of each topic. `flushes`: the functions that flush the
        record cache.
        """
        lines = ["def make(process, stores, outputs):"]
        lines += [
            f"    {line}"
            for line in [
                "fail = process.fail",
                f"dropped = [0] * {len(self.drops)}",
                *self.binding,
            ]
        ]
        for function in self.functions:
            lines += ["", *(f"    {line}" for line in function.text())]
        own = [
            *self._moves(),
            *self._reached(sources),
            *self._times(sources),
            *self._observed(),
            *self._expired(),
            *self._headed(),
        ]
        lines += [f"    {line}" for line in ["", *self._wrapped, *own]]
        table = ", ".join(f"{topic!r}: {name}" for topic, name in sources.items())
        timed = [
            (number, topic)
            for number, topic in enumerate(sources)
            if self.operator_times_of(topic)
        ]
        reached = ", ".join(f"{topic!r}: reached_{number}" for number, topic in timed)
        times = ", ".join(f"{topic!r}: times_{number}" for number, topic in timed)
        lines += [
            "",
            f"    return {{{table}}}, [{', '.join(flushes)}], dropped, {{{reached}}}, {{{times}}}, observed, expired, "
            "headers_come",
            "",
        ]
        return "\n".join(lines)

    def operator_times_of(self, topic: str) -> list[str]:
        """Return the operator times of the nodes that a topic's records reach, parents
        first.
        """
        return [
            name
            for name, operator_time in sorted(
                self.operator_times.items(),
                key=lambda item: item[1].number,
            )
            if topic in operator_time.topics
        ]

    def _reached_by_all(self, operator_time: str) -> str:
        """Return the name of the generated variable for the time up to which a node has
        processed every record.
        """
        return f"all_{operator_time}" if self.by_key else operator_time

    def _moves(self) -> Iterator[str]:
        """Yield the lines of the functions that advance each operator time when other
        tasks' records do.
        """
        for name, operator_time in self.operator_times.items():
            moved = self._reached_by_all(name)
            yield from [
                "",
                f"def move_{name}(now, due=True):",
                f"    nonlocal {moved}",
                f"    {moved} = now",
            ]
            yield from (f"    if due: {call}()" for call in operator_time.due)
            yield from (
                f"    if not due: {call}(now)" for call in operator_time.resumed
            )

    def _reached(self, topics: Iterable[str]) -> Iterator[str]:
        """Yield the lines of a function for each topic that advances the topic's
        operator times to given values.
        """
        for number, topic in enumerate(topics):
            names = self.operator_times_of(topic)
            if names:
                yield from [
                    "",
                    f"def reached_{number}(times, due=True):",
                    f"    {', '.join(f'to_{name}' for name in names)}, = times",
                ]
            for name in names:
                yield f"    if to_{name} > {self._reached_by_all(name)}: move_{name}(to_{name}, due)"

    def _times(self, topics: Iterable[str]) -> Iterator[str]:
        """Yield the lines of a function for each topic that returns the topic's
        operator times.
        """
        for number, topic in enumerate(topics):
            if names := self.operator_times_of(topic):
                reached = ", ".join(map(self._reached_by_all, names))
                yield from ["", f"def times_{number}():", f"    return [{reached}]"]

    def _observed(self) -> Iterator[str]:
        """Yield the lines of the function that advances the window stores to the
        operator times.
        """
        calls = [
            f"    {store}({self._reached_by_all(name)})"
            for name, operator_time in self.operator_times.items()
            for store in operator_time.stores
        ]
        yield from ["", "def observed():", *(calls or ["    pass"])]

    def _expired(self) -> Iterator[str]:
        """Yield the lines of the function that deletes the rows that have expired by
        the stream times of their topics.
        """
        yield from ["", "def expired():"]
        for name, topics in self.expiring.items():
            yield f"    stream_time = process.stream_time({topics!r})"
            yield f"    if stream_time >= {name}.due_ms: {name}_due(stream_time)"
        if not self.expiring:
            yield "    pass"

    def _headed(self) -> Iterator[str]:
        """Yield the lines of the function `headers_come`. After its first call, the
        code keeps headers.
        """
        yield from [
            "",
            "headed = False",
            "def headers_come():",
            "    nonlocal headed",
            "    headed = True",
        ]


class Function:
    """One Python function during generation.

    Shape: `skip` is the statement that ends the work on the current record: `return`,
    or `continue` in a loop.
    `over_batch`: the function takes many records and loops over them; `prologue` and
    `epilogue` are its lines before and after the loop. `columns`: the variables of
    columns that are read of the values before the loop.
    """

    def __init__(self, unit: Unit, name: str) -> None:
        self.unit = unit
        self.name = name
        self.skip = "return"
        self.parameters: tuple[str, ...] = ()
        self.over_batch = False
        self.prologue: list[str] = []
        self.epilogue: list[str] = []
        self.lines: list[str] = []
        self.columns = ColumnVariables()
        self.assigned: set[str] = set()
        """The variables of the task, rather than of the call, that the function
        changes.
        """
        self.loops = 0
        self._indent = 1
        self._variables = 0

    def text(self) -> list[str]:
        """Return the lines of the finished function."""
        before = (
            [f"nonlocal {', '.join(sorted(self.assigned))}", *self.prologue]
            if self.assigned
            else list(self.prologue)
        )
        body = (
            [f"    {line}" for line in before]
            + self.lines
            + [f"    {line}" for line in self.epilogue]
        )
        return [
            f"def {self.name}({', '.join(self.parameters)}):",
            *body,
            *([] if _does_something(body) else ["    pass"]),
        ]

    def mentions(self, variable: str) -> bool:
        """Return whether the lines written so far use a variable. String literals do
        not count, because topics and nodes may have its name.
        """
        code = "\n".join(_TEXT.sub("", line).split("#")[0] for line in self.lines)
        return re.search(rf"(?<![.\w]){variable}\b", code) is not None

    def line(self, text: str) -> None:
        """Append a line at the current indentation."""
        self.lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Append a header; lines in the `with` block are its indented block."""
        self.line(header)
        begin = len(self.lines)
        self._indent += 1
        yield
        if not _does_something(self.lines[begin:]):
            self.line("pass")
        self._indent -= 1

    @contextmanager
    def loop(self, header: str) -> Iterator[None]:
        """Append a loop; lines in the `with` block are its body, where `skip` continues
        with the next iteration.
        """
        skip = self.skip
        self.skip = "continue"
        self.loops += 1
        with self.block(header):
            yield
        self.loops -= 1
        self.skip = skip

    @contextmanager
    def guard(
        self,
        phase: Phase,
        node: str,
        error: str = "error",
        skip: str | None = None,
        undo: Sequence[str] = (),
    ) -> Iterator[None]:
        """Enclose the lines of the `with` block, which call user functions or serdes,
        in a `try`.

        If they raise, the generated code runs the lines `undo`, fails the record at
        `node`, and runs the statement `skip`. `error`: the code of the error to report.
        """
        with self.block("try:"):
            yield
        with self.block("except Exception as error:"):
            for line in undo:
                self.line(line)
            self.line(f"fail({self.unit.site(phase, node)}, {error})")
            self.line(skip or self.skip)

    def guarded(
        self,
        part: str,
        code: str,
        node: Node,
        skip: str | None = None,
        undo: Sequence[str] = (),
    ) -> str:
        """Generate a new variable for the result of calls of user functions, guarded;
        return the variable.

        `code`: the expression of the calls. `skip`, `undo`: as in `guard`.
        """
        name = self.fresh(part)
        with self.guard("processing", node.name, skip=skip, undo=undo):
            self.line(f"{name} = {code}")
        return name

    def drop_if(
        self,
        condition: str,
        node: Node,
        reason: str,
    ) -> None:
        """Generate code that drops and counts a record under a condition."""
        with self.block(f"if {condition}:"):
            self.drop(node, reason)

    def drop(self, node: Node, reason: str) -> None:
        """Generate code that drops and counts the record."""
        self.line(f"dropped[{self.unit.drop(node.name, reason)}] += 1")
        self.line(self.skip)

    def skip_if(self, condition: str) -> None:
        """Generate code that ends the work on a record under a condition, without
        counting it as dropped.
        """
        with self.block(f"if {condition}:"):
            self.line(self.skip)

    def key(self, record: RecordVariables) -> str:
        """Return the name of the generated variable for the key as an object, and
        generate its deserialisation if needed.
        """
        if record.key is None:
            assert record.key_bytes is not None
            assert record.key_serde is not None
            record.key = self._decoded(
                "key",
                record.key_bytes,
                record.key_serde,
                record.source,
                record.has_key,
            )
        return record.key

    def value(self, record: RecordVariables) -> str:
        """Return the name of the generated variable for the value as an object, and
        generate its deserialisation if needed.
        """
        if record.value is None:
            assert record.value_bytes is not None
            assert record.value_serde is not None
            record.value = self._decoded(
                "value",
                record.value_bytes,
                record.value_serde,
                record.source,
                record.dense,
            )
        return record.value

    def value_if_unread(self, record: RecordVariables) -> tuple[str, str]:
        """Return the name of the generated variable for the whole value, set for
        records that were not read as columns, and the test that the record was read.

        The deserialisation is generated if needed.
        """
        first = record.columns.variables[0]
        if record.unread is None:
            assert record.value_bytes is not None
            assert record.value_serde is not None
            record.unread = self.fresh("value")
            self.line(f"{record.unread} = None")
            with self.block(f"if {first} is unread:"):
                value = self._decoded(
                    "value",
                    record.value_bytes,
                    record.value_serde,
                    record.source,
                    record.dense,
                )
                self.line(f"{record.unread} = {value}")
        return record.unread, f"{first} is not unread"

    def key_as_bytes(
        self,
        record: RecordVariables,
        serde: Serde[Any],
        node: Node,
    ) -> str:
        """Return the name of the generated variable for the key as bytes of this serde,
        and generate its serialisation if needed.
        """
        if record.key_bytes is not None and record.key_serde == serde:
            return record.key_bytes
        return self._encoded(
            "key",
            self.key(record),
            serde.for_keys(),
            node,
            record.has_key,
        )

    def value_as_bytes(
        self,
        record: RecordVariables,
        serde: Serde[Any],
        node: Node,
    ) -> str:
        """Return the name of the generated variable for the value as bytes of this
        serde, and generate its serialisation if needed.
        """
        if record.value_bytes is not None and record.value_serde == serde:
            return record.value_bytes
        value = self.value(record)
        if record.json is None:
            return self._encoded("value", value, serde, node, record.dense)
        json, is_read = record.json
        before = f"{json} if {is_read} else "
        return self._encoded("value", value, serde, node, record.dense, before)

    def _decoded(
        self,
        part: str,
        data: str,
        serde: Serde[Any],
        source: str,
        dense: bool,
    ) -> str:
        if serde == raw:
            return data
        name = self.fresh(part)
        decode = self.unit.constant(f"decode_{part}", serde.decode)
        whole = self.unit.constant(f"{part}_serde", serde)
        read = f"{decode}({data})"
        if (short := reader_of_short(serde.decode)) is not None:
            # A comparison here, where a call for each record would cost a tenth more.
            by = self.unit.constant(f"decode_short_{part}", short)
            read = f"{by}({data}) if len({data}) <= {LONG_BYTES} else {read}"
        if not dense:
            read = f"None if {data} is None else {read}"
        with self.guard(
            "deserialization",
            source,
            f"unreadable({whole}, {data}, error)",
        ):
            self.line(f"{name} = {read}")
        self.unit.constant("unreadable", unreadable)
        return name

    def _encoded(
        self,
        part: str,
        value: str,
        serde: Serde[Any],
        node: Node,
        dense: bool,
        before: str = "",
    ) -> str:
        """Generate the serialisation of a part. `before`: code in front of its result."""
        name = self.fresh(f"{part}_bytes")
        encode = self.unit.constant(f"encode_{part}", serde.encode)
        whole = self.unit.constant(f"{part}_serde", serde)
        topic = node.topic if isinstance(node, Sink) else None
        with self.guard(
            "production",
            node.name,
            f"unwritable({whole}, {value}, error, {topic!r})",
        ):
            self.line(
                f"{name} = {before}{'' if dense else f'None if {value} is None else '}{encode}({value})"
            )
        self.unit.constant("unwritable", unwritable)
        return name

    def fresh(self, part: str) -> str:
        """Return the name of a new variable of this function, which begins with
        `part`.
        """
        self._variables += 1
        return f"{part}_{self._variables}"


def _does_something(lines: Sequence[str]) -> bool:
    """Return whether any line is not a comment."""
    return any(not line.lstrip().startswith("#") for line in lines)
