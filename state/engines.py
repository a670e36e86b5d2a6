"""Opens the engine of a store type (`rocksDB`, `in_memory`, `package.module:Class`) in
its folder.

Invariant: each engine has a folder of its own, so that a damaged one can be deleted
alone.
Invariant: `folder_of` does not change: the folders are on users' disks, and
`StateDirectory` finds them again by their names.
Turned down: entry points (an application's own engine would first have to become a
package).
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.stores import IN_MEMORY, ROCKS_DB, StoreSpec

NewEngine: TypeAlias = Callable[[Path], Engine]
"""Opens an engine on an existing folder."""


def new_engine(store_type: str) -> NewEngine:
    """Return the function or class that opens an engine of a store type on disk.

    Raises:
        ConfigError: there is no such class. Name one as `package.module:Class`.
    """
    if store_type == ROCKS_DB:
        return Rocks
    module, _, name = store_type.partition(":")
    try:
        found: NewEngine = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f'there is no engine "{store_type}": {error}. Name a class as package.module:Class, of a module that can '
            "be imported."
        ) from error
    if not callable(found):
        raise ConfigError(
            f'"{store_type}" is {found!r}, which cannot be called with a folder: name a class that is an Engine'
        )
    return found


def check_store_types(specs: Iterable[StoreSpec], default: str) -> None:
    """Check that there is an engine for the store type of each store.

    `default`: the store type of stores that name none.

    Raises:
        ConfigError: a store type has no engine.
    """
    for store_type in {default, *(spec.store_type or default for spec in specs)} - {
        IN_MEMORY
    }:
        new_engine(store_type)


def folder_of(folder: Path, store_type: str) -> Path:
    """Return the folder of an engine of a store type, for the database in `folder`."""
    return (
        folder
        if store_type == ROCKS_DB
        else folder.with_name(f"{folder.name}.{store_type.replace(':', '-')}")
    )


def open_engine(folder: Path, store_type: str) -> Engine:
    """Return an engine of a store type, for the database in `folder`; make the engine's
    own folder if it is missing.

    Raises:
        StateError: the engine cannot be opened.
    """
    own = folder_of(folder, store_type)
    own.mkdir(parents=True, exist_ok=True)
    return new_engine(store_type)(own)


def open_database(
    specs: Sequence[StoreSpec],
    default: str,
    open_engine: Callable[[str], Engine],
) -> Database:
    """Return the database of these stores, each in an engine of its store type.

    `default`: the store type of stores that name none. `open_engine` opens an engine of
    a store type on disk. A database without stores is in memory.

    Raises:
        StateError: an engine cannot be opened; those that were opened are closed again.
    """
    type_of: Mapping[str, str] = {
        spec.name: spec.store_type or default for spec in specs
    }
    with ExitStack() as closing:
        engines: dict[str, Engine] = {}
        for store_type in dict.fromkeys(type_of.values()) or (IN_MEMORY,):
            engines[store_type] = (
                Memory() if store_type == IN_MEMORY else open_engine(store_type)
            )
            closing.callback(engines[store_type].close)
        first = next(iter(engines.values()))
        database = Database(
            first,
            specs,
            apart={store: engines[store_type] for store, store_type in type_of.items()},
        )
        closing.pop_all()
        return database
