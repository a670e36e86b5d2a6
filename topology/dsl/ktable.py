"""`KTable`: the latest value of each key.

Its views (`filter`, `map_values`) have no store: a look-up applies them to the rows of
the store upstream.

Relies on: `attach_views` (stores and old values), `attach_joins`, `attach_aggregates`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    TypeVar,
    overload,
)

from coopstreams.topology.compatibility.other_names import TABLE, OtherNames
from coopstreams.topology.dsl.attach import TableFlow, late
from coopstreams.topology.dsl.attach_aggregates import group_table
from coopstreams.topology.dsl.attach_joins import join_tables, joined_tables
from coopstreams.topology.dsl.attach_views import filter_rows, map_rows, suppress
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import ToStream
from coopstreams.topology.serdes import Serde
from coopstreams.topology.suppression import Suppressed

if TYPE_CHECKING:
    from coopstreams.topology.dsl.grouped import (
        KGroupedTable,
    )  # a table is grouped and a group becomes a table
    from coopstreams.topology.dsl.kstream import (
        KStream,
    )  # a stream joins tables and a table becomes a stream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO = TypeVar("VO")


class KTable(OtherNames, Generic[K, V]):
    """A table with keys K and values V, made by `StreamsBuilder.table` or by an
    aggregation.

    Raises (each operator, while the topology is built):
        TopologyError: as an operator of `KStream`; or two stores have one name.
    """

    __slots__ = ("_table",)

    _written = TABLE

    def __init__(self, table: TableFlow) -> None:
        self._table = table

    def filter(
        self,
        predicate: Callable[[K, V], bool],
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Keep the rows for which `predicate(key, value)` is true, and delete the
        others from the view.

        `store=` materialises the view under that name.
        """
        return KTable(
            filter_rows(
                self._table,
                checked("filter", predicate, "key", "value"),
                store,
                name,
                negate=False,
            )
        )

    def filter_not(
        self,
        predicate: Callable[[K, V], bool],
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Keep the rows for which `predicate(key, value)` is false, and delete the
        others from the view.

        `store=` materialises the view under that name.
        """
        return KTable(
            filter_rows(
                self._table,
                checked("filter_not", predicate, "key", "value"),
                store,
                name,
                negate=True,
            )
        )

    def map_values(
        self,
        mapper: Callable[[V], V2],
        *,
        value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """Replace each value by `mapper(value)`. Tombstones are not mapped.

        `store=` materialises the view under that name.
        """
        return KTable(
            map_rows(
                self._table,
                checked("map_values", mapper, "value"),
                value,
                store,
                name,
                with_key=False,
            )
        )

    def map_values_with_key(
        self,
        mapper: Callable[[K, V], V2],
        *,
        value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """Replace each value by `mapper(key, value)`. Tombstones are not mapped.

        `store=` materialises the view under that name.
        """
        return KTable(
            map_rows(
                self._table,
                checked("map_values_with_key", mapper, "key", "value"),
                value,
                store,
                name,
                with_key=True,
            )
        )

    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], V2 | None],
        *,
        value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    @overload
    def join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO], V2 | None],
        *,
        foreign_key: Callable[[V], K2 | None],
        value: Serde[V2],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    @overload
    def join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO], V2 | None],
        *,
        foreign_key_with_key: Callable[[K, V], K2 | None],
        value: Serde[V2],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    def join(self, other: Any, joiner: Any, **options: Any) -> Any:
        """Join the rows of two tables by key: `joiner(value, other_value)`. Either
        table's updates update the result.

        A row exists while both tables have one. If the joiner returns None, the row is
        deleted. With `foreign_key=(value)` or `foreign_key_with_key=(key, value)`, each
        row is joined with the row of the other table that it names.

        `store=` materialises the result under that name, for queries.
        """
        return KTable(
            joined_tables(
                self._table,
                _table_of(other),
                joiner,
                kind="inner",
                **options,
            )
        )

    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], V2 | None],
        *,
        value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO | None], V2 | None],
        *,
        foreign_key: Callable[[V], K2 | None],
        value: Serde[V2],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    @overload
    def left_join(
        self,
        other: KTable[K2, VO],
        joiner: Callable[[V, VO | None], V2 | None],
        *,
        foreign_key_with_key: Callable[[K, V], K2 | None],
        value: Serde[V2],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    def left_join(self, other: Any, joiner: Any, **options: Any) -> Any:
        """Join each row as `join` does, with None if the other table has no row."""
        return KTable(
            joined_tables(self._table, _table_of(other), joiner, kind="left", **options)
        )

    def outer_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V | None, VO | None], V2 | None],
        *,
        value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V2]:
        """Join the rows of both tables, with None for a missing row. A row exists while
        either table has one.
        """
        return KTable(
            join_tables(
                self._table,
                _table_of(other),
                joiner,
                value,
                store,
                name,
                kind="outer",
            )
        )

    def group_by(
        self,
        mapper: Callable[[K, V], tuple[K2 | None, V2 | None]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KGroupedTable[K2, V2]:
        """Group the rows by the key of the pair `mapper(key, value)`, through a
        repartition topic.

        A pair with a None key or value is in no group.
        """
        from coopstreams.topology.dsl.grouped import KGroupedTable

        return KGroupedTable(
            group_table(
                self._table,
                checked("group_by", mapper, "key", "value"),
                key,
                value,
                name,
            )
        )

    def suppress(self, until: Suppressed, *, name: str | None = None) -> KTable[K, V]:
        """Hold back updates: `until_window_closes()` or `until_time_limit(...)`. Only
        the latest update of a row is forwarded.
        """
        return KTable(suppress(self._table, until, name))

    def to_stream(self, *, name: str | None = None) -> KStream[K, V]:
        """Return the table's updates as a stream; a deletion is a record with a null
        value.

        The keys of a windowed table have other bytes than the keys that chose the
        partition, so a keyed operator below repartitions the records.
        """
        from coopstreams.topology.dsl.kstream import KStream

        flow = self._table.flow.then("KTABLE-TOSTREAM-", name, ToStream)
        return KStream(replace(flow, rekeyed=self._table.is_windowed))

    def late(self, *, name: str | None = None) -> KStream[K, V]:
        """Return the late records of a table with `history=`, unchanged.

        Each comes once, with its own key, value, timestamp and headers. It is still
        counted as dropped.

        Raises:
            TopologyError: the table has no `history=`, so it drops no late records. For
                windowed tables, call `late()` of the windowed stream.
        """
        from coopstreams.topology.dsl.kstream import KStream

        if self._table.taken is None or self._table.store.history_ms is None:
            raise TopologyError(
                f'late(): "{self._table.flow.node}" is not a table with history=. For windows: windowed = '
                "….windowed_by(…), and windowed.late() "
                "beside windowed.count()."
            )
        return KStream(late(self._table.taken, name))


def _table_of(other: object) -> TableFlow:
    if isinstance(other, KTable):
        return other._table
    raise TopologyError(
        f"a table is joined with a table, not with a {type(other).__name__}. A stream has .to_table() or an "
        "aggregation."
    )
