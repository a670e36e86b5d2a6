"""Finds aggregations whose stores can have rows in native memory instead of live
objects: known folds over numbers, and folds by functions of the user.

The known folds are a count, a mean, and a reduce by `operator.add`, `min` or `max` over
`int64` or `float64`, without windows or in tumbling and hopping ones. Records come to
such a store in whole batches. So no other node may use it: between two records, an
operator or a processor would see the store before or after the whole batch.

A fold by the user's functions, without windows or in tumbling and hopping ones, any
fold whose windows are forwarded when they close, and sessions change rows one by one,
in the order of the records. Their rows are numbers or any objects.

A suppression may stand below such a store: what it holds back is in a store of its own.

The functions of a mean are in this module, too: its rows are totals and counts, and a
view divides them. Null values are no numbers: they leave a row as it is.

Invariant: in doubt, a fold is not known, and runs as one by functions.
Invariant: the total of a mean is a float from the first number on, so its rounding
depends only on the order of the numbers, which is that of offsets.
Relies on: `operators.native_folds` (the code of such a fold), `state.native_table` (its
rows).
Shape: a row of a mean is (total, count); as bytes 8 of IEEE 754 and 8 of a signed
integer, big-endian. Turned down: reading lambdas (bytecode proves nothing about the
types it meets); the mean itself as the row (it lacks the weight of the next number).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import (
    Any,
    Final,
    Literal,
    TypeAlias,
)

from coopstreams.topology import serdes
from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.join_nodes import StreamStreamJoin
from coopstreams.topology.graph.nodes import (
    RECORD_BY_RECORD,
    Aggregate,
    DynamicSink,
    Node,
    Processing,
    Sink,
    SubTopology,
    ToStream,
)
from coopstreams.topology.graph.uncached_tables import uncached
from coopstreams.topology.serde import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import SessionWindows, TimeWindows

Kind: TypeAlias = Literal["count", "sum", "min", "max", "mean", "function", "sessions"]
Number: TypeAlias = Literal["int64", "float64", "other"]
"""What rows are: numbers of a serde, or any objects."""
MeanRow: TypeAlias = tuple[float, int]
"""Total and count."""

_REDUCERS: Final[tuple[tuple[Any, Kind], ...]] = (
    (operator.add, "sum"),
    (min, "min"),
    (max, "max"),
)
_NUMBERS: Final[tuple[tuple[Any, Number], ...]] = (
    (serdes.int64, "int64"),
    (serdes.float64, "float64"),
)
_MOST_MS = 1 << 62
_MEAN_ROW = Struct(">dq")


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold over native rows. Units: `windows` are size, advance and grace in
    milliseconds, None without windows.
    """

    kind: Kind
    number: Number
    windows: tuple[int, int, int] | None
    closing: bool = False
    """Whether a window is forwarded when it closes, and not before."""

    @property
    def by_record(self) -> bool:
        """Whether rows change one by one, else by batches of records."""
        return self.kind in ("function", "sessions")


_JOIN_SIDE: Final = Fold("function", "other", (1, 1, 0))
"""Of the windows it only counts that there are some: their starts are the times of the
records, which the join gives.
"""


def folds(
    part: SubTopology,
    *,
    caching: bool,
    in_order: bool = False,
) -> dict[str, Fold]:
    """Return the folds over native rows, by the name of their store; no other node uses
    these stores. The two sides of a stream-stream join are among them: their rows, the
    values of a key and a moment, change one by one as well.

    `caching`: whether the record cache is on. `in_order`: whether each update is
    forwarded before its record's other results, as in Kafka Streams: then no rows
    change by batches.
    """
    nodes = {node.name: node for node in part.nodes}
    held_back = frozenset[str]()
    if caching:
        held_back = frozenset(nodes) - uncached(part.nodes)
    found: dict[str, Fold] = {}
    for node in part.nodes:
        if isinstance(node, StreamStreamJoin):
            found |= _sides(node, part.nodes)
        elif isinstance(node, Aggregate) and _alone(node, part.nodes):
            fold = _fold(node)
            if fold is not None and not fold.by_record:
                by_batch = not in_order and (
                    _comes_at_hand(node, nodes)
                    # Without the record cache each update leaves at once.
                    and (node.name in held_back or _may_follow(node, fold, part.nodes))
                )
                fold = fold if by_batch else _by_function(node, fold.windows)
            if fold is not None:
                found[node.store.name] = fold
    return found


def _sides(node: StreamStreamJoin, nodes: Sequence[Node]) -> dict[str, Fold]:
    """Return the fold of each side of a join whose rows no processor sees, by the name
    of its store.
    """
    return {
        side.name: _JOIN_SIDE
        for side in node.stores[:2]
        if not _has_processor(side.name, nodes)
    }


def known_kind(node: Aggregate) -> Kind | None:
    """Return the kind of an aggregation (count, sum, …), by its functions; None if they
    are unknown.
    """
    if node.aggregator is None:
        return "count"
    if node.aggregator is with_number:
        return "mean"
    if node.initializer is not None:
        return None
    return next(
        (kind for function, kind in _REDUCERS if function is node.aggregator),
        None,
    )


def plain_sinks(
    node: Aggregate | Suppress,
    nodes: Sequence[Node],
) -> list[Sink] | None:
    """Return the sinks that write the updates of a table unchanged; None if another
    node receives the updates, too.

    Each sink writes a topic of its own, so that the order of records in it is that of
    the updates.
    """
    if isinstance(node, Suppress):
        row_key = node.key
        value = node.value
        children = _children(node, nodes)
    else:
        row_key = node.store.row_key or node.store.key
        value = shown_serde(node)
        children = _below(node, nodes)
    found = list[Sink]()
    for child in children:
        if not isinstance(child, ToStream):
            return None
        for sink in _children(child, nodes):
            if not isinstance(sink, Sink) or (
                sink.partitioner,
                sink.key,
                sink.value,
            ) != (
                None,
                row_key,
                value,
            ):
                return None
            found.append(sink)
    return found if len({sink.topic for sink in found}) == len(found) else None


def taken_at_once(node: Aggregate, nodes: Sequence[Node]) -> Suppress | None:
    """Return the suppression that takes the updates of a flush as columns, if nothing
    else receives them and it needs no old values.
    """
    children = _below(node, nodes)
    if len(children) != 1 or not isinstance(children[0], Suppress):
        return None
    child = children[0]
    serdes_fit = (child.key, child.value) == (
        node.store.row_key or node.store.key,
        shown_serde(node),
    )
    return child if serdes_fit and child.until_close and not child.sends_old else None


def finish_of(node: Aggregate) -> Callable[[Any], Any] | None:
    """Return the function by which a view makes what the table shows of its rows; None:
    it shows its rows.
    """
    return mean_of if known_kind(node) == "mean" else node.store.value.shown


def shown_serde(node: Aggregate) -> Serde[Any]:
    """Return the serde of what a table shows, unless another is named below it."""
    if known_kind(node) == "mean":
        return serdes.float64
    return node.store.value if node.store.value.shown is None else serdes.json


def is_only_state(node: Aggregate, nodes: Sequence[Node]) -> bool:
    """Whether no other node of a sub-topology has state, or a stream time of its own."""
    return all(
        other is node or isinstance(other, (*RECORD_BY_RECORD, ToStream, Sink))
        for other in nodes
    )


def _fold(node: Aggregate) -> Fold | None:
    """Return the fold of an aggregation, by its functions, serdes and windows; None if
    it cannot have native rows.
    """
    if node.cogrouped or not _is_plain(node.store):
        return None
    windows = None
    if isinstance(node.windows, SessionWindows) and node.store.kind == "session":
        return replace(_by_function(node, None), kind="sessions")
    if node.windows is not None:
        if not isinstance(node.windows, TimeWindows):
            return None
        if node.store.kind != "window" or not node.store.step_ms:
            return None
        if max(node.windows.size_ms, node.windows.grace_ms) > _MOST_MS:
            return None
        windows = (
            node.windows.size_ms,
            node.windows.advance_ms,
            node.windows.grace_ms,
        )
    if node.emit_on_close:
        return replace(_by_function(node, windows), closing=True)
    kind = known_kind(node)
    number = _number(node.store, kind)
    if kind is None or number is None:
        return _by_function(node, windows)
    return Fold(kind, number, windows)


def _by_function(node: Aggregate, windows: tuple[int, int, int] | None) -> Fold:
    """Return the fold of an aggregation whose function is called for each record."""
    number = next(
        (name for serde, name in _NUMBERS if serde == node.store.value),
        None,
    )
    return Fold("function", number or "other", windows)


def _is_plain(store: StoreSpec) -> bool:
    """Whether a store has a changelog of its own, and no versions, no time to live, no
    longer keys.
    """
    special = (store.source, store.history_ms, store.ttl_ms)
    return special == (None, None, None) and not store.lag_ms and not store.suffix_bytes


def _number(store: StoreSpec, kind: Kind | None) -> Number | None:
    for serde, name in _NUMBERS:
        if serde == store.value:
            return None if kind == "count" and name != "int64" else name
    return "float64" if kind == "mean" else None


def _alone(node: Aggregate, nodes: Sequence[Node]) -> bool:
    """Whether only this aggregation and the streams of its updates, suppressed or not,
    use the store.
    """
    if _has_processor(node.store.name, nodes):
        return False
    for other in nodes:
        if (
            other is not node
            and getattr(getattr(other, "store", None), "name", None) == node.store.name
        ):
            return False
    return all(
        isinstance(child, ToStream) or _only_delays(child, nodes)
        for child in _below(node, nodes)
    )


def _only_delays(node: Node, nodes: Sequence[Node]) -> bool:
    """Whether a node is a suppression below which nobody looks rows up."""
    return isinstance(node, Suppress) and all(
        isinstance(child, ToStream) for child in _children(node, nodes)
    )


def _has_processor(store: str, nodes: Sequence[Node]) -> bool:
    """Whether a processor is connected to the store of this name."""
    return any(
        isinstance(other, Processing) and store in other.store_names for other in nodes
    )


def _comes_at_hand(node: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether each record that reaches a node is the result of one record of its task,
    forwarded while the task processes that record.
    """
    return all(
        isinstance(nodes[parent], RECORD_BY_RECORD)
        and not getattr(nodes[parent], "table", False)
        and _comes_at_hand(nodes[parent], nodes)
        for parent in node.parents
    )


def _may_follow(
    node: Aggregate,
    fold: Fold,
    nodes: Sequence[Node],
) -> bool:
    """Whether the updates of a batch may be forwarded after its last record.

    No other node may write to their topics: its records would come first. And no update
    may fail: the error would be reported for another record. A sum fails beyond 64
    bits, so only a count qualifies.
    """
    sinks = plain_sinks(node, nodes)
    if (
        fold.kind != "count"
        or sinks is None
        or any(isinstance(other, DynamicSink | Processing) for other in nodes)
    ):
        return False
    writers = [other.topic for other in nodes if isinstance(other, Sink)]
    return all(writers.count(sink.topic) == 1 for sink in sinks)


def _below(node: Aggregate, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that receive the updates of a table; for a mean and for several
    aggregates, the nodes below the view that finishes their rows.
    """
    finish = finish_of(node)
    if finish is None:
        return _children(node, nodes)
    views = [
        child
        for child in _children(node, nodes)
        if getattr(child, "mapper", None) is finish
    ]
    return [below for view in views for below in _children(view, nodes)]


def _children(node: Node, nodes: Sequence[Node]) -> list[Node]:
    return [other for other in nodes if node.name in other.parents]


def no_row() -> None:
    """Return None, the row of a mean before the first number."""


def with_number(
    _key: object,
    number: float | None,
    row: MeanRow | None,
) -> MeanRow | None:
    """Return the row of a mean with one more number: the sum and the count. None: there
    has been no number yet, and this one is None, too.
    """
    if number is None:
        return row
    return (0.0 + number, 1) if row is None else (row[0] + number, row[1] + 1)


def of_both(
    _key: object,
    one: MeanRow | None,
    other: MeanRow,
) -> MeanRow:
    """Return the row of a mean for two merged sessions."""
    return other if one is None else (one[0] + other[0], one[1] + other[1])


def mean_of(row: MeanRow) -> float:
    """Return the mean of a row's numbers."""
    return row[0] / row[1]


def _encode(row: MeanRow) -> bytes:
    return _MEAN_ROW.pack(*row)


def _decode(data: bytes) -> MeanRow:
    total, count = _MEAN_ROW.unpack(data)
    return total, count


totals: Serde[MeanRow] = Serde("total and count", _encode, _decode)
