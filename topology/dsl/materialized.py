"""The argument `store=` of a table: the name of its store, or a `Materialized` with a
name and options.

Invariant: no option but `ttl` changes which rows a table has, only how they are stored.
Turned down: a keyword for each option (each would be repeated in some thirty
signatures).
Source: Kafka Streams `Materialized`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from coopstreams.topology.durations import Duration, checked_ms, duration_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.stores import StoreSpec, check_store_type


@dataclass(frozen=True, slots=True)
class Materialized:
    """A table's store, for `store=`: its name and its options.

    `logged=False`: no changelog. Rows exist only where their task runs: when the task
    moves, or its folder is lost, the table begins empty. `cached=False`: the record
    cache holds back no update of this table, nor of the tables that it is joined with.
    `store_type`: `rocksDB`, `in_memory`, or `package.module:Class` of an `Engine`;
    None: the setting `default.dsl.store`. `ttl`: how long after its last update a row
    expires, in stream time. It is deleted from the store and the changelog, and the
    deletion is forwarded.

    Raises:
        TopologyError: an unknown store type, or a time to live below 1 ms.
    """

    name: str
    logged: bool = True
    cached: bool = True
    store_type: str | None = None
    ttl: Duration | None = None

    def __post_init__(self) -> None:
        check_store_type(self.name, self.store_type)
        if self.ttl is not None:
            checked_ms(self.ttl, f'store "{self.name}": ttl', 1)


StoreOption: TypeAlias = str | Materialized | None

FOLLOWS_TABLES = "its rows follow those of other tables. Give the ttl to these: their deletions arrive here."
"""Why the rows of a table that is made from tables cannot expire by themselves."""


def name_of(store: StoreOption) -> str | None:
    """Return the name that the user gave to a store; None: it has no name, or no store
    was asked for.
    """
    return store.name if isinstance(store, Materialized) else store


def kept_as(
    store: StoreOption,
    spec: StoreSpec,
    *,
    no_ttl: str | None = None,
) -> StoreSpec:
    """Return the store with the options that were given. `no_ttl`: why rows of this
    table cannot expire, and the cure.

    Raises:
        TopologyError: a time to live was given, and rows cannot expire.
    """
    if not isinstance(store, Materialized):
        return spec
    if store.ttl is not None and no_ttl is not None:
        raise TopologyError(
            f'store "{store.name}": ttl= cannot be given here: {no_ttl}'
        )
    return replace(
        spec,
        logged=store.logged,
        cached=store.cached,
        store_type=store.store_type,
        ttl_ms=None
        if store.ttl is None
        else duration_ms(store.ttl, f'store "{store.name}": ttl'),
    )
