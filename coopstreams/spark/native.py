"""Decides which sub-topologies Spark SQL can fold with the same rows as Python, and why not the others.

Pure. It decides by nodes, functions and serdes, before any record is read. What depends on the records (an invalid
number, a condition on a text, a sum that overflows) is counted as doubts by `native_frames`; then, too, Python does it.

Invariant: a sub-topology is translated as a whole or not at all, and only if every function in it is known here.
Turned down: reading lambdas (bytecode proves nothing about the types it meets), typed JSON (msgspec checks each record
against its type, Spark would not), floats (their sum depends on its order).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from coopstreams.topology import serdes
from coopstreams.topology.fields import Both, Comparing, Comparison, Condition, Either, Not, field, fields_of
from coopstreams.topology.graph.folding import Kind, known_kind
from coopstreams.topology.graph.nodes import Aggregate, Filter, MapValues, Node, Sink, Source, SubTopology, ToStream
from coopstreams.topology.windows import TimeWindows

Values = Literal["any", "int64", "json"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregation into a store, as SQL sees it.

    Shape: `values` tells how record values become integers: not at all, 8 bytes, or JSON; with `field` the JSON is an
    object that has it. `where`: the condition of the filters before it, None if there are none.
    Units: `size_ms`, `advance_ms` and `close_ms` (size and grace) of windows; 0 without windows.
    """

    node: str
    store: str
    fold: Kind
    values: Values
    field: str | None
    drops_null_values: bool
    where: Condition | None = None
    size_ms: int = 0
    advance_ms: int = 0
    close_ms: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that it reads."""
        return tuple(dict.fromkeys([*fields_of(self.where), *([] if self.field is None else [self.field])]))


def translated(part: SubTopology, outputs: str = "none") -> tuple[Aggregation, ...] | str:
    """Return the aggregations of a sub-topology, or why it is left to Python."""
    if outputs != "none":
        return "outputs are wanted, which are updates of rows; SQL knows the last one only"
    if len(part.topics) != 1 or not part.stores:
        return "it has no store to fold into" if not part.stores else f"it reads {len(part.topics)} topics"
    nodes, found = {node.name: node for node in part.nodes}, list[Aggregation]()
    for node in part.nodes:
        made = _aggregation(node, nodes) if isinstance(node, Aggregate) else _other(node, nodes)
        if isinstance(made, str):
            return f"{node.name} {made}"
        if made is not None:
            found.append(made)
    return tuple(found)


def _other(node: Node, nodes: dict[str, Node]) -> str | None:
    """Return why a node that is no aggregation cannot be translated; None if it can."""
    match node:
        case Source(idle_ms=int()):
            return "advances time where its topic is silent"
        case Source(timestamp=function):
            return None if function is None else "takes timestamps by a Python function"
        case MapValues(table=False, with_key=False, mapper=field()):
            return _step(node, nodes)
        case MapValues():
            return 'calls a Python function; field("...") could be read'
        case Filter(table=False, predicate=Condition() as condition):
            return unreadable(condition) or _step(node, nodes)
        case Filter():
            return (
                'calls a Python function; a condition as field("...") > 1 could be read'
                if not node.table
                else "filters a table"
            )
        case ToStream():
            return None
        case Sink(partitioner=function) if function is not None:
            return "chooses partitions by a Python function"
        case Sink(internal=False):
            return None if _passes(node, nodes) else "writes rows with other serdes than their store's"
        case _:
            return f"is a {type(node).__name__}, which has no translation"


def _step(node: Node, nodes: dict[str, Node]) -> str | None:
    """Return why a step on the way to an aggregation cannot be translated; None if it can."""
    if not isinstance(nodes[node.parents[0]], Source | Filter):
        return "stands behind another step"
    # SQL evaluates only what a store needs; Python calls every function, and it may raise.
    return None if any(node.name in other.parents for other in nodes.values()) else "leads nowhere"


def unreadable(condition: Condition) -> str | None:
    """Return why SQL might not decide a condition as Python does, for any record; None if it always does."""
    match condition:
        case field(name):
            return None if _NAME.fullmatch(name) else f"reads the field {name!r}, which JSON may write in several ways"
        case Comparison(part, comparing, constant):
            return unreadable(part) or (
                None
                if _comparable(comparing, constant)
                else f"compares with {constant!r}, of which SQL may think otherwise"
            )
        case Both(one, other) | Either(one, other):
            return unreadable(one) or unreadable(other)
        case Not(one):
            return unreadable(one)
        case _:
            return f"has a {type(condition).__name__}, which has no translation"


def _comparable(comparing: Comparing, constant: Any) -> bool:
    if type(constant) is int:
        return abs(constant) < 1 << 63
    if type(constant) is float:
        return math.isfinite(constant)
    if type(constant) is str:
        return not _SURROGATE.search(constant)
    return (constant is None or type(constant) is bool) and comparing in ("==", "!=")


def _passes(node: Sink, nodes: dict[str, Node]) -> bool:
    above = nodes[node.parents[0]]
    while isinstance(above, ToStream):
        above = nodes[above.parents[0]]
    return (
        isinstance(above, Aggregate)
        and node.key == (above.store.row_key or above.store.key)
        and node.value == above.store.value
    )


def _aggregation(node: Aggregate, nodes: dict[str, Node]) -> Aggregation | str:
    store, fold, windows = node.store, known_kind(node), node.windows
    if fold is None:
        return "calls a Python function; reduce(operator.add), reduce(min), reduce(max) and count() could be read"
    way = _way(nodes[node.parents[0]], nodes)
    if way is None:
        return "stands behind another step"
    source, where, part = way
    more = {
        "is told once a window closes": node.emit_on_close,
        "is cogrouped": node.cogrouped,
        "says what a row was before": node.sends_old,
        "keeps the past of its rows": store.history_ms is not None,
        "has rows that expire": store.ttl_ms is not None,
        "has windows that follow the records, or are of your own": windows is not None
        and not isinstance(windows, TimeWindows),
        "writes keys with another serde than they are read with": store.key != source.key,
    }
    if any(more.values()):
        return next(why for why, holds in more.items() if holds)
    if store.value not in (serdes.int64, serdes.json):
        return f"keeps values as {store.value}; int64 or plain JSON have one form for an integer"
    values = _values(source, where, part, fold)
    if values is None:
        return (
            f'folds values of {source.value}; int64, plain JSON, or field("...") of plain JSON have integers that SQL '
            "can read"
        )
    sizes = (
        (windows.size_ms, windows.advance_ms, windows.size_ms + windows.grace_ms)
        if isinstance(windows, TimeWindows)
        else (0, 0, 0)
    )
    return Aggregation(
        node.name, store.name, fold, values, None if part is None else part.name, node.drops_null_values, where, *sizes
    )


def _way(above: Node, nodes: dict[str, Node]) -> tuple[Source, Condition | None, field | None] | None:
    """Return the source of an aggregation, the condition of its filters, and the field of its values.

    None: the way between them is not known here.
    """
    part, where = None, None
    if isinstance(above, MapValues) and isinstance(above.mapper, field):
        part, above = above.mapper, nodes[above.parents[0]]
    while isinstance(above, Filter) and isinstance(above.predicate, Condition):
        condition = ~above.predicate if above.negate else above.predicate
        where, above = condition if where is None else condition & where, nodes[above.parents[0]]
    return (above, where, part) if isinstance(above, Source) else None


def _values(source: Source, where: Condition | None, part: field | None, fold: Kind) -> Values | None:
    if (where is not None or part is not None) and source.value != serdes.json:
        return None
    if part is not None:
        return "json" if _NAME.fullmatch(part.name) else None
    if fold == "count":
        return "any"
    if where is not None:
        return None  # conditions are about objects
    return "json" if source.value == serdes.json else "int64" if source.value == serdes.int64 else None
