"""Grouped streams that are cut into windows or sessions, to be aggregated.

Relies on: `attach_aggregates` (what is stored, and under which names),
`graph.known_folds` (which folds have native rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from coopstreams.topology import serdes
from coopstreams.topology.aggregate_rows import rows_of
from coopstreams.topology.aggregates import AggregateFunction
from coopstreams.topology.compatibility.other_names import WINDOWED_STREAM, OtherNames
from coopstreams.topology.dsl.attach import Grouped, TableFlow, late
from coopstreams.topology.dsl.attach_aggregates import (
    MEAN,
    Fold,
    Kept,
    aggregate,
)
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.dsl.named_aggregates import finished, named
from coopstreams.topology.durations import Duration
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.graph.known_folds import mean_of, totals
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    Windows,
)

if TYPE_CHECKING:
    from coopstreams.topology.dsl.kstream import (
        KStream,
    )  # a stream is cut into windows, and `late` returns a stream

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

EmitStrategy: TypeAlias = Literal["on_window_update", "on_window_close"]


class _WindowedKStream(OtherNames, Generic[K, V]):
    """The common part of streams that are cut into windows or sessions."""

    __slots__ = ("_group", "_taken")

    _written = WINDOWED_STREAM

    def __init__(self, group: Grouped, taken: list[Flow] | None = None) -> None:
        """Hold a grouped stream. `taken`: the flows of records that reach the tables
        over these windows, with any emit strategy.
        """
        self._group = group
        self._taken = [] if taken is None else taken

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """Return the stream with another emit strategy.

        `on_window_update`, the default, forwards each update of a window or session.
        `on_window_close` forwards each window or session once, when it closes.

        Raises:
            TopologyError: there is no such strategy.
        """
        if strategy not in ("on_window_update", "on_window_close"):
            raise TopologyError(
                f'emit_strategy() takes "on_window_update" or "on_window_close", not {strategy!r}'
            )
        return type(self)(
            replace(self._group, emit_on_close=strategy == "on_window_close"),
            self._taken,
        )

    def count(
        self,
        *,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and window or session, as `serdes.int64`."""
        return KTable(
            self._kept(Fold("count"), Kept(serdes.int64, store, name, retention))
        )

    def mean(
        self: _WindowedKStream[K, int] | _WindowedKStream[K, float],
        *,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], float]:
        """Return the mean of the numbers of each key and window or session, as
        `serdes.float64`.

        The store has the total and the count of each. Null values are left out.
        """
        return means(self._kept(MEAN, Kept(totals, store, name, retention)), name)

    def reduce(
        self,
        reducer: Callable[[V, V], V | None],
        *,
        value: Serde[V] | None = None,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and window: the first value, then
        `reducer(aggregate, value)`.

        The reducer also merges sessions. A result of None deletes the row.
        """
        reducer = checked("reduce", reducer, "aggregate", "value")
        return KTable(
            self._kept(
                Fold("reduce", None, reducer),
                Kept(value, store, name, retention),
            )
        )

    def late(self, *, name: str | None = None) -> KStream[K, V]:
        """Return the records that are late for all of their windows or sessions,
        unchanged.

        Each comes once, with its own key, value, timestamp and headers. It is still
        counted as dropped.

        Raises:
            TopologyError: there is no table over these windows yet. Call `count`,
            `reduce` or `aggregate` first.
        """
        return late_stream(self._taken[0] if self._taken else None, name)

    def _named(
        self,
        aggregates: Mapping[str, Any],
        functions: Mapping[str, Any],
        store: str | Materialized | None,
        retention: Duration | None,
        name: str | None,
    ) -> KTable[Windowed[K], dict[str, Any]] | None:
        """Return the table of several aggregates; None: the call has functions
        instead.
        """
        options = {"store": store, "retention": retention, "name": name}
        given = named("aggregate", aggregates, functions, **options)
        if given is None:
            return None
        rows = rows_of(given)
        sessions = isinstance(self._group.windows, SessionWindows)
        merger = rows.merge if sessions else None
        fold = Fold("aggregate", rows.initial, rows.folding(given), merger)
        table = self._kept(fold, Kept(rows.serde, store, name, retention))
        return KTable(finished(table, rows, name))

    def _kept(self, fold: Fold, kept: Kept) -> TableFlow:
        table = aggregate(self._group, fold, kept)
        if table.taken is not None:
            # all tables over these windows have the same late records
            self._taken.append(table.taken)
        return table


class TimeWindowedKStream(_WindowedKStream[K, V]):
    """The records of a stream, grouped by key and window.

    A closed window (end + grace <= stream time) drops late records.

    `retention=`: how long a window can be read, counted in stream time from its start;
    by default size + grace. Records with a null value are aggregated, too, as in Kafka
    Streams: the aggregator gets None. Sliding windows drop them.
    """

    __slots__ = ()

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]: ...
    @overload
    def aggregate(
        self,
        *,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], dict[str, Any]]: ...
    def aggregate(
        self,
        initializer: Any = None,
        aggregator: Any = None,
        *,
        value: Any = None,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
        **aggregates: Any,
    ) -> Any:
        """Fold the values of each key and window: `aggregator(key, value, aggregate)`,
        starting from `initializer()`. Or compute several aggregates:
        `aggregate(n=count(), total=sum_("amount"))`.

        A result of None deletes the row. Rows with aggregates by name are dicts of
        these.
        """
        functions = {
            "initializer": initializer,
            "aggregator": aggregator,
            "value": value,
        }
        table = self._named(aggregates, functions, store, retention, name)
        if table is not None:
            return table
        initializer = checked("aggregate", initializer)
        aggregator = checked("aggregate", aggregator, "key", "value", "aggregate")
        return KTable(
            self._kept(
                Fold("aggregate", initializer, aggregator),
                Kept(value, store, name, retention),
            )
        )


class SessionWindowedKStream(_WindowedKStream[K, V]):
    """The records of a stream, grouped by key and session.

    A closed session (end + gap + grace < stream time) drops late records. A record
    within the gap of several sessions merges them: these sessions are deleted, and the
    merged session is forwarded with its end as timestamp. `retention=`: how long a
    session can be read, counted in stream time from its end; by default gap + grace.
    """

    __slots__ = ()

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        merger: Callable[[K, A, A], A],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]: ...
    @overload
    def aggregate(
        self,
        *,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
        **aggregates: AggregateFunction,
    ) -> KTable[Windowed[K], dict[str, Any]]: ...
    def aggregate(
        self,
        initializer: Any = None,
        aggregator: Any = None,
        merger: Any = None,
        *,
        value: Any = None,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
        **aggregates: Any,
    ) -> Any:
        """Fold the values of each key and session: `aggregator(key, value, aggregate)`,
        starting from `initializer()`. Or compute several aggregates:
        `aggregate(n=count(), total=sum_("amount"))`.

        Merged sessions become `merger(key, one_aggregate, other_aggregate)`. A result
        of None deletes the row. Rows with aggregates by name are dicts of these.
        """
        functions = {
            "initializer": initializer,
            "aggregator": aggregator,
            "merger": merger,
            "value": value,
        }
        table = self._named(aggregates, functions, store, retention, name)
        if table is not None:
            return table
        initializer = checked("aggregate", initializer)
        aggregator = checked("aggregate", aggregator, "key", "value", "aggregate")
        merger = checked("aggregate", merger, "key", "one", "other")
        return KTable(
            self._kept(
                Fold("aggregate", initializer, aggregator, merger),
                Kept(value, store, name, retention),
            )
        )


def checked_windows(windows: AnyWindows) -> AnyWindows:
    """Return the argument of `windowed_by`, which must be windows.

    Raises:
        TopologyError: the argument is not windows.
    """
    if not isinstance(windows, Windows | SlidingWindows | SessionWindows):
        raise TopologyError(
            f"windowed_by() needs windows such as TimeWindows(hours=1), not {windows!r}"
        )
    return windows


def means(rows: TableFlow, name: str | None) -> KTable[Any, float]:
    """Return the table of means: a view that divides the totals by the counts in
    `rows`.
    """
    return KTable(rows).map_values(
        mean_of,
        value=serdes.float64,
        name=None if name is None else f"{name}-mean",
    )


def late_stream(taken: Flow | None, name: str | None) -> KStream[Any, Any]:
    """Return the late records of a table, from the flow that it takes in.

    Raises:
        TopologyError: there is no table yet, or the values of the records were lost in
        a repartition topic.
    """
    from coopstreams.topology.dsl.kstream import KStream

    if taken is None:
        raise TopologyError(
            "late(): nothing is dropped before there is a table. Call count(…), reduce(…) or aggregate(…) on these "
            "windows first."
        )
    return KStream(late(taken, name))
