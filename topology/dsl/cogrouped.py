"""`CogroupedKStream`: several grouped streams, each with its own aggregator, to be
aggregated into one table.

Relies on: `attach_aggregates` (what is stored, and under which names).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    TypeAlias,
    TypeVar,
    overload,
)

from coopstreams.topology.aggregate_rows import Named
from coopstreams.topology.aggregates import AggregateFunction
from coopstreams.topology.dsl.attach import Grouped
from coopstreams.topology.dsl.attach_aggregates import (
    Fold,
    Function,
    Kept,
    cogroup,
)
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.dsl.named_aggregates import finished, named, shared_rows
from coopstreams.topology.dsl.windowed import checked_windows, late_stream
from coopstreams.topology.durations import Duration
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    Windows,
)

if TYPE_CHECKING:
    from coopstreams.topology.dsl.grouped import (
        KGroupedStream,
    )  # a grouped stream begins a cogroup, and joins one
    from coopstreams.topology.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


Part: TypeAlias = tuple[Grouped, Function | Named]
"""A grouped stream, and its aggregator or its aggregates by name."""


class CogroupedKStream(Generic[K, A]):
    """Grouped streams with the same keys; a record of any of them updates the aggregate
    of its key.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    @overload
    def cogroup(
        self,
        group: KGroupedStream[K, V],
        aggregator: Callable[[K, V, A], A | None],
    ) -> CogroupedKStream[K, A]: ...
    @overload
    def cogroup(
        self,
        group: KGroupedStream[K, V],
        **aggregates: AggregateFunction,
    ) -> CogroupedKStream[K, A]: ...
    def cogroup(
        self,
        group: Any,
        aggregator: Any = None,
        **aggregates: Any,
    ) -> CogroupedKStream[K, A]:
        """Add another grouped stream, with its aggregator: `aggregator(key, value,
        aggregate)`; or with aggregates by name. Streams may share aggregates, as the
        count of all records.
        """
        from coopstreams.topology.dsl.grouped import KGroupedStream

        if not isinstance(group, KGroupedStream):
            raise TopologyError(
                f"cogroup() takes a grouped stream and its aggregator, not a {type(group).__name__}. A stream has "
                ".group_by_key() and .group_by(…)."
            )
        return CogroupedKStream(
            [
                *self._parts,
                (group._group, part_of(aggregator, aggregates)),
            ]
        )

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
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
    ) -> KTable[K, A]: ...
    def aggregate(
        self,
        initializer: Any = None,
        *,
        value: Any = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each key of all streams, starting from `initializer()`. A
        result of None deletes the row. Aggregates by name need neither an initializer
        nor a serde.
        """
        functions = {"initializer": initializer}
        return _aggregated(self._parts, None, functions, Kept(value, store, name))[0]

    @overload
    def windowed_by(
        self,
        windows: Windows | SlidingWindows,
    ) -> TimeWindowedCogroupedKStream[K, A]: ...
    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
    ) -> SessionWindowedCogroupedKStream[K, A]: ...
    def windowed_by(self, windows: Any) -> Any:
        """Cut the groups into windows of event time."""
        kind: Any = (
            SessionWindowedCogroupedKStream
            if isinstance(windows, SessionWindows)
            else TimeWindowedCogroupedKStream
        )
        return kind(self._parts, checked_windows(windows))


class _WindowedCogroupedKStream(Generic[K, A]):
    """The common part of cogrouped streams that are cut into windows or sessions."""

    __slots__ = ("_parts", "_taken", "_windows")

    def __init__(
        self,
        parts: list[Part],
        windows: AnyWindows,
    ) -> None:
        self._parts = parts
        self._windows = windows
        self._taken: list[Flow] = []

    def late(
        self,
        group: KGroupedStream[K, V],
        *,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Return the records of one of the grouped streams that are late for all of
        their windows.

        Raises:
            TopologyError: `aggregate` was not called yet, or `group` is not part of
            this cogroup.
        """
        numbers = [
            number
            for number, (part, _) in enumerate(self._parts)
            if part is getattr(group, "_group", None)
        ]
        if not numbers:
            raise TopologyError(
                "late(): give one of the grouped streams that are cogrouped here"
            )
        return late_stream(self._taken[numbers[0]] if self._taken else None, name)

    def _aggregated(
        self,
        functions: Mapping[str, Any],
        kept: Kept,
    ) -> KTable[Windowed[K], A]:
        table, taken = _aggregated(self._parts, self._windows, functions, kept)
        self._taken = self._taken or taken
        return table


class TimeWindowedCogroupedKStream(_WindowedCogroupedKStream[K, A]):
    """Several grouped streams, cut into windows."""

    __slots__ = ()

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
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
    ) -> KTable[Windowed[K], A]: ...
    def aggregate(
        self,
        initializer: Any = None,
        *,
        value: Any = None,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and window of all streams, starting from
        `initializer()`.

        A result of None deletes the row. Aggregates by name need neither an initializer
        nor a serde.
        """
        functions = {"initializer": initializer}
        return self._aggregated(functions, Kept(value, store, name, retention))


class SessionWindowedCogroupedKStream(_WindowedCogroupedKStream[K, A]):
    """Several grouped streams, cut into sessions."""

    __slots__ = ()

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
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
    ) -> KTable[Windowed[K], A]: ...
    def aggregate(
        self,
        initializer: Any = None,
        merger: Any = None,
        *,
        value: Any = None,
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and session of all streams; merged sessions
        become `merger(key, one, other)`. Aggregates by name need no functions and no
        serde.
        """
        functions = {"initializer": initializer, "merger": merger}
        return self._aggregated(functions, Kept(value, store, name, retention))


def part_of(
    aggregator: Function | None,
    aggregates: Mapping[str, Any],
) -> Function | Named:
    """Return what a stream adds to a cogroup: its aggregator, or aggregates by name.

    Raises:
        TopologyError: there are both or neither, or something is no aggregate.
    """
    given = named("cogroup", aggregates, {"aggregator": aggregator})
    if given is not None:
        return given
    assert aggregator is not None  # `named` has seen it
    return checked("cogroup", aggregator, "key", "value", "aggregate")


def _aggregated(
    parts: Sequence[Part],
    windows: AnyWindows | None,
    functions: Mapping[str, Any],
    kept: Kept,
) -> tuple[KTable[Any, Any], list[Flow]]:
    """Return the table of a cogroup, and for each stream the flow that reaches its
    aggregation.

    `functions`: the arguments of a call with functions, None if not given.

    Raises:
        TopologyError: some streams have aggregates by name and others do not, or
        arguments are missing or too many.
    """
    by_name = [(group, part) for group, part in parts if isinstance(part, Mapping)]
    by_function = [
        (group, part) for group, part in parts if not isinstance(part, Mapping)
    ]
    if by_name and by_function:
        raise TopologyError(
            "cogroup: some streams have aggregates by name, and others an aggregator. Give all of them the one or the "
            "other."
        )
    if by_function:
        return _by_functions(by_function, windows, functions, kept)
    for name, argument in {**functions, "value": kept.value}.items():
        if argument is not None:
            raise TopologyError(
                f"aggregate: the streams are cogrouped with aggregates by name, so it takes no {name}="
            )
    return _by_names(by_name, windows, kept)


def _by_functions(
    parts: Sequence[tuple[Grouped, Function]],
    windows: AnyWindows | None,
    functions: Mapping[str, Any],
    kept: Kept,
) -> tuple[KTable[Any, Any], list[Flow]]:
    named("aggregate", {}, functions)
    initializer = checked("aggregate", functions["initializer"])
    merger = functions.get("merger")
    if merger is not None:
        merger = checked("aggregate", merger, "key", "one", "other")
    fold = Fold("aggregate", initializer, None, merger)
    table, taken = cogroup(parts, windows, fold, kept)
    return KTable(table), taken


def _by_names(
    parts: Sequence[tuple[Grouped, Named]],
    windows: AnyWindows | None,
    kept: Kept,
) -> tuple[KTable[Any, Any], list[Flow]]:
    rows = shared_rows("cogroup", [part for _, part in parts])
    merger = rows.merge if isinstance(windows, SessionWindows) else None
    fold = Fold("aggregate", rows.initial, None, merger)
    folded = [(group, rows.folding(part)) for group, part in parts]
    table, taken = cogroup(folded, windows, fold, replace(kept, value=rows.serde))
    return KTable(finished(table, rows, kept.name)), taken
