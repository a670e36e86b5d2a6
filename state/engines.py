"""From what a user names (`rocksDB`, `in_memory`, `package.module:Class`) to an engine, and where it keeps its files.

Invariant: each engine has a folder of its own, so that a damaged one is deleted by itself.
Turned down: entry points (an engine of one application would have to be a package first).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.memory import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.stores import IN_MEMORY, ROCKS_DB, StoreSpec

NewEngine: TypeAlias = Callable[[Path], Engine]
"""Opens an engine on a folder that exists."""


def new_engine(store_type: str) -> NewEngine:
    """Return what opens an engine of a store type on disk.

    Raises:
        ConfigError: there is no such class; says what was looked for.
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
    """Do nothing if there is an engine for each of the stores.

    Raises:
        ConfigError: there is none for one.
    """
    for store_type in {default, *(spec.store_type or default for spec in specs)} - {IN_MEMORY}:
        new_engine(store_type)


def folder_of(folder: Path, store_type: str) -> Path:
    """Return where an engine of a store type has its files, of those of the database in this folder."""
    return folder if store_type == ROCKS_DB else folder.with_name(f"{folder.name}.{store_type.replace(':', '-')}")


def open_engine(folder: Path, store_type: str) -> Engine:
    """Return an engine of a store type, for the database in this folder; its own is made if it is not there.

    Raises:
        StateError: it cannot be opened.
    """
    own = folder_of(folder, store_type)
    own.mkdir(parents=True, exist_ok=True)
    return new_engine(store_type)(own)


def open_database(specs: Sequence[StoreSpec], default: str, open_engine: Callable[[str], Engine]) -> Database:
    """Return the database of these stores, each in an engine of its type; `open_engine` opens one of a type that has
    files.

    Raises:
        StateError: one of them cannot be opened; then none is.
    """
    type_of: Mapping[str, str] = {spec.name: spec.store_type or default for spec in specs}
    with ExitStack() as closing:
        engines: dict[str, Engine] = {}
        for store_type in dict.fromkeys(type_of.values()) or (default,):
            engines[store_type] = Memory() if store_type == IN_MEMORY else open_engine(store_type)
            closing.callback(engines[store_type].close)
        first = next(iter(engines.values()))
        database = Database(first, specs, apart={store: engines[store_type] for store, store_type in type_of.items()})
        closing.pop_all()
        return database
