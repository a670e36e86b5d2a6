"""Attaching what holds updates of a table back.

Invariant: the window of a row, and when it is closed, are those of the aggregation above; views in between change neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.old_values import ask_for_old_values
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.aggregate_nodes import CogroupMerge, Suppress
from coopstreams.topology.graph.graph import Graph
from coopstreams.topology.graph.nodes import Aggregate
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.suppressed import Suppressed, held
from coopstreams.topology.windows import AnyWindows, SessionWindows


def suppress(table: TableFlow, until: Suppressed, name: str | None) -> TableFlow:
    """Return the table with its updates held back.

    Raises:
        TopologyError: it has no windows that could close, a serde is missing, or a name is taken or not legal.
    """
    if not isinstance(until, Suppressed):
        raise TopologyError(f"suppress() takes until_window_closes() or until_time_limit(...), not {until!r}")
    graph, where = table.flow.graph, f"suppress of {table.flow.node}"
    windows = _windows(graph, table.flow.node) if until.wait_ms is None else None
    if until.wait_ms is None and windows is None:
        raise TopologyError(f"{where}: it has no windows that could close. Use until_time_limit(...), or aggregate in windows before it.")
    node_name = graph.names.node("KTABLE-SUPPRESS-", name)
    store_name = graph.names.store("KTABLE-SUPPRESS-", None if name is None else f"{name}-store")
    key, value = table.flow.needed("key", where, where), table.flow.needed("value", where, "the operator before it")
    suffix = {"window": 8, "session": 16}.get(table.store.kind, 0)
    buffer = StoreSpec(store_name, "buffer", table.store.key, held, row_key=key, suffix_bytes=suffix)
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
    # What a row was before must be known, as in Kafka Streams: so a filter above forwards no deletion of what never was.
    ask_for_old_values(graph, table.flow.node, force=True)
    graph.needed_stores.add(store_name)
    graph.attach(node)
    return replace(table, flow=replace(table.flow, node=node_name))


def _windows(graph: Graph, name: str) -> AnyWindows | None:
    """Return the windows of the aggregation at the root of a table."""
    node = graph.nodes[name]
    if isinstance(node, Aggregate):
        return node.windows
    parents = node.parents[:1] if isinstance(node, CogroupMerge) else node.parents
    return _windows(graph, parents[0]) if len(parents) == 1 else None


def _wait_ms(windows: AnyWindows) -> int:
    """Return how long after its end a window is closed."""
    return windows.grace_ms + windows.gap_ms if isinstance(windows, SessionWindows) else windows.grace_ms


def _end_of(windows: AnyWindows) -> Callable[[bytes], int]:
    """Return the function that gives the end of the window of a row's key."""
    if isinstance(windows, SessionWindows):
        return lambda key: int.from_bytes(key[-16:-8], "big", signed=True)
    return lambda key: windows.end(int.from_bytes(key[-8:], "big", signed=True))
