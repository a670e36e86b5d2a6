"""The argument `store=` of a table: the name of its store, or a `Materialized` with a name and options that differ from
the defaults.

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
    """How a table is kept, for `store=`: under a name, and otherwise than usual.

    `logged=False`: without a changelog topic. Rows are then only where their task runs: when it moves, or its folder is
    lost, the table begins empty. `cached=False`: the record cache holds no update of it back, nor any of the tables
    that it is joined with. `store_type`: where rows are kept, `rocksDB`, `in_memory`, or `package.module:Class` of an
    `Engine`; else as `default.dsl.store` says.

    Raises:
        TopologyError: the store type is none of these.
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
    """Return the store with what was said of it."""
    if not isinstance(store, Materialized):
        return spec
    return replace(spec, logged=store.logged, cached=store.cached, store_type=store.store_type)
