"""The joins of a stream with a table, another stream, or a global table. A joiner of
`…_with_key` takes the key first.

Relies on: `attach_joins` (stores, windows and keys).
Turned down: a second argument besides `joiner` for a function with the key. Each form
of each join would need two overloads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    TypeVar,
    overload,
)

from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.attach_joins import StreamJoin, joined
from coopstreams.topology.dsl.global_tables import GlobalKTable
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.durations import Duration
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.graph.join_nodes import JoinKind
from coopstreams.topology.graph.nodes import GlobalTable
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.serdes import Serde

if TYPE_CHECKING:
    from coopstreams.topology.dsl.kstream import KStream  # a join makes another stream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VT = TypeVar("VT")


class StreamJoins(Generic[K, V]):
    """The joins of a `KStream`."""

    __slots__ = ("_flow",)

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    @overload
    def join(
        self,
        other: KTable[K, VT],
        joiner: Callable[[V, VT], V2],
        *,
        value: Serde[V2] | None = None,
        grace: Duration | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def join(
        self,
        other: KStream[K, VT],
        joiner: Callable[[V, VT], V2],
        *,
        windows: JoinWindows,
        value: Serde[V2] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, VT],
        joiner: Callable[[V, VT], V2],
        *,
        on: Callable[[K, V], K2 | None],
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    def join(self, other: Any, joiner: Any, **options: Any) -> Any:
        """Join each record with a table, another stream or a global table:
        `joiner(value, other_value)`.

        With a table: the other value is the current row of the record's key; without a
        row the record is dropped. Updates of the table alone produce no records. A
        versioned table gives the row as of the record's timestamp; with `grace=` the
        record waits that long (in stream time) for late rows. If the stream's key serde
        is unknown, it is the table's, the only one with which keys match.

        With a stream: each record of the same key that is within `windows=` of this
        record is joined, whichever comes first; the result has the later timestamp.
        `store=` names the two stores that keep the records meanwhile.

        With a global table: the other value is the row of the key that `on=(key,
        value)` returns.
        """
        return self._joined(other, joiner, "inner", **options)

    @overload
    def join_with_key(
        self,
        other: KTable[K, VT],
        joiner: Callable[[K, V, VT], V2],
        *,
        value: Serde[V2] | None = None,
        grace: Duration | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def join_with_key(
        self,
        other: KStream[K, VT],
        joiner: Callable[[K, V, VT], V2],
        *,
        windows: JoinWindows,
        value: Serde[V2] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def join_with_key(
        self,
        other: GlobalKTable[K2, VT],
        joiner: Callable[[K, V, VT], V2],
        *,
        on: Callable[[K, V], K2 | None],
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    def join_with_key(self, other: Any, joiner: Any, **options: Any) -> Any:
        """Join as `join` does, with `joiner(key, value, other_value)`."""
        return self._joined(other, joiner, "inner", with_key=True, **options)

    @overload
    def left_join(
        self,
        other: KTable[K, VT],
        joiner: Callable[[V, VT | None], V2],
        *,
        value: Serde[V2] | None = None,
        grace: Duration | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, VT],
        joiner: Callable[[V, VT | None], V2],
        *,
        windows: JoinWindows,
        value: Serde[V2] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, VT],
        joiner: Callable[[V, VT | None], V2],
        *,
        on: Callable[[K, V], K2 | None],
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    def left_join(self, other: Any, joiner: Any, **options: Any) -> Any:
        """Join each record as `join` does, with None if there is no match; a record
        without a key has none.

        With a stream, a record waits until its window has closed before it is joined
        with None.
        """
        return self._joined(other, joiner, "left", **options)

    @overload
    def left_join_with_key(
        self,
        other: KTable[K, VT],
        joiner: Callable[[K, V, VT | None], V2],
        *,
        value: Serde[V2] | None = None,
        grace: Duration | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def left_join_with_key(
        self,
        other: KStream[K, VT],
        joiner: Callable[[K, V, VT | None], V2],
        *,
        windows: JoinWindows,
        value: Serde[V2] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def left_join_with_key(
        self,
        other: GlobalKTable[K2, VT],
        joiner: Callable[[K, V, VT | None], V2],
        *,
        on: Callable[[K, V], K2 | None],
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    def left_join_with_key(self, other: Any, joiner: Any, **options: Any) -> Any:
        """Join as `left_join` does, with `joiner(key, value, other_value)`."""
        return self._joined(other, joiner, "left", with_key=True, **options)

    def outer_join(
        self,
        other: KStream[K, VT],
        joiner: Callable[[V | None, VT | None], V2],
        *,
        windows: JoinWindows,
        value: Serde[V2] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Join the records of two streams as `join` does. A record without a match is
        joined with None when its window closes.
        """
        return self._joined(
            other,
            joiner,
            "outer",
            windows=windows,
            value=value,
            store=store,
            name=name,
        )

    def outer_join_with_key(
        self,
        other: KStream[K, VT],
        joiner: Callable[[K, V | None, VT | None], V2],
        *,
        windows: JoinWindows,
        value: Serde[V2] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Join as `outer_join` does, with `joiner(key, value, other_value)`."""
        return self._joined(
            other,
            joiner,
            "outer",
            with_key=True,
            windows=windows,
            value=value,
            store=store,
            name=name,
        )

    def _joined(
        self, other: object, joiner: Any, kind: JoinKind, **options: Any
    ) -> KStream[K, Any]:
        from coopstreams.topology.dsl.kstream import KStream

        return KStream(
            joined(self._flow, _side(other), StreamJoin(joiner, kind, **options))
        )


def _side(other: object) -> Flow | TableFlow | GlobalTable:
    if isinstance(other, GlobalKTable):
        return other._table
    if isinstance(other, KTable):
        return other._table
    if isinstance(other, StreamJoins):
        return other._flow
    raise TopologyError(
        f"a stream is joined with a table or a stream, not with a {type(other).__name__}. Read its topic with the "
        "builder."
    )
