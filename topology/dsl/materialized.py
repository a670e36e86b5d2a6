"""The argument `store=` of a table: the name of its store, or a `Materialized` with a name and options.

Invariant: an option changes how rows are stored, never which rows a table has.
Turned down: a keyword for each option (each would be repeated in some thirty signatures).
Source: Kafka Streams `Materialized`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from coopstreams.topology.stores import StoreSpec, check_store_type


@dataclass(frozen=True, slots=True)
class Materialized:
    """A table's store, for `store=`: its name and its options.

    `logged=False`: no changelog. Rows exist only where their task runs: when the task moves, or its folder is lost, the
    table begins empty. `cached=False`: the record cache holds back no update of this table, nor of the tables that it
    is joined with. `store_type`: `rocksDB`, `in_memory`, or `package.module:Class` of an `Engine`; None: the setting
    `default.dsl.store`.

    Raises:
        TopologyError: an unknown store type. Use one of these.
    """

    name: str
    logged: bool = True
    cached: bool = True
    store_type: str | None = None

    def __post_init__(self) -> None:
        check_store_type(self.name, self.store_type)


StoreOption: TypeAlias = str | Materialized | None


def name_of(store: StoreOption) -> str | None:
    """Return the name that was given for a store."""
    return store.name if isinstance(store, Materialized) else store


def kept_as(store: StoreOption, spec: StoreSpec) -> StoreSpec:
    """Return the store with the options that were given."""
    if not isinstance(store, Materialized):
        return spec
    return replace(spec, logged=store.logged, cached=store.cached, store_type=store.store_type)
