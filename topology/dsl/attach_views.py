"""Attaching views of a table: filtered, mapped; looked through, or kept under a name of their own.

Source: Kafka Streams `KTableImpl.doFilter`, `doMapValues`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.materialized import StoreOption, kept_as, name_of
from coopstreams.topology.dsl.old_values import ask_for_old_values
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.graph.nodes import Filter, Function, MapValues, Node
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec


def filter_rows(table: TableFlow, predicate: Function, store: StoreOption, name: str | None, *, negate: bool) -> TableFlow:
    """Return the rows that a predicate keeps. It asks what each row was before, and need not tell of one that never was.

    Raises:
        TopologyError: a name is taken or not legal, or a store's serde is missing.
    """
    graph, above = table.flow.graph, table.flow.node
    made = _attached(table, "KTABLE-FILTER-", name, store, partial(Filter, predicate=predicate, negate=negate, table=True))
    if ask_for_old_values(graph, above, force=False):
        graph.sending_old.add(made.flow.node)
    return made


def map_rows(table: TableFlow, mapper: Function, value: Serde[Any] | None, store: StoreOption, name: str | None, *, with_key: bool) -> TableFlow:
    """Return the rows with new values.

    Raises:
        TopologyError: a name is taken or not legal, or a store's serde is missing.
    """
    method = "map_values_with_key" if with_key else "map_values"
    make = partial(MapValues, mapper=mapper, with_key=with_key, table=True)
    return _attached(table, "KTABLE-MAPVALUES-", name, store, make, lambda flow: flow.with_value(value, method))


def _attached(
    table: TableFlow, prefix: str, name: str | None, store: StoreOption, make: Callable[..., Node], known: Callable[[Flow], Flow] = lambda flow: flow
) -> TableFlow:
    """Return a table whose rows come out of a new node; `known` says what is known about them."""
    graph = table.flow.graph
    flow = known(replace(table.flow, node=graph.names.node(prefix, name)))
    spec: StoreSpec | None = None
    if store is not None:
        store_name = graph.names.store(prefix, name_of(store))
        if table.is_windowed and isinstance(graph.nodes[table.flow.node], Suppress):
            raise TopologyError(
                f'the table "{store_name}": suppressed windows come when they expire, and cannot be kept. Filter them before suppress().'
            )
        value = flow.needed("value", f'the table "{store_name}"')
        row_key = flow.needed("key", f'the table "{store_name}"') if table.is_windowed else None
        spec = kept_as(store, replace(table.store, name=store_name, value=value, row_key=row_key, history_ms=None, logged=True, cached=True))
        graph.needed_stores.add(store_name)
    graph.attach(make(name=flow.node, parents=(table.flow.node,), store=spec))
    return TableFlow(flow, spec or table.store)
