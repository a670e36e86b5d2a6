"""The nodes of cogroups, aggregations of tables and suppressions. See `nodes` for
`Aggregate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coopstreams.topology.graph.nodes import Function, Node
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.suppression import WhenFull


@dataclass(frozen=True, slots=True, kw_only=True)
class CogroupMerge(Node):
    """Merges the updates of the `Aggregate`s that write into a cogroup's table. With
    the record cache on, it forwards them.
    """

    store: StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroup(Node):
    """Turns the updates of a table into updates of the rows of other keys: `mapper(key,
    value)` returns the new pair.

    Shape: values that come out are pairs (new, old), as `serdes.changed` writes them:
    one record if the new key equals the old one, else one record that subtracts and one
    that adds.
    """

    mapper: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAggregate(Node):
    """A table from the pairs of a `TableGroup`: the old value is subtracted, then the
    new value is added.

    `adder(key, value, aggregate)` and `subtractor(key, value, aggregate)` begin with
    `initializer()`. A reduce has no `initializer` and functions of (aggregate, value):
    the first value is the aggregate. A count has no functions.
    """

    store: StoreSpec
    initializer: Function | None
    adder: Function | None
    subtractor: Function | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppress(Node):
    """Holds back the latest update of each row until a limit. `key` and `value` are the
    serdes of the table.

    The limit is `wait_ms` after the end of the row's window (`until_close`), or
    `wait_ms` after the first update that was held. If the buffer exceeds `max_records`
    or `max_bytes`, the earliest updates are emitted early or the application stops, see
    `when_full`. Rows in `buffer` are `suppression.SuppressedUpdate`.
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
    """For `until_close`: the function that returns the end of a row's window, from the
    bytes of the row's key.
    """

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """The store that buffers the suppressed updates."""
        return (self.buffer,)
