"""Which sub-topologies Spark SQL can fold as well as Python, with the very same rows in the end; and of the others, why not.

Pure. What is known before anything is read is decided here: nodes, functions, serdes. What only the records tell (a number that is none, a
sum that overflows) `native_frames` counts as doubts; then, as here, Python does it.

Invariant: a sub-topology is translated as a whole or not at all, and nothing in it runs a function that is not known here.
Turned down: reading lambdas (bytecode proves nothing about the types it meets), typed JSON (msgspec checks each record against its type, Spark
would not), floats (their sum depends on its order).
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from coopstreams.topology import serdes
from coopstreams.topology.fields import field
from coopstreams.topology.nodes import Aggregate, MapValues, Node, Sink, Source, SubTopology, ToStream
from coopstreams.topology.windows import TimeWindows

Fold = Literal["count", "sum", "min", "max"]
Values = Literal["any", "int64", "json"]

_REDUCERS: Final[tuple[tuple[Any, Fold], ...]] = ((operator.add, "sum"), (min, "min"), (max, "max"))
_LONGEST_MS: Final = 1 << 61
_NAME = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One store, as SQL sees it.

    Shape: `values` is how record values become integers: not at all, 8 bytes, or JSON; with `field` the JSON is an object that has it.
    Units: `size_ms` and `close_ms` (size and grace) of tumbling windows; 0 without windows.
    """

    node: str
    store: str
    fold: Fold
    values: Values
    field: str | None
    drops_null_values: bool
    size_ms: int = 0
    close_ms: int = 0


def translated(part: SubTopology, outputs: str = "none") -> tuple[Aggregation, ...] | str:
    """Return the aggregations that a sub-topology consists of, or why it is left to Python."""
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
    """Return what keeps a node that is no aggregation from being translated; None if nothing does."""
    match node:
        case Source(timestamp=function):
            return None if function is None else "takes timestamps by a Python function"
        case MapValues(table=False, with_key=False, mapper=field()):
            return None if isinstance(nodes[node.parents[0]], Source) else "stands behind another step"
        case MapValues():
            return 'calls a Python function; field("...") could be read'
        case ToStream():
            return None
        case Sink(partitioner=function) if function is not None:
            return "chooses partitions by a Python function"
        case Sink(internal=False):
            return None if _passes(node, nodes) else "writes rows with other serdes than their store's"
        case _:
            return f"is a {type(node).__name__}, which has no translation"


def _passes(node: Sink, nodes: dict[str, Node]) -> bool:
    above = nodes[node.parents[0]]
    while isinstance(above, ToStream):
        above = nodes[above.parents[0]]
    return isinstance(above, Aggregate) and node.key == (above.store.row_key or above.store.key) and node.value == above.store.value


def _aggregation(node: Aggregate, nodes: dict[str, Node]) -> Aggregation | str:
    above, store = nodes[node.parents[0]], node.store
    part = above.mapper if isinstance(above, MapValues) else None
    source = nodes[above.parents[0]] if isinstance(above, MapValues) else above
    fold = _fold(node)
    if fold is None:
        return "calls a Python function; reduce(operator.add), reduce(min), reduce(max) and count() could be read"
    if not isinstance(source, Source) or (part is not None and not isinstance(part, field)):
        return "stands behind another step"
    more = {
        "is told once a window closes": node.emit_on_close,
        "is cogrouped": node.cogrouped,
        "says what a row was before": node.sends_old,
        "keeps the past of its rows": store.history_ms is not None,
    }
    if any(more.values()):
        return next(why for why, holds in more.items() if holds)
    windows = node.windows
    if windows is not None and not (isinstance(windows, TimeWindows) and windows.tumbles):
        return "has windows that overlap, or follow the records"
    if isinstance(windows, TimeWindows) and windows.size_ms + windows.grace_ms > _LONGEST_MS:
        return "has a grace that leaves 64 bits"
    if store.key != source.key:
        return "writes keys with another serde than they are read with"
    if store.value not in (serdes.int64, serdes.json):
        return f"keeps values as {store.value}; int64 or plain JSON have one form for an integer"
    values = _values(source, part, fold)
    if values is None:
        return f'folds values of {source.value}; int64, plain JSON, or field("...") of plain JSON have integers that SQL can read'
    sizes = (windows.size_ms, windows.size_ms + windows.grace_ms) if isinstance(windows, TimeWindows) else (0, 0)
    return Aggregation(node.name, store.name, fold, values, None if part is None else part.name, node.drops_null_values, *sizes)


def _fold(node: Aggregate) -> Fold | None:
    if node.aggregator is None:
        return "count"
    return next((fold for function, fold in _REDUCERS if node.aggregator is function and node.initializer is None), None)


def _values(source: Source, part: field | None, fold: Fold) -> Values | None:
    if part is not None:
        return "json" if source.value == serdes.json and _NAME.fullmatch(part.name) else None
    if fold == "count":
        return "any"
    return "json" if source.value == serdes.json else "int64" if source.value == serdes.int64 else None
