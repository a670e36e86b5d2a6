"""The streams and tables that `group_by` returns, to be aggregated."""

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
from coopstreams.topology.dsl.cogrouped import CogroupedKStream
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
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

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each key: `aggregator(key, value, aggregate)`, starting
        from `initializer()`.

        A result of None deletes the row.
        """
        initializer = checked("aggregate", initializer)
        aggregator = checked("aggregate", aggregator, "key", "value", "aggregate")
        return KTable(
            aggregate(
                self._group,
                Fold("aggregate", initializer, aggregator),
                Kept(value, store, name),
            )
        )

    def cogroup(
        self,
        aggregator: Callable[[K, V, A], A | None],
    ) -> CogroupedKStream[K, A]:
        """Begin an aggregation of several grouped streams into one table.

        `aggregator(key, value, aggregate)` is the aggregator of this stream.
        """
        return CogroupedKStream(
            [(self._group, checked("cogroup", aggregator, "key", "value", "aggregate"))]
        )

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

    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A | None],
        subtractor: Callable[[K, V, A], A | None],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each group: `adder(key, value, aggregate)`,
        `subtractor(key, old_value, aggregate)`.

        The fold starts from `initializer()`. A result of None deletes the row.
        """
        arguments = ("key", "value", "aggregate")
        fold = Fold(
            "aggregate",
            checked("aggregate", initializer),
            checked("aggregate", adder, *arguments),
            None,
            checked("aggregate", subtractor, *arguments),
        )
        return KTable(aggregate_table(self._group, fold, Kept(value, store, name)))
