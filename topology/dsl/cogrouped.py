"""`CogroupedKStream`: several grouped streams, each with its own aggregator, to be
aggregated into one table.
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


class CogroupedKStream(Generic[K, A]):
    """Grouped streams with the same keys; a record of any of them updates the aggregate
    of its key.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: list[tuple[Grouped, Function]]) -> None:
        self._parts = parts

    def cogroup(
        self,
        group: KGroupedStream[K, V],
        aggregator: Callable[[K, V, A], A | None],
    ) -> CogroupedKStream[K, A]:
        """Add another grouped stream, with its aggregator: `aggregator(key, value,
        aggregate)`.
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
                (
                    group._group,
                    checked("cogroup", aggregator, "key", "value", "aggregate"),
                ),
            ]
        )

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each key of all streams, starting from `initializer()`. A
        result of None deletes the row.
        """
        fold = Fold("aggregate", checked("aggregate", initializer))
        return KTable(cogroup(self._parts, None, fold, Kept(value, store, name))[0])

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
        parts: list[tuple[Grouped, Function]],
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

    def _aggregated(self, fold: Fold, kept: Kept) -> KTable[Windowed[K], A]:
        table, taken = cogroup(self._parts, self._windows, fold, kept)
        self._taken = self._taken or taken
        return KTable(table)


class TimeWindowedCogroupedKStream(_WindowedCogroupedKStream[K, A]):
    """Several grouped streams, cut into windows."""

    __slots__ = ()

    def aggregate(
        self,
        initializer: Callable[[], A],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and window of all streams, starting from
        `initializer()`.

        A result of None deletes the row.
        """
        fold = Fold("aggregate", checked("aggregate", initializer))
        return self._aggregated(fold, Kept(value, store, name, retention))


class SessionWindowedCogroupedKStream(_WindowedCogroupedKStream[K, A]):
    """Several grouped streams, cut into sessions."""

    __slots__ = ()

    def aggregate(
        self,
        initializer: Callable[[], A],
        merger: Callable[[K, A, A], A],
        *,
        value: Serde[A],
        store: str | Materialized | None = None,
        retention: Duration | None = None,
        name: str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and session of all streams; merged sessions
        become `merger(key, one, other)`.
        """
        fold = Fold(
            "aggregate",
            checked("aggregate", initializer),
            None,
            checked("aggregate", merger, "key", "one", "other"),
        )
        return self._aggregated(fold, Kept(value, store, name, retention))
