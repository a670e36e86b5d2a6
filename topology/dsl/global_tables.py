"""`GlobalKTable`: a table of which every instance has all rows, so that a stream can look up any key in it.

Its topic is no input of a task: it is read whole by every instance before the first task starts, and followed from there on. So it moves no
stream time, has no changelog but itself, and its partition count is free.

Invariant: nobody writes it but whoever reads its topic; operators only look up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from coopstreams.topology.graph.graph import Graph
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class GlobalUpdate:
    """Who keeps a global store: a processor, given the records of the topic as these serdes read them."""

    name: str
    supplier: Callable[..., Any]
    key: Serde[Any]
    value: Serde[Any]


@dataclass(frozen=True, slots=True)
class GlobalTable:
    """A topic and the store that every instance makes of it. Without an `update` each record is a row, and the store's serdes are the topic's."""

    topic: str
    store: StoreSpec
    update: GlobalUpdate | None = None


class GlobalKTable(Generic[K, V]):
    """A table with keys K and values V, made by `StreamsBuilder.global_table`. Streams join it by any key they can name."""

    __slots__ = ("_graph", "_table")

    def __init__(self, graph: Graph, table: GlobalTable) -> None:
        self._graph, self._table = graph, table


def global_table(graph: Graph, topic: str, key: Serde[Any], value: Serde[Any], store: str | None) -> GlobalTable:
    """Return a new global table of a graph."""
    name = graph.names.store(f"{topic}-", store)
    for prefix in ("KSTREAM-SOURCE-", "KTABLE-SOURCE-"):  # Kafka Streams makes two nodes of it
        graph.names.node(prefix)
    table = GlobalTable(topic, StoreSpec(name, "key_value", key, value, logged=False))
    graph.global_tables.append(table)
    return table
