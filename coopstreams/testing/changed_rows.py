"""Finds rows that a function has changed in place, behind the store: a mistake that
shows late in production.

Stores hand out their rows as live objects, without a copy. A mapper, a joiner or a
processor that changes such a row changes the state: perhaps only until the row is read
from the database again. An aggregator may change its aggregate, because its result is
then set. So while a record is processed, the bytes of each row are noted when it is
first read, and whenever it is set; behind the record they must be the same.

Turned down: the same in production, where each look-up would cost two serialisations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coopstreams.topology.errors import StateError
from coopstreams.topology.operators.moving_windows import UNCHANGEABLE
from coopstreams.topology.stores import Entry, TableStore

_SLOT: Any = Entry.__dict__["value"]


class ChangedRows:
    """Looks for rows of some stores that are changed in place."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[TableStore, Entry, bytes]] = {}

    def watch(self, *stores: TableStore) -> None:
        """Look at the rows of these stores from now on. Nothing may be bound to them
        yet.
        """
        for store in stores:
            store.entries = _Entries(self, store)

    def begin(self) -> None:
        """Look at the rows that are read or set from here to `check`."""
        self._noted.clear()

    def check(self, when: Callable[[], str]) -> None:
        """Check the rows that were read or set since `begin`. `when`: returns in words
        when that was.

        Raises:
            StateError: a row was changed in place. Have the function return a new
            value, and a processor put it.
        """
        for store, entry, before in list(self._noted.values()):
            after = _written(store, _SLOT.__get__(entry))
            read = store.spec.value.decode
            if after is not None and after != before and read(after) != read(before):
                key = next(
                    key for key, known in store.entries.items() if known is entry
                )
                raise StateError(
                    f'store "{store.spec.name}": a function has changed the row of key {key!r} in place, {when()}: from '
                    f"{read(before)!r} to {read(after)!r}. Functions get rows as the store has them, not copies: "
                    "return a new value, such as {**row, ...}, and leave the argument as it is. Only an aggregator may "
                    "change its aggregate; a processor puts what it has changed."
                )

    def note(
        self,
        store: TableStore,
        entry: Entry,
        value: Any,
        *,
        again: bool,
    ) -> None:
        """Note the bytes of a row. `again`: also if they were noted already, because it
        is set.
        """
        if value.__class__ in UNCHANGEABLE:
            if again:
                self._noted.pop(id(entry), None)
        elif (again or id(entry) not in self._noted) and (
            data := _written(store, value)
        ) is not None:
            self._noted[id(entry)] = store, entry, data


class _Entries(dict[bytes, Entry]):
    """The entries of a store. Each tells when its value is read and set."""

    def __init__(self, rows: ChangedRows, store: TableStore) -> None:
        super().__init__(store.entries)
        self._rows = rows
        self._store = store
        self._classes: dict[type[Entry], type[Entry]] = {}
        """By the class of an entry, the one that tells: that of a telling one is
        itself.
        """

    def __setitem__(self, key: bytes, entry: Entry) -> None:
        kind = entry.__class__
        if kind not in self._classes:
            telling = self._telling(kind)
            self._classes[kind] = self._classes[telling] = telling
        entry.__class__ = self._classes[kind]
        super().__setitem__(key, entry)

    def _telling(self, kind: type[Entry]) -> type[Entry]:
        rows = self._rows
        store = self._store

        def read(entry: Entry) -> Any:
            value = _SLOT.__get__(entry)
            rows.note(store, entry, value, again=False)
            return value

        def write(entry: Entry, value: Any) -> None:
            _SLOT.__set__(entry, value)
            rows.note(store, entry, value, again=True)

        return type(
            kind.__name__,
            (kind,),
            {"__slots__": (), "value": property(read, write)},
        )


def _written(store: TableStore, value: Any) -> bytes | None:
    """Return the bytes of a value, None if it cannot be written: the next commit says
    so.
    """
    try:
        return None if value is None else store.spec.value.encode(value)
    except Exception:  # noqa: BLE001 whatever a serde raises
        return None
