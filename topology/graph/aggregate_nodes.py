"""The nodes of aggregations besides `Aggregate`: cogroups, aggregations of tables, and what holds updates back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coopstreams.topology.graph.nodes import Function, Node
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.suppressed import WhenFull


@dataclass(frozen=True, slots=True, kw_only=True)
class CogroupMerge(Node):
    """The table that several `Aggregate`s write into: their updates in one. With the record cache on, it forwards
    them.
    """

    store: StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroup(Node):
    """Updates of a table become updates of the rows of other keys: `mapper(key, value)` returns the new pair.

    Shape: values that come out are pairs (new, old), as `serdes.changed` writes them: one record if the new key is the
    old one, else one that takes out and one that adds.
    """

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAggregate(Node):
    """A table from the pairs of a `TableGroup`: the old value is taken out, then the new one added.

    `adder(key, value, aggregate)` and `subtractor` alike, from `initializer()`; a reduce has `initializer` None and
    functions of (aggregate, value), the first value is the aggregate; a count has none of them.
    """

    store: StoreSpec
    initializer: Function | None
    adder: Function | None
    subtractor: Function | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppress(Node):
    """Holds the latest update of each row back until its time has come.

    `wait_ms` after the end of its window (`until_close`), or after the first update that was held. With more in it than
    `max_records` or `max_bytes`, the earliest go at once, or the application stops. Rows in `buffer` are
    `suppressed.Held`.
    """

    buffer: StoreSpec
    until_close: bool
    wait_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: WhenFull
    key: Serde[Any]
    value: Serde[Any]
    end_of: Function | None = None
    """Of a row's key, as bytes: when its window ends."""

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """What it keeps."""
        return (self.buffer,)
