"""Parts of JSON values as columns, for programs that read their values by `field(...)`
only: no dicts are made.

The extension reads the columns (`MakeParts`); without it, values become dicts. It may
leave any record `unread`; the code then deserialises the value and calls the functions
on it.

Invariant: a part is read only where nothing needs the whole value, so no value is read
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
from coopstreams.topology.fields import Condition, fields_of
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
"""Stands for a part that was not read: the value has to be deserialised."""


class Parts(Protocol):
    """Reads parts of JSON values, each as orjson does."""

    def columns(
        self,
        values: Sequence[bytes | None],
        unread: object,
    ) -> list[tuple[list[Any], type | None]]:
        """Return the column of each part, and int or float if all in it are of this
        class.

        A record is unread in all columns if a part is missing or no scalar, or if the
        value is no JSON object.
        """
        ...


MakeParts: TypeAlias = Callable[[Sequence[str]], Parts]
"""Takes the names of parts; returns their reader."""


def parts_read(analysis: Analysis, source: Source) -> tuple[str, ...]:
    """Return the names of the parts of a source's values that are read; none if the
    whole value is.

    Only a linear run of operators counts, which is one loop with access to the columns.
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
        if isinstance(function, Condition):
            names += fields_of(function)
        elif reads_pair(function).value:
            break
        if not all(map(_is_plain, names)):
            break
        if isinstance(node, MapValues):
            return tuple(dict.fromkeys(names))
    return ()


def _linear_run(analysis: Analysis, node: Node) -> Iterator[Node]:
    """Yield the nodes below a node, up to one that has not one child, or several
    parents.
    """
    while len(edges := analysis.edges(node)) == 1:
        node = edges[0].child
        if not analysis.has_one_parent(node):
            return
        yield node


def _is_plain(name: str) -> bool:
    """Whether a name is code as its repr: no lone surrogate, and no StrEnum."""
    return type(name) is str and name.isprintable()


def read_parts(
    function: Function,
    make: MakeParts,
    names: Sequence[str],
) -> None:
    """Generate code before the loop over a source: the columns of these parts of its
    values.

    Shape: with `_column` and `_class` behind it, the variable of a part is that of its
    column and class.
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
