"""The streams and tables that `group_by` returns, to be aggregated.

Relies on: `attach_aggregates` (what is stored, and under which names), `repartition`
(when keys have changed).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import (
    Any,
    Generic,
    TypeVar,
    overload,
)

from coopstreams.topology import serdes
from coopstreams.topology.aggregate_rows import rows_of
from coopstreams.topology.aggregates import AggregateFunction
from coopstreams.topology.compatibility.other_names import (
    GROUPED_STREAM,
    GROUPED_TABLE,
    OtherNames,
)
from coopstreams.topology.dsl.attach import Grouped
from coopstreams.topology.dsl.attach_aggregates import (
    MEAN,
    Fold,
    Kept,
    aggregate,
    aggregate_table,
)
from coopstreams.topology.dsl.cogrouped import CogroupedKStream, part_of
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.dsl.named_aggregates import finished, named, of_table
from coopstreams.topology.dsl.windowed import (
    SessionWindowedKStream,
    TimeWindowedKStream,
    checked_windows,
    means,
)
from coopstreams.topology.graph.known_folds import totals
from coopstreams.topology.serdes import Serde
from coopstreams.topology.windows import SessionWindows, SlidingWindows, Windows

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class KGroupedStream(OtherNames, Generic[K, V]):
    """A stream grouped by key.

    `store=` names the store of the resulting table, its changelog, and the repartition
    topic if one is needed. Records without a key or a value are dropped.
    """

    __slots__ = ("_group",)

    _written = GROUPED_STREAM

    def __init__(self, group: Grouped) -> None:
        self._group = group

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, int]:
        """Count the records of each key, as `serdes.int64`."""
        return KTable(
            aggregate(self._group, Fold("count"), Kept(serdes.int64, store, name))
        )

    def mean(
        self: KGroupedStream[K, int] | KGroupedStream[K, float],
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, float]:
        """Return the mean of the numbers of each key, as `serdes.float64`. The store
        has the total and the count of each key.
        """
        return means(aggregate(self._group, MEAN, Kept(totals, store, name)), name)

    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        *,
        value: Serde[V] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each key: the first value, then `reducer(aggregate,
        value)`. A result of None deletes the row.
        """
        reducer = checked("reduce", reducer, "aggregate", "value")
        return KTable(
            aggregate(
                self._group,
                Fold("reduce", None, reducer),
                Kept(value, store, name),
            )
        )

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, A]: ...
    @overload
    def aggregate(
        self,
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[K, dict[str, Any]]: ...
    def aggregate(
        self,
        initializer: Any = None,
        aggregator: Any = None,
        *,
        value: Any = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        **aggregates: Any,
    ) -> Any:
        """Fold the values of each key: `aggregator(key, value, aggregate)`, starting
        from `initializer()`. Or compute several aggregates: `aggregate(n=count(),
        total=sum_("amount"))`.

        A result of None deletes the row. Rows with aggregates by name are dicts of
        these.
        """
        functions = {
            "initializer": initializer,
            "aggregator": aggregator,
            "value": value,
        }
        given = named("aggregate", aggregates, functions, store=store, name=name)
        if given is not None:
            rows = rows_of(given)
            fold = Fold("aggregate", rows.initial, rows.folding(given))
            table = aggregate(self._group, fold, Kept(rows.serde, store, name))
            return KTable(finished(table, rows, name))
        initializer = checked("aggregate", initializer)
        aggregator = checked("aggregate", aggregator, "key", "value", "aggregate")
        return KTable(
            aggregate(
                self._group,
                Fold("aggregate", initializer, aggregator),
                Kept(value, store, name),
            )
        )

    @overload
    def cogroup(
        self,
        aggregator: Callable[[K, V, A], A | None],
    ) -> CogroupedKStream[K, A]: ...
    @overload
    def cogroup(
        self,
        **aggregates: AggregateFunction,
    ) -> CogroupedKStream[K, dict[str, Any]]: ...
    def cogroup(self, aggregator: Any = None, **aggregates: Any) -> Any:
        """Begin an aggregation of several grouped streams into one table.

        `aggregator(key, value, aggregate)` is the aggregator of this stream. With
        aggregates by name, as `cogroup(orders=count())`, each stream has some of the
        table's.
        """
        return CogroupedKStream([(self._group, part_of(aggregator, aggregates))])

    @overload
    def windowed_by(
        self,
        windows: Windows | SlidingWindows,
    ) -> TimeWindowedKStream[K, V]: ...
    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...
    def windowed_by(self, windows: Any) -> Any:
        """Cut each group into windows of event time."""
        group = replace(self._group, windows=checked_windows(windows))
        return (
            SessionWindowedKStream(group)
            if isinstance(windows, SessionWindows)
            else TimeWindowedKStream(group)
        )


class KGroupedTable(OtherNames, Generic[K, V]):
    """A table grouped by new keys.

    When a row changes, its old value is subtracted from its group and the new one
    added.

    `store=` names the store of the resulting table, its changelog, and the repartition
    topic.
    """

    __slots__ = ("_group",)

    _written = GROUPED_TABLE

    def __init__(self, group: Grouped) -> None:
        self._group = group

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, int]:
        """Count the rows of each group, as `serdes.int64`."""
        return KTable(
            aggregate_table(self._group, Fold("count"), Kept(serdes.int64, store, name))
        )

    def reduce(
        self,
        adder: Callable[[V, V], V | None],
        subtractor: Callable[[V, V], V | None],
        *,
        value: Serde[V] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each group: `adder(aggregate, value)`,
        `subtractor(aggregate, old_value)`.

        A result of None deletes the row.
        """
        fold = Fold(
            "reduce",
            None,
            checked("reduce", adder, "aggregate", "value"),
            None,
            checked("reduce", subtractor, "aggregate", "value"),
        )
        return KTable(aggregate_table(self._group, fold, Kept(value, store, name)))

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A | None],
        subtractor: Callable[[K, V, A], A | None],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, A]: ...
    @overload
    def aggregate(
        self,
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[K, dict[str, Any]]: ...
    def aggregate(
        self,
        initializer: Any = None,
        adder: Any = None,
        subtractor: Any = None,
        *,
        value: Any = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        **aggregates: Any,
    ) -> Any:
        """Fold the values of each group: `adder(key, value, aggregate)`,
        `subtractor(key, old_value, aggregate)`. Or compute several aggregates:
        `aggregate(n=count(), total=sum_("amount"))`.

        The fold starts from `initializer()`. A result of None deletes the row. Rows
        with aggregates by name are dicts of these.
        """
        functions = {
            "initializer": initializer,
            "adder": adder,
            "subtractor": subtractor,
            "value": value,
        }
        given = named("aggregate", aggregates, functions, store=store, name=name)
        if given is not None:
            given = of_table("aggregate", given)
            rows = rows_of(given)
            fold = Fold(
                "aggregate",
                rows.initial,
                rows.folding(given),
                None,
                rows.subtracting(given),
            )
            table = aggregate_table(self._group, fold, Kept(rows.serde, store, name))
            return KTable(finished(table, rows, name))
        arguments = ("key", "value", "aggregate")
        fold = Fold(
            "aggregate",
            checked("aggregate", initializer),
            checked("aggregate", adder, *arguments),
            None,
            checked("aggregate", subtractor, *arguments),
        )
        return KTable(aggregate_table(self._group, fold, Kept(value, store, name)))
