"""Attaches aggregations: of streams, with or without windows, of several streams
(cogroup), and of tables.

Invariant: a store has the serdes with which it is written, and keeps windows at least
as long as they take records.
Relies on: `naming`: each name that is taken is a number, and the order in which they are
taken here is Kafka Streams'. Another order renames stores and topics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from coopstreams.topology.dsl.attach import Grouped, TableFlow
from coopstreams.topology.dsl.attach_views import ask_for_old_values
from coopstreams.topology.dsl.materialized import (
    FOLLOWS_TABLES,
    StoreOption,
    kept_as,
    name_of,
)
from coopstreams.topology.dsl.repartition import keyed
from coopstreams.topology.durations import Duration, duration_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import (
    CogroupMerge,
    TableAggregate,
    TableGroup,
)
from coopstreams.topology.graph.graph import Flow, serde_or_none
from coopstreams.topology.graph.known_folds import no_row, of_both, with_number
from coopstreams.topology.graph.nodes import Aggregate
from coopstreams.topology.serdes import (
    Serde,
    changed,
    session_windowed,
    windowed_by,
    windowed_ms,
)
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
)

Function = Callable[..., Any]

_CURE = "the group_by_key(…) or group_by(…) before it"
_WINDOWS_EXPIRE = (
    "windows expire by themselves; retention= says how long they are kept."
)
_AGES_MS = 1 << 62
"""The retention of a window without an end."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The functions with which an aggregation folds records, each None if it has none:
    see `nodes.Aggregate`. `method`: the DSL method that was called, for error messages.
    `subtractor`: removes an old value, when a table is aggregated.
    """

    method: str
    initializer: Function | None = None
    aggregator: Function | None = None
    merger: Function | None = None
    subtractor: Function | None = None


MEAN = Fold("mean", no_row, with_number, of_both)
"""The functions of a mean. Its rows are totals and counts, which `known_folds.mean_of`
divides.
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """The user's options for the resulting table: serde, store, name and retention;
    None if not given.
    """

    value: Serde[Any] | None = None
    store: StoreOption = None
    name: str | None = None
    retention: Duration | None = None


def aggregate(
    group: Grouped,
    fold: Fold,
    kept: Kept,
) -> TableFlow:
    """Return the table that a count, mean, reduce or aggregate of a grouped stream
    makes.

    Raises:
        TopologyError: a serde is missing, a name is taken or not legal, or the
        retention is too short for the windows.
    """
    graph = group.flow.graph
    prefix = "KSTREAM-REDUCE-" if fold.method == "reduce" else "KSTREAM-AGGREGATE-"
    store_name = graph.names.store(prefix, name_of(kept.store))
    node_name = graph.names.node(prefix, kept.name)
    where = f'{fold.method} into "{store_name}"'
    flow = keyed(
        group.flow,
        group.name or store_name,
        where,
        cure=_CURE,
        named=group.name is not None,
        values=fold.method != "count",
    )
    value = serde_or_none(kept.value, "value", where) or flow.needed("value", where)
    spec = kept_as(
        kept.store,
        _spec(
            store_name,
            flow.needed("key", where, _CURE),
            value,
            group.windows,
            kept.retention,
            where,
        ),
        no_ttl=None if group.windows is None else _WINDOWS_EXPIRE,
    )
    if (
        group.emit_on_close
        and spec.kind == "session"
        and kept.retention is None
        and spec.retention_ms is not None
    ):
        spec = replace(
            spec,
            retention_ms=spec.retention_ms + 1,
        )  # a session's end is inclusive: Kafka Streams expires it as it closes, and loses it
    graph.needed_stores.add(store_name)
    graph.attach(
        Aggregate(
            name=node_name,
            parents=(flow.node,),
            store=spec,
            initializer=fold.initializer,
            aggregator=fold.aggregator,
            windows=group.windows,
            merger=fold.merger,
            emit_on_close=group.emit_on_close,
        )
    )
    return TableFlow(
        Flow(graph, node_name, spec.row_key or spec.key, value),
        spec,
        replace(flow, node=node_name),
    )


def cogroup(
    parts: Sequence[tuple[Grouped, Function]],
    windows: AnyWindows | None,
    fold: Fold,
    kept: Kept,
) -> tuple[TableFlow, list[Flow]]:
    """Return the table of several grouped streams, each with its own aggregator, and
    for each stream the flow that reaches its aggregation.

    Raises:
        TopologyError: as `aggregate`; or there is no serde for the aggregates, the
        streams have different key serdes, or are of two builders.
    """
    first = parts[0][0].flow
    graph = first.graph
    store_name = graph.names.store("COGROUPKSTREAM-AGGREGATE-", name_of(kept.store))
    where = f'cogroup into "{store_name}"'
    value = serde_or_none(kept.value, "value", where)
    if value is None:
        raise TopologyError(
            f"{where}: how do the aggregates become bytes? Write value=serdes.… there."
        )
    spec: StoreSpec | None = None
    taken: list[Flow] = []
    for number, (group, aggregator) in enumerate(parts):
        first.same_graph(group.flow, where)
        name = group.name or (store_name if number == 0 else f"{store_name}-{number}")
        flow = keyed(group.flow, name, where, cure=_CURE, named=group.name is not None)
        key = flow.needed("key", where, _CURE)
        spec = spec or kept_as(
            kept.store,
            _spec(store_name, key, value, windows, kept.retention, where),
            no_ttl=None if windows is None else _WINDOWS_EXPIRE,
        )
        if key != spec.key:
            raise TopologyError(
                f"{where}: keys are written as {spec.key} and as {key}, so equal keys have different bytes. Use one "
                "serde for all."
            )
        node = graph.names.node(
            "COGROUPKSTREAM-AGGREGATE-",
            None if kept.name is None else f"{kept.name}-cogroup-agg-{number}",
        )
        make = Aggregate(
            name=node,
            parents=(flow.node,),
            store=spec,
            initializer=fold.initializer,
            aggregator=aggregator,
            windows=windows,
            merger=fold.merger,
            cogrouped=True,
        )
        taken.append(replace(flow, node=graph.attach(make)))
    assert spec is not None
    graph.needed_stores.add(store_name)
    merge = graph.names.node("COGROUPKSTREAM-MERGE-", kept.name)
    graph.attach(
        CogroupMerge(name=merge, parents=tuple(flow.node for flow in taken), store=spec)
    )
    return TableFlow(Flow(graph, merge, spec.row_key or spec.key, value), spec), taken


def group_table(
    table: TableFlow,
    mapper: Function,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    name: str | None,
) -> Grouped:
    """Return the flow of a table's updates under other keys: pairs of new and old
    values, to be aggregated.

    Raises:
        TopologyError: something else than a serde was given.
    """
    graph = table.flow.graph
    ask_for_old_values(graph, table.flow.node, force=True)
    flow = table.flow.then("KTABLE-SELECT-", name, partial(TableGroup, mapper=mapper))
    return Grouped(flow.with_key(key, "group_by").with_value(value, "group_by"), name)


def aggregate_table(
    group: Grouped,
    fold: Fold,
    kept: Kept,
) -> TableFlow:
    """Return the table of a count, reduce or aggregate of another table's rows.

    Raises:
        TopologyError: a serde is missing, or a name is taken or not legal.
    """
    graph = group.flow.graph
    prefix = "KTABLE-REDUCE-" if fold.method == "reduce" else "KTABLE-AGGREGATE-"
    store_name = graph.names.store(prefix, name_of(kept.store))
    node_name = graph.names.node(prefix, kept.name)
    where = f'{fold.method} into "{store_name}"'
    cure = "the group_by(…) before it"
    grouped_value = group.flow.needed("value", where, cure)
    pairs = replace(group.flow, value=changed(grouped_value))
    flow = keyed(
        pairs,
        group.name or store_name,
        where,
        cure=cure,
        named=group.name is not None,
    )
    value = serde_or_none(kept.value, "value", where) or grouped_value
    spec = kept_as(
        kept.store,
        StoreSpec(store_name, "key_value", flow.needed("key", where, cure), value),
        no_ttl=FOLLOWS_TABLES,
    )
    graph.needed_stores.add(store_name)
    graph.attach(
        TableAggregate(
            name=node_name,
            parents=(flow.node,),
            store=spec,
            initializer=fold.initializer,
            adder=fold.aggregator,
            subtractor=fold.subtractor,
        )
    )
    return TableFlow(Flow(graph, node_name, spec.key, value), spec)


def _spec(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    windows: AnyWindows | None,
    retention: Duration | None,
    where: str,
) -> StoreSpec:
    """Return the store of an aggregation, with or without windows."""
    spec = StoreSpec(name, "key_value", key, value)
    if windows is None:
        return spec
    least = _least_retention_ms(windows)
    spec = replace(
        spec,
        kind="window",
        retention_ms=_retention_ms(least, retention, where),
    )
    if isinstance(windows, SessionWindows):
        return replace(spec, kind="session", row_key=session_windowed(key), step_ms=1)
    if isinstance(windows, SlidingWindows):
        length = windows.difference_ms
        return replace(
            spec,
            window_ms=length,
            row_key=windowed_ms(key, length),
            step_ms=1,
            lag_ms=length,
        )
    if isinstance(windows, TimeWindows):
        return replace(
            spec,
            window_ms=windows.size_ms,
            row_key=windowed_ms(key, windows.size_ms),
            step_ms=windows.advance_ms,
        )
    return replace(spec, row_key=windowed_by(key, windows))


def _least_retention_ms(windows: AnyWindows) -> int:
    """Return how long a window takes records, counted from its start; for sessions,
    from their end.
    """
    if isinstance(windows, SessionWindows):
        return windows.gap_ms + windows.grace_ms
    if isinstance(windows, SlidingWindows):
        return 2 * windows.difference_ms + windows.grace_ms
    return min(windows.size_ms + windows.grace_ms, _AGES_MS)


def _retention_ms(
    least: int,
    retention: Duration | None,
    where: str,
) -> int:
    if retention is None:
        return least
    retention_ms = duration_ms(retention, f"{where}: retention")
    if retention_ms < least:
        raise TopologyError(
            f"{where}: a retention of {retention_ms} ms loses windows that still take records. Give at least size + "
            f"grace, {least} ms, or nothing."
        )
    return retention_ms
