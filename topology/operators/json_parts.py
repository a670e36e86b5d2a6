"""Reads parts of JSON values as columns, for programs that read their values by
`field(...)` only, so that no dicts are made.

The native extension reads the columns (`MakeParts`); without it, values become dicts.
It may leave any record `unread`; the code then deserialises the value and calls the
functions on it.

Invariant: a part is read only where no node needs the whole value, so no value is read
twice. Turned down: reading parts in Python, by a msgspec type of these fields (in
skipped parts it accepts bytes that are not UTF-8, which orjson refuses).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import (
    Any,
    Final,
    Protocol,
    TypeAlias,
)

from coopstreams.topology import serdes
from coopstreams.topology.fields import Expression, fields_of, reads_fields_only
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
from coopstreams.topology.operators.codegen import Function

unread: Final = object()
"""The mark in a column that a record's parts were not read, so the value has to be
deserialised.
"""


class Parts(Protocol):
    """A reader of parts of JSON values, which reads each part as orjson does."""

    def columns(
        self,
        values: Sequence[bytes | None],
        unread: object,
    ) -> list[tuple[list[Any], type | None]]:
        """Return the column of each part, and its class (int or float) if all its items
        are of that class, else None.

        A record is `unread` in all columns if the value is not a JSON object, or if a
        part is missing or not a scalar.
        """
        ...


MakeParts: TypeAlias = Callable[[Sequence[str]], Parts]
"""A function that returns the reader of the parts with these names."""


def parts_read(analysis: Analysis, source: Source) -> tuple[str, ...]:
    """Return the names of the parts that the nodes read of a source's values, or none
    if they read the whole value.

    The nodes must be a linear run, because only its loop has access to the columns.
    """
    if source.value != serdes.json:
        return ()
    names: list[str] = []
    for node in _linear_run(analysis, source):
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
                return tuple(dict.fromkeys(names))
            case Aggregate() if not aggregate_reads(node).value:
                return tuple(dict.fromkeys(names))
            case _:
                break
        if isinstance(function, Expression):
            if not reads_fields_only(function):
                break
            names += fields_of(function)
        elif reads_pair(function).value:
            break
        if not all(map(_is_plain, names)):
            break
        if isinstance(node, MapValues):
            return tuple(dict.fromkeys(names))
    return ()


def _linear_run(analysis: Analysis, node: Node) -> Iterator[Node]:
    """Yield the nodes below a node. The run ends at a node without exactly one child,
    and before a node with several parents.
    """
    while len(edges := analysis.edges(node)) == 1:
        node = edges[0].child
        if not analysis.has_one_parent(node):
            return
        yield node


def _is_plain(name: str) -> bool:
    """Return whether the repr of a name can be used as code: it has no lone surrogate,
    and is not a StrEnum.
    """
    return type(name) is str and name.isprintable()


def read_parts(
    function: Function,
    make: MakeParts,
    names: Sequence[str],
) -> None:
    """Generate the code before the loop over a source that reads these parts of its
    values as columns.

    Shape: the variables of a part's column and class are its own variable with the
    suffixes `_column` and `_class`.
    """
    unit = function.unit
    function.parts = {name: unit.identifier("part", name) for name in names}
    made = unit.constant("Parts", make)
    read = unit.bind(
        f"columns_{function.name}",
        f"columns_{function.name} = {made}({list(names)!r}).columns",
    )
    columns = ", ".join(
        f"({variable}_column, {variable}_class)" for variable in function.parts.values()
    )
    function.prologue += [
        "batch = process.at_hand()[1]",
        f"{columns}, = {read}(batch.values, {unit.constant('unread', unread)})",
    ]
