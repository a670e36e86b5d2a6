"""The nodes of joins: table-table, stream-stream, stream-global table, and foreign-key.
See `nodes` for the others.

Invariant: `parents` is (left, right). Equal keys are equal bytes: `key` is the serde of
both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from coopstreams.topology.graph.nodes import Function, Node, StreamTableJoin
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

JoinKind = Literal["inner", "left", "outer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTableJoin(Node):
    """A table of `joiner(left value, right value)`, updated by either side.

    Without a `store` it is a view: a lookup reads both sides.
    """

    kind: JoinKind
    joiner: Function
    key: Serde[Any]
    store: StoreSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedJoin(StreamTableJoin):
    """A `StreamTableJoin` with a versioned table: it holds each record until stream
    time has passed it by the grace.
    """

    buffer: StoreSpec
    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGlobalJoin(Node):
    """A join of each record with a row of a global table: `joiner(value, row)`.

    `mapper(key, value)` returns the key of the row. With `with_key`, the joiner takes
    the key first. With `left`, records without a row are joined with None.
    """

    store: StoreSpec
    mapper: Function
    joiner: Function
    with_key: bool
    left: bool


def method_of(join: Node) -> str:
    """Return the name of the DSL method that makes the join."""
    if isinstance(join, StreamTableJoin):
        return "left_join" if join.left else "join"
    kind = getattr(join, "kind", "inner")
    return "join" if kind == "inner" else f"{kind}_join"


def stores_of(node: Node) -> list[StoreSpec]:
    """Return the stores that a node writes, not those that it only looks up."""
    if isinstance(node, StreamTableJoin):
        return [node.buffer] if isinstance(node, BufferedJoin) else []
    if isinstance(node, StreamGlobalJoin):
        return []
    stores: list[StoreSpec | None] = [
        getattr(node, "store", None),
        *getattr(node, "stores", ()),
    ]
    return [
        kept
        for store in stores
        if store is not None
        for kept in (store, store.past)
        if kept is not None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStreamJoin(Node):
    """Joins records of two streams that are near in time: `joiner(left value, right
    value)`.

    With `with_key`, the joiner takes the key first.

    `stores` are one for the records of each side and, if a record without a match must
    wait, one for the waiting records. The self-join of a stream may have one store for
    both sides: see `optimization`.
    """

    kind: JoinKind
    windows: JoinWindows
    joiner: Function
    with_key: bool
    key: Serde[Any]
    stores: tuple[StoreSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyAsk(Node):
    """Turns each change of a left row into subscriptions to the right rows of its new
    and old foreign keys: see `foreign_keys`.

    `extract(key, value)` returns the foreign key. `key` and `value` are the serdes of
    the left table, `foreign_key` is that of the right table's keys.
    """

    extract: Function
    left: bool
    key: Serde[Any]
    value: Serde[Any]
    foreign_key: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyAnswer(Node):
    """Keeps the subscriptions and answers them: a new subscription at once, and all
    subscriptions to a right row when the row changes.

    `parents` is (subscriptions, right table).
    """

    store: StoreSpec
    value: Serde[Any]
    primary_key: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyResult(Node):
    """Joins the answers that are not stale: `joiner(left value, right value)`.

    `parents` is (answers, left table); it only looks up the left table. `ask` is the
    name of the join's `ForeignKeyAsk`, through whose topic an inner join asks again.
    """

    ask: str
    joiner: Function
    left: bool
    key: Serde[Any]
    value: Serde[Any]
    right_value: Serde[Any]
