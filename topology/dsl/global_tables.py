"""`GlobalKTable`: a table of which every instance has all rows, so that a stream can
look up any key.

Its topic is not an input of tasks: every instance reads all of it before the first task
starts, and follows it from then on. So it does not advance stream time, has no
changelog of its own, and may have any partition count.

Invariant: only the thread that reads its topic changes it; operators only look it up.
Relies on: `opening.globals` (reads and follows), `graph.graph`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from coopstreams.topology.graph.graph import Graph
from coopstreams.topology.graph.nodes import GlobalTable
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


class GlobalKTable(Generic[K, V]):
    """A table with keys K and values V, made by `StreamsBuilder.global_table`. Streams
    join it by any key.
    """

    __slots__ = ("_graph", "_table")

    def __init__(self, graph: Graph, table: GlobalTable) -> None:
        self._graph = graph
        self._table = table


def global_table(
    graph: Graph,
    topic: str,
    key: Serde[Any],
    value: Serde[Any],
    store: str | None,
) -> GlobalTable:
    """Add a global table of a topic to a graph; return it.

    `store`: the name of its store; None: a generated one.

    Raises:
        TopologyError: the name of the store is taken, or not legal.
    """
    name = graph.names.store(f"{topic}-", store)
    for prefix in (
        "KSTREAM-SOURCE-",
        "KTABLE-SOURCE-",
    ):  # Kafka Streams counts two nodes
        graph.names.node(prefix)
    table = GlobalTable(topic, StoreSpec(name, "key_value", key, value, logged=False))
    graph.global_tables.append(table)
    return table
