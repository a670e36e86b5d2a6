"""The nodes of joins between two tables, two streams, a stream and a global table. See `nodes` for the others.

Invariant: `parents` is (left, right). Equal keys are equal bytes: `key` is the serde of both sides.
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
    """A table of `joiner(left value, right value)`, updated by either side. `store` None: a view, looked up through
    both sides.
    """

    kind: JoinKind
    joiner: Function
    key: Serde[Any]
    store: StoreSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedJoin(StreamTableJoin):
    """A `StreamTableJoin` with a versioned table that holds each record until stream time has passed it by the
    grace.
    """

    buffer: StoreSpec
    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGlobalJoin(Node):
    """`joiner(value, row)` (with the key in front if `with_key`) of each record and the row of `mapper(key, value)`;
    `left`: also without one.
    """

    store: StoreSpec
    mapper: Function
    joiner: Function
    with_key: bool
    left: bool


def method_of(join: Node) -> str:
    """Return the method that a user called to make a join."""
    if isinstance(join, StreamTableJoin):
        return "left_join" if join.left else "join"
    kind = getattr(join, "kind", "inner")
    return "join" if kind == "inner" else f"{kind}_join"


def stores_of(node: Node) -> list[StoreSpec]:
    """Return the stores that a node keeps, not those that it only looks into."""
    if isinstance(node, StreamTableJoin):
        return [node.buffer] if isinstance(node, BufferedJoin) else []
    if isinstance(node, StreamGlobalJoin):
        return []
    store = getattr(node, "store", None)
    return [*([] if store is None else [store]), *getattr(node, "stores", ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStreamJoin(Node):
    """A record of either stream meets those of the other that are near in time: `joiner(left value, right value)`, or
    with the key in front.

    `stores` are the records of the left, those of the right and, where a record without a match has to wait, those that
    wait. A stream that is joined with itself may have one for both sides: see `optimizing`.
    """

    kind: JoinKind
    windows: JoinWindows
    joiner: Function
    with_key: bool
    key: Serde[Any]
    stores: tuple[StoreSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyAsk(Node):
    """Each change of a left row becomes subscriptions to the right rows it names and named: see `foreign_keys`.

    `extract(key, value)` returns the foreign key; `key` and `value` are the serdes of the left table, `foreign_key` is
    that of the right's keys.
    """

    extract: Function
    left: bool
    key: Serde[Any]
    value: Serde[Any]
    foreign_key: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyAnswer(Node):
    """Keeps subscriptions, and answers: to a new one, and to all of a right row when it changes. `parents`:
    (subscriptions, right table).
    """

    store: StoreSpec
    value: Serde[Any]
    primary_key: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyResult(Node):
    """Joins the answers that are not stale: `joiner(left value, right value)`. `parents`: (answers, left table), which
    is only looked into.
    """

    joiner: Function
    left: bool
    key: Serde[Any]
    value: Serde[Any]
    right_value: Serde[Any]
