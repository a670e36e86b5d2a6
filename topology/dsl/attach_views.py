"""Attaches views of a table (filtered, mapped, suppressed), and decides which tables
forward the old value.

A view has no store unless `store=` names one: look-ups compute its rows from those of
its parent.

An old value costs a look-up, or a store if there is none, so a table forwards it only
if an operator below needs it: an aggregation of a table (it subtracts the old row), a
left or outer join, or a filter (neither of these forwards a deletion of a row that it
never forwarded). A filter asks for old values only if the table upstream has a store
when the filter is attached.

Invariant: a node that forwards old values gets them from each parent it needs them
from, and the stores upstream of them exist.
Invariant: the window of a row, and when it closes, are those of the aggregation
upstream; views do not change them.
Source: Kafka Streams `KTableImpl.doFilter`, `doMapValues`, `enableSendOldValues`,
`KTableSource`, `KTableFilter`, `KTableKTableAbstractJoin`.
Relies on: `naming`: each name that is taken is a number, and the order in which they are
taken here is Kafka Streams'. Another order renames stores and topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.materialized import (
    FOLLOWS_TABLES,
    StoreOption,
    kept_as,
    name_of,
)
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import CogroupMerge, Suppress
from coopstreams.topology.graph.graph import Flow, Graph
from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Filter,
    Function,
    MapValues,
    Node,
    TableSource,
)
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.suppression import Suppressed, held
from coopstreams.topology.windows import AnyWindows, SessionWindows


def filter_rows(
    table: TableFlow,
    predicate: Function,
    store: StoreOption,
    name: str | None,
    *,
    negate: bool,
) -> TableFlow:
    """Return the table of the rows that a predicate keeps.

    With old values, the filter forwards no deletion of a row that it never forwarded.

    Raises:
        TopologyError: a name is taken or not legal, or a store's serde is missing.
    """
    graph = table.flow.graph
    above = table.flow.node
    made = _attached(
        table,
        "KTABLE-FILTER-",
        name,
        store,
        partial(Filter, predicate=predicate, negate=negate, table=True),
    )
    if ask_for_old_values(graph, above, force=False):
        graph.sending_old.add(made.flow.node)
    return made


def map_rows(
    table: TableFlow,
    mapper: Function,
    value: Serde[Any] | None,
    store: StoreOption,
    name: str | None,
    *,
    with_key: bool,
) -> TableFlow:
    """Return the table with new values.

    Raises:
        TopologyError: a name is taken or not legal, or a store's serde is missing.
    """
    method = "map_values_with_key" if with_key else "map_values"
    make = partial(MapValues, mapper=mapper, with_key=with_key, table=True)
    return _attached(
        table,
        "KTABLE-MAPVALUES-",
        name,
        store,
        make,
        lambda flow: flow.with_value(value, method),
    )


def _attached(
    table: TableFlow,
    prefix: str,
    name: str | None,
    store: StoreOption,
    make: Callable[..., Node],
    known: Callable[[Flow], Flow] = lambda flow: flow,
) -> TableFlow:
    """Return the table of a new node; `known` updates the serdes of its flow."""
    graph = table.flow.graph
    flow = known(replace(table.flow, node=graph.names.node(prefix, name)))
    spec: StoreSpec | None = None
    if store is not None:
        store_name = graph.names.store(prefix, name_of(store))
        if table.is_windowed and _is_suppressed(graph, table.flow.node):
            raise TopologyError(
                f'the table "{store_name}": suppressed windows come when they expire, and cannot be kept. Filter them '
                "before suppress()."
            )
        value = flow.needed("value", f'the table "{store_name}"')
        spec = kept_as(store, table.kept(store_name, value), no_ttl=FOLLOWS_TABLES)
        graph.needed_stores.add(store_name)
    graph.attach(make(name=flow.node, parents=(table.flow.node,), store=spec))
    return TableFlow(flow, spec or table.store)


def _is_suppressed(graph: Graph, name: str) -> bool:
    """Whether a table is a suppressed one, or a view of such a table."""
    node = graph.nodes[name]
    view = isinstance(node, Filter | MapValues) and node.store is None
    return isinstance(node, Suppress) or (
        view and _is_suppressed(graph, node.parents[0])
    )


def suppress(
    table: TableFlow,
    until: Suppressed,
    name: str | None,
) -> TableFlow:
    """Return the table with its updates held back.

    Raises:
        TopologyError: the table has no windows that could close, a serde is missing, or
        a name is taken or not legal.
    """
    if not isinstance(until, Suppressed):
        raise TopologyError(
            f"suppress() takes until_window_closes() or until_time_limit(...), not {until!r}"
        )
    graph = table.flow.graph
    where = f"suppress of {table.flow.node}"
    windows = _windows(graph, table.flow.node) if until.wait_ms is None else None
    if until.wait_ms is None and windows is None:
        raise TopologyError(
            f"{where}: it has no windows that could close. Use until_time_limit(...), or aggregate in windows before "
            "it."
        )
    node_name = graph.names.node("KTABLE-SUPPRESS-", name)
    store_name = graph.names.store(
        "KTABLE-SUPPRESS-",
        None if name is None else f"{name}-store",
    )
    key = table.flow.needed("key", where, where)
    value = table.flow.needed("value", where, "the operator before it")
    suffix = {"window": 8, "session": 16}.get(table.store.kind, 0)
    buffer = StoreSpec(
        store_name,
        "buffer",
        table.store.key,
        held,
        row_key=key,
        suffix_bytes=suffix,
    )
    node = Suppress(
        name=node_name,
        parents=(table.flow.node,),
        buffer=buffer,
        until_close=until.wait_ms is None,
        wait_ms=_wait_ms(windows) if windows is not None else until.wait_ms or 0,
        max_records=until.max_records,
        max_bytes=until.max_bytes,
        when_full=until.when_full,
        key=key,
        value=value,
        end_of=None if windows is None else _end_of(windows),
    )
    # As in Kafka Streams, a suppression needs the old value: so a filter upstream
    # forwards no deletion of a row that it never forwarded.
    ask_for_old_values(graph, table.flow.node, force=True)
    graph.needed_stores.add(store_name)
    graph.attach(node)
    return replace(table, flow=replace(table.flow, node=node_name))


def _windows(graph: Graph, name: str) -> AnyWindows | None:
    """Return the windows of the aggregation at the root of a table; None if there are
    none. Of several, these are the windows that close last.

    Source: Kafka Streams `GraphGraceSearchUtil`.
    """
    node = graph.nodes[name]
    if isinstance(node, Aggregate):
        return node.windows
    found = [
        windows
        for parent in node.parents
        if (windows := _windows(graph, parent)) is not None
    ]
    return max(found, key=_wait_ms, default=None)


def _wait_ms(windows: AnyWindows) -> int:
    """Return how long after its end a window closes, in stream time."""
    return (
        windows.grace_ms + windows.gap_ms
        if isinstance(windows, SessionWindows)
        else windows.grace_ms
    )


def _end_of(windows: AnyWindows) -> Callable[[bytes], int]:
    """Return the function that gives the end of a window, from the bytes of a row's
    key.
    """
    if isinstance(windows, SessionWindows):
        return lambda key: int.from_bytes(key[-16:-8], "big", signed=True)
    return lambda key: windows.end(int.from_bytes(key[-8:], "big", signed=True))


def materialize(graph: Graph, name: str) -> None:
    """Make the rows of a table available to look-ups: mark the stores at its roots as
    needed.
    """
    node = graph.nodes[name]
    if isinstance(node, TableSource):
        assert node.store is not None  # until the graph is cut
        graph.needed_stores.add(node.store.name)
    elif isinstance(node, Suppress):
        ask_for_old_values(
            graph,
            name,
            force=True,
        )  # look-ups get the old value until the update is emitted
        materialize(graph, node.parents[0])
    elif _looks_through(node):
        for parent in node.parents:
            materialize(graph, parent)


def ask_for_old_values(
    graph: Graph,
    name: str,
    *,
    force: bool,
) -> bool:
    """Make a table forward old values; return whether it does.

    Without `force`, a table that would need an additional store for it forwards none.
    """
    if name in graph.sending_old:
        return True
    node = graph.nodes[name]
    if isinstance(node, TableSource):
        assert node.store is not None  # until the graph is cut
        if not force and node.store.name not in graph.needed_stores:
            return False
        graph.needed_stores.add(node.store.name)
    elif isinstance(node, TableTableJoin | CogroupMerge | Suppress):
        for parent in node.parents:
            ask_for_old_values(graph, parent, force=True)
    elif _looks_through(node) and not ask_for_old_values(
        graph,
        node.parents[0],
        force=force,
    ):
        return False
    graph.sending_old.add(name)
    return True


def _looks_through(node: Node) -> bool:
    """Return whether the node has no store, so that its rows are computed from those of
    its parents.
    """
    return (
        isinstance(node, Filter | MapValues | TableTableJoin)
        and getattr(node, "store", None) is None
    )
