from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.memory_engine import Memory
from coopstreams.state.table import Table
from coopstreams.state.task_state import TaskState
from coopstreams.topology.dsl.attach_joins import values_of
from coopstreams.topology.errors import SerdeError, StateError
from coopstreams.topology.kept_headers import Headed, with_headers
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange, key_group, key_hash
from coopstreams.topology.serdes import Serde, avro, int64, json, json_schema, text
from coopstreams.topology.stores import Entry, StoreSpec, TableStore
from tests.state.conftest import NewEngine
from tests.state.rows import put

COUNTS = StoreSpec("counts", "key_value", text, int64)
BYTES = 1 << 30
KEYS = [b"", b"a", b"aa", b"b", b"ba", b"c", b"z"]


def seen(rows: Iterator[tuple[bytes, Entry]]) -> list[tuple[bytes, object, int]]:
    return [(key, entry.value, entry.timestamp) for key, entry in rows]


def new_state(
    engine: Engine, spec: StoreSpec = COUNTS, cache_bytes: int = BYTES
) -> TaskState:
    return TaskState(Database(engine, [spec]), [spec], WHOLE, cache_bytes)


def test_a_key_that_is_not_there_loads_as_an_entry_without_value(
    new_engine: NewEngine,
) -> None:
    table: TableStore = new_state(new_engine()).stores["counts"]
    entry = table.load(b"a")
    assert (entry.value, entry.stored, entry.dirty) == (None, None, False)
    assert table.entries == {b"a": entry}
    assert table.load(b"a") is entry


def test_what_is_committed_is_loaded_again_with_timestamp_and_stored_bytes(
    new_engine: NewEngine,
) -> None:
    engine = new_engine()
    state = new_state(engine)
    put(state.stores["counts"], b"a", 7, 99)
    state.changes()
    state.commit({"counts": 1})
    entry = new_state(engine).stores["counts"].load(b"a")
    assert (entry.value, entry.timestamp, entry.stored, entry.dirty) == (
        7,
        99,
        int64.serialize(7),
        False,
    )


def test_dirty_entries_come_in_the_order_of_their_first_change() -> None:
    table = new_state(Memory()).stores["counts"]
    for key in (b"c", b"a", b"b", b"a"):
        put(table, key, 1)
    assert [key for key, _ in table.dirty()] == [b"c", b"a", b"b"]


def test_an_entry_is_clean_with_its_new_bytes_once_it_is_serialised() -> None:
    state = new_state(Memory())
    table = state.stores["counts"]
    put(table, b"a", 1)
    assert table.load(b"a").stored is None
    state.changes()
    assert (table.load(b"a").dirty, table.load(b"a").stored, table.dirty()) == (
        False,
        int64.serialize(1),
        [],
    )
    state.commit({})
    put(table, b"a", None)
    batch = state.changes()[0]
    assert (batch.keys, batch.values) == ([b"a"], [None])


def test_a_scan_merges_the_buffer_over_the_database_and_hides_what_was_deleted(
    new_engine: NewEngine,
) -> None:
    engine = new_engine()
    state = new_state(engine)
    for key in (b"a", b"b", b"c", b"d"):
        put(state.stores["counts"], key, 1, 5)
    state.changes()
    state.commit({})
    table = new_state(engine).stores["counts"]
    put(table, b"b", 2, 6)
    put(table, b"c", None, 6)
    put(table, b"bb", 3, 6)
    put(table, b"zz", 4, 6)
    table.load(b"nothing")
    assert seen(table.scan(None, None)) == [
        (b"a", 1, 5),
        (b"b", 2, 6),
        (b"bb", 3, 6),
        (b"d", 1, 5),
        (b"zz", 4, 6),
    ]
    assert seen(table.scan(b"b", b"d")) == [(b"b", 2, 6), (b"bb", 3, 6)]
    assert b"a" not in table.entries  # a scan does not fill the buffer


def test_entries_may_be_changed_while_they_are_scanned() -> None:
    state = new_state(Memory())
    table = state.stores["counts"]
    for key in KEYS:
        put(table, key, 1)
    state.changes()
    state.commit({})
    fresh = TaskState(state._database, [COUNTS], WHOLE, BYTES).stores["counts"]
    for key, entry in fresh.scan(None, None):
        entry.value += 1
        fresh.touch(key, entry)
        if key == b"b":
            put(fresh, b"c", None)
    assert {key: entry.value for key, entry in fresh.dirty()} == {
        key: None if key == b"c" else 2 for key in KEYS
    }
    assert [key for key, _ in fresh.scan(None, None)] == [
        key for key in KEYS if key != b"c"
    ]


def test_a_value_that_does_not_become_bytes_names_store_and_key() -> None:
    state = new_state(Memory())
    put(state.stores["counts"], b"a", "no number")
    assert state.full is False  # it fails only at the commit
    with pytest.raises(
        SerdeError, match=r'store "counts": the value of key b\'a\' cannot be written'
    ):
        state.changes()


def test_a_serde_that_writes_something_else_than_bytes_is_found_out() -> None:
    state = new_state(
        Memory(),
        StoreSpec(
            "odd",
            "key_value",
            text,
            Serde("odd", lambda value: value, lambda data: data),
        ),
    )
    put(state.stores["odd"], b"a", "text")
    with pytest.raises(
        SerdeError, match=r'store "odd": the value of key b\'a\' cannot be written'
    ):
        state.changes()


@dataclass
class Last:
    orders: int
    coupon: str
    ratio: float = 0.0


@dataclass
class Longer:
    orders: int
    city: str


LASTS = json(Last)
GOOD = Last(1, "ten", 0.5)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (
            Last(1, None),  # type: ignore[arg-type]
            r"at `\$.coupon`: if it may be null, its type is `str \| None`",
        ),
        (Last("1", "ten"), r"Expected `int`, got `str` - at `\$.orders`"),  # type: ignore[arg-type]
        (
            Last(1, "ten", math.nan),
            r"\$.ratio is nan, which JSON cannot write.*`float \| None`",
        ),
    ],
)
@pytest.mark.parametrize(
    ("spec", "row_of"),
    [
        (StoreSpec("lasts", "key_value", text, LASTS), lambda last: last),
        (
            StoreSpec("lasts", "key_value", text, values_of(LASTS)),
            lambda last: [GOOD, last],
        ),
        (
            StoreSpec("lasts", "key_value", text, with_headers(LASTS)),
            lambda last: Headed(last, []),
        ),
        (StoreSpec("lasts", "key_value", text, json_schema(Last)), lambda last: last),
    ],
)
def test_a_row_that_cannot_be_read_back_is_not_committed(
    spec: StoreSpec, row_of: Callable[[Last], Any], bad: Last, why: str
) -> None:
    engine = Memory()
    state = new_state(engine, spec)
    put(state.stores["lasts"], b"ann", row_of(GOOD))
    state.changes()
    state.commit({})
    put(state.stores["lasts"], b"ann", row_of(bad))
    with pytest.raises(
        SerdeError,
        match=rf'store "lasts": the value of key b.ann. cannot be written .*{why}',
    ):
        state.changes()
    state.discard()
    state.commit({})
    assert new_state(engine, spec).stores["lasts"].load(b"ann").value == row_of(GOOD)


def test_a_schema_may_allow_what_the_class_does_not() -> None:
    fields = [
        {"name": "orders", "type": "long"},
        {"name": "coupon", "type": ["null", "string"]},
    ]
    serde = avro(
        {
            "type": "record",
            "name": "Last",
            "fields": [*fields, {"name": "ratio", "type": "double"}],
        },
        Last,
    )
    state = new_state(Memory(), StoreSpec("lasts", "key_value", text, serde))
    put(state.stores["lasts"], b"ann", Last(1, None))  # type: ignore[arg-type]
    with pytest.raises(SerdeError, match=r"its type is `str \| None`"):
        state.changes()


@pytest.mark.parametrize(
    ("serde", "cure"),
    [
        (
            json(Longer),
            r"missing required field `city`: if the type got the field later, give it a default",
        ),
        (
            json(dict[str, int]),
            "If it was written with another serde or type, go back to that",
        ),
    ],
)
def test_a_row_of_an_earlier_type_says_what_may_have_changed(
    serde: Serde[Any], cure: str
) -> None:
    engine = Memory()
    state = new_state(engine, StoreSpec("lasts", "key_value", text, LASTS))
    put(state.stores["lasts"], b"ann", GOOD)
    state.changes()
    state.commit({})
    later = new_state(engine, StoreSpec("lasts", "key_value", text, serde))
    with pytest.raises(
        SerdeError,
        match=f'store "lasts": the value of key b.ann. is not of serde json.*{cure}',
    ):
        later.stores["lasts"].load(b"ann")


def test_bytes_that_are_no_value_name_store_key_and_cure() -> None:
    engine = Memory()
    state = new_state(engine, StoreSpec("counts", "key_value", text, text))
    put(state.stores["counts"], b"a", "text")
    state.changes()
    state.commit({})
    with pytest.raises(
        SerdeError,
        match=r'store "counts": the value of key b\'a\' is not of serde int64.*another application.id',
    ):
        new_state(engine).stores["counts"].load(b"a")


def test_a_key_of_another_range_is_refused_when_it_is_looked_up() -> None:
    key = next(
        key
        for key in (b"%d" % number for number in range(1000))
        if key_group(key_hash(key)) >= 128
    )
    state = TaskState(
        Database(Memory(), [COUNTS]), [COUNTS], KeyRange.of_groups(0, 127), BYTES
    )
    with pytest.raises(StateError, match=r"this task has 0\.\.127"):
        put(state.stores["counts"], key, 1)


def test_values_are_live_objects_that_are_serialised_once_a_commit() -> None:
    written: list[object] = []

    def encode(value: dict[str, int]) -> bytes:
        written.append(dict(value))
        return json.encode(value)

    counting: Serde[dict[str, int]] = Serde("counting", encode, json.decode)
    state = new_state(Memory(), StoreSpec("counts", "key_value", text, counting))
    table = state.stores["counts"]
    put(table, b"a", {"n": 0})
    for _ in range(10):
        table.load(b"a").value["n"] += 1
    state.changes()
    state.commit({})
    assert written == [{"n": 10}]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.sampled_from(KEYS), st.integers(0, 99) | st.none()
        ),
        st.tuples(
            st.sampled_from(["changes", "commit", "discard", "reopen", "scan", "full"]),
            st.sampled_from(KEYS),
            st.none(),
        ),
    ),
    max_size=40,
)


@pytest.mark.ci
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(OPERATIONS, st.sampled_from([1, 1200, BYTES]))
def test_a_table_is_a_dict_whatever_is_committed_discarded_evicted_or_opened_again(
    new_engine: NewEngine,
    operations: list[tuple[str, bytes, int | None]],
    cache_bytes: int,
) -> None:
    engine = new_engine()
    database = Database(engine, [COUNTS])
    state = TaskState(database, [COUNTS], WHOLE, cache_bytes)
    live: dict[bytes, tuple[int, int]] = {}
    committed: dict[bytes, tuple[int, int]] = {}
    log: dict[bytes, tuple[bytes, int]] = {}
    pending: dict[bytes, tuple[bytes | None, int]] = {}

    def freeze() -> None:
        for batch in state.changes():
            assert batch.keys == sorted(
                batch.keys, key=lambda key: layout.database_key(key, key)
            )
            pending.update(
                zip(
                    batch.keys,
                    zip(batch.values, batch.timestamps, strict=True),
                    strict=True,
                )
            )

    for number, (what, key, value) in enumerate(operations):
        table = state.stores["counts"]
        if what == "put":
            put(table, key, value, number)
            if value is None:
                live.pop(key, None)
            else:
                live[key] = (value, number)
        elif what == "changes":
            freeze()
        elif what == "commit":
            freeze()
            state.commit({"counts": number})
            committed = dict(live)
            log = {
                key: (found, timestamp)
                for key, (found, timestamp) in (log | pending).items()
                if found is not None
            }
            pending.clear()
        elif what == "scan":
            assert seen(table.scan(None, None)) == [
                (key, *found) for key, found in sorted(live.items())
            ]
        elif what == "full":
            assert state.full in (True, False)
        else:
            live = dict(committed)
            pending.clear()
            if what == "discard":
                state.discard()
            else:
                state = TaskState(
                    Database(engine, [COUNTS]), [COUNTS], WHOLE, cache_bytes
                )
    for key in KEYS:
        entry = state.stores["counts"].load(key)
        assert (
            None if entry.value is None else (entry.value, entry.timestamp)
        ) == live.get(key)
    stored = {
        key: layout.unpack(data)
        for key, data in Database(engine, [COUNTS]).scan(
            "counts", range(256), None, None
        )
    }
    assert stored == {
        key: (int64.serialize(value), timestamp)
        for key, (value, timestamp) in committed.items()
    }
    assert stored == log  # the changelog has the same rows
    engine.close()


def test_a_table_is_what_operators_expect() -> None:
    store: TableStore = Table(Database(Memory(), [COUNTS]), COUNTS, ALL_GROUPS)
    store.advance(10)
    assert store.spec is COUNTS
