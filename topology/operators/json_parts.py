"""Reads JSON values as columns, for programs that read their values by expressions of
`field(...)` only, so that no dicts are made.

A column is of a part, of an expression's values or their JSON, or of the truths of a
filter. The native extension reads the columns (`MakeParts`); without it, values become
dicts. It may leave any record `unread`; the code then deserialises the value and calls
the functions on it. An expression that it does not know is computed by the loop, from
columns of its parts.

Invariant: a column is read only where no node needs the whole value, so no value is
read twice. Turned down: reading parts in Python, by a msgspec type of these fields (in
skipped parts it accepts bytes that are not UTF-8, which orjson refuses).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
    TypeAlias,
)

from coopstreams.topology import serdes
from coopstreams.topology.expression_trees import Tree, json_tree_of, tree_of
from coopstreams.topology.fields import (
    Expression,
    field,
    fields_of,
    reads_fields_only,
)
from coopstreams.topology.graph.nodes import (
    Aggregate,
    DropNullKeys,
    Filter,
    MapValues,
    Node,
    SelectKey,
    Sink,
    Source,
)
from coopstreams.topology.operators.analysis import (
    Analysis,
    aggregate_reads,
    reads_pair,
)
from coopstreams.topology.operators.codegen import ColumnVariables, Function

unread: Final = object()
"""The mark in a column that a record was not read, so the value has to be deserialised."""

Role: TypeAlias = Literal["value", "json", "keep", "drop"]
"""What a column is: values, their JSON, or truths of which one that is false (`keep`)
or true (`drop`) ends the work on the record.
"""


class Parts(Protocol):
    """A reader of columns of JSON values, which reads each part as orjson does, and
    computes what `expression_values` says.
    """

    def columns(
        self,
        values: Sequence[bytes | None],
        unread: object,
    ) -> tuple[list[tuple[list[Any], type | None]], bool]:
        """Return each column with its class (int, float or str) if all records were
        read, and its items of all that pass the truths are of that class, else None; and
        whether all records were read.

        A record is `unread` in all columns if the value is not a JSON object, or the
        reader is not certain of an item, as of a bare field that is missing. After a
        truth that ends the work on a record, so do all truths, and values are None.
        """
        ...


MakeParts: TypeAlias = Callable[[Sequence[tuple[Role, Tree]]], Parts]
"""A function that returns the reader of columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column that is read of a source's values."""

    of: Expression
    role: Role
    tree: Tree

    @property
    def part(self) -> str | None:
        """The name of the part of which it is the column, if it is one."""
        bare = self.role == "value" and type(self.of) is field
        return self.of.name if bare else None  # type: ignore[attr-defined]

    @property
    def key(self) -> tuple[int, bool]:
        """What finds it: the expression, and whether it is truths of it."""
        return id(self.of), self.role in ("keep", "drop")


def columns_read(analysis: Analysis, source: Source) -> list[Column]:
    """Return the columns that the nodes read of a source's values, or none if they read
    the whole value.

    The nodes must be a linear run, because only its loop has access to the columns.
    """
    if source.value != serdes.json:
        return []
    columns: list[Column] = []
    for node in linear_run(analysis, source):
        match node:
            case (
                Filter(table=False, predicate=function)
                | MapValues(table=False, mapper=function)
                | SelectKey(mapper=function)
            ):
                pass
            case DropNullKeys():
                continue
            case Sink(partitioner=None, value=source.value):
                return columns
            case Aggregate() if not aggregate_reads(node).value:
                return columns
            case _:
                break
        if isinstance(function, Expression):
            if not reads_fields_only(function):
                break
            json = isinstance(node, MapValues) and _is_written(analysis, node)
            more = _columns_of(node, function, json=json)
            if more is None:
                break
            columns += more
        elif reads_pair(function).value:
            break
        if isinstance(node, MapValues):
            return columns
    return []


def _is_written(analysis: Analysis, node: MapValues) -> bool:
    """Return whether all that becomes of a mapper's value is JSON in a topic."""
    below = next(iter(linear_run(analysis, node)), None)
    return (
        isinstance(below, Sink)
        and below.partitioner is None
        and below.value == serdes.json
    )


def _columns_of(
    node: Filter | MapValues | SelectKey,
    function: Expression,
    *,
    json: bool,
) -> list[Column] | None:
    """Return the columns for the function of a node: its own, or else those of the
    parts that it reads. None: the name of a part is no text in JSON.

    `json`: whether the value is wanted as JSON.
    """
    names = fields_of(function)
    if names and json and (tree := json_tree_of(function)) is not None:
        return [Column(function, "json", tree)]
    role: Role = "value"
    if isinstance(node, Filter):
        role = "drop" if node.negate else "keep"
    if names and (tree := tree_of(function)) is not None:
        return [Column(function, role, tree)]
    columns = []
    for name in names:
        part = field(name)
        if (tree := tree_of(part)) is None:
            return None
        columns.append(Column(part, "value", tree))
    return columns


def linear_run(analysis: Analysis, node: Node) -> Iterator[Node]:
    """Yield the nodes below a node. The run ends at a node without exactly one child,
    and before a node with several parents.
    """
    while len(edges := analysis.edges(node)) == 1:
        node = edges[0].child
        if not analysis.has_one_parent(node):
            return
        yield node


def read_columns(
    function: Function,
    make: MakeParts,
    columns: Sequence[Column],
) -> None:
    """Generate the code before the loop over a source that reads these columns of its
    values.

    Shape: the variables of a column and its class are its own variable with the
    suffixes `_column` and `_class`.
    """
    unit = function.unit
    parts: dict[str, str] = {}
    computed: dict[tuple[int, bool], str] = {}
    json: dict[int, str] = {}
    found: dict[str, Column] = {}
    for column in columns:
        if column.role == "json":
            variable = json[id(column.of)] = function.fresh("json")
            found[variable] = column
            continue
        # A part that two nodes read is one column, and so is a condition of two filters.
        known = computed.get(column.key)
        if column.part is not None:
            variable = parts[column.part] = unit.identifier("part", column.part)
        else:
            variable = known or function.fresh("computed")
        computed[column.key] = variable
        found.setdefault(variable, column)
    function.columns = ColumnVariables(parts, computed, json)
    made = unit.constant("Parts", make)
    read = unit.constant("read", [(each.role, each.tree) for each in found.values()])
    reader = unit.bind(
        f"columns_{function.name}",
        f"columns_{function.name} = {made}({read}).columns",
    )
    variables = ", ".join(
        f"({variable}_column, {variable}_class)" for variable in found
    )
    function.prologue += [
        "batch = process.at_hand()[1]",
        f"({variables},), all_read = {reader}(batch.values, {unit.constant('unread', unread)})",
    ]
