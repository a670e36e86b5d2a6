"""The check of the test driver that no function changes a row of a store in place. In
production this mistake shows late.

Stores return their rows as live objects, without a copy. A mapper, a joiner or a
processor that changes a row changes the state, perhaps only until the row is read from
the database again. An aggregator may change its aggregate, because its result is then
put into the store. So while a record is processed, the bytes of each row are noted when
the row is first read, and whenever it is set. After the record they must be the same.

Turned down: the same check in production, where each look-up would cost two
serialisations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coopstreams.topology.errors import StateError
from coopstreams.topology.operators.moving_windows import UNCHANGEABLE
from coopstreams.topology.stores import Entry, TableStore

_SLOT: Any = Entry.__dict__["value"]


class ChangedRows:
    """The rows of watched stores that were read or set during the current record, with
    their bytes.
    """

    def __init__(self) -> None:
        self._noted: dict[int, tuple[TableStore, Entry, bytes]] = {}

    def watch(self, *stores: TableStore) -> None:
        """Check the rows of these stores from now on. Call it before a program is bound
        to them.
        """
        for store in stores:
            store.entries = _Entries(self, store)

    def begin(self) -> None:
        """Forget the noted rows; `check` covers the rows that are read or set from now
        on.
        """
        self._noted.clear()

    def check(self, when: Callable[[], str]) -> None:
        """Check the rows that were read or set since `begin`. `when`: returns the time
        of the change in words.

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
        """Note the bytes of a row. `again`: replace bytes that were noted earlier,
        because the row was set.
        """
        if value.__class__ in UNCHANGEABLE:
            if again:
                self._noted.pop(id(entry), None)
        elif (again or id(entry) not in self._noted) and (
            data := _written(store, value)
        ) is not None:
            self._noted[id(entry)] = store, entry, data


class _Entries(dict[bytes, Entry]):
    """The entries of a store, which report each read and each change of their values."""

    def __init__(self, rows: ChangedRows, store: TableStore) -> None:
        super().__init__(store.entries)
        self._rows = rows
        self._store = store
        self._classes: dict[type[Entry], type[Entry]] = {}
        """By the class of an entry: its subclass that reports reads and changes. A
        reporting class is its own value.
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
    """Return the bytes of a value; None: it is null, or its serde fails, which the next
    commit reports.
    """
    try:
        return None if value is None else store.spec.value.encode(value)
    except Exception:  # noqa: BLE001 whatever a serde raises
        return None
