"""A table with many rows for each plain key: in any history, `of` yields those of one
key, and only those.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state import table
from coopstreams.state.database import Database
from coopstreams.state.engine import Engine
from coopstreams.state.layout import GROUP_SHIFT
from coopstreams.state.memory_engine import Memory
from coopstreams.state.table import SubscriberTable
from coopstreams.state.task_state import TaskState
from coopstreams.topology.graph.foreign_keys import (
    SUBSCRIBERS,
    ForeignKeySubscription,
    subscribe,
    subscribers_of,
)
from coopstreams.topology.keys import WHOLE, key_hash
from coopstreams.topology.serdes import raw
from coopstreams.topology.stores import SUBSCRIBER_BYTES, StoreSpec, subscriber_key
from tests.state.conftest import NewEngine

SPEC = StoreSpec(
    "rows", "subscribers", raw, SUBSCRIBERS, row_key=raw, suffix_bytes=SUBSCRIBER_BYTES
)
KEYS = [b"", b"a", b"ab", b"\xff", b"\xff\xff"]
KEYS += [
    next(
        key
        for key in (b"a%d" % n for n in count())
        if key_hash(key) >> GROUP_SHIFT == key_hash(b"a") >> GROUP_SHIFT
    )
]
"""Some are the beginnings of others, one in the same key group."""
SUBSCRIBERS_OF_THEM = [b"", b"1", b"2", b"3"]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(KEYS),
            st.sampled_from(SUBSCRIBERS_OF_THEM),
            st.one_of(st.none(), st.integers(0, 9)),
        ),
        st.sampled_from(["commit", "discard", "reopen"]),
    ),
    max_size=30,
)


def change(
    table: SubscriberTable, key: bytes, subscriber: bytes, number: int | None
) -> None:
    """Subscribe with a hash that is this number, or unsubscribe."""
    row = subscriber_key(key, subscriber)
    entry = table.entries.get(row) or table.load(row)
    hash_ = None if number is None else bytes([number]) * 16
    entry.value = subscribe(entry.value, ForeignKeySubscription(3, hash_, subscriber))
    if not entry.dirty:
        table.touch(row, entry)


def run(steps: list[Any], engine: Engine, cache_bytes: int) -> None:
    rows: dict[tuple[bytes, bytes], bytes] = {}
    committed = dict(rows)
    state = TaskState(Database(engine, [SPEC]), [SPEC], WHOLE, cache_bytes)
    for step in steps:
        match step:
            case "commit":
                state.changes()
                state.commit({"rows": 1})
                committed = dict(rows)
            case "discard":
                state.discard()
                rows = dict(committed)
            case "reopen":
                state = TaskState(Database(engine, [SPEC]), [SPEC], WHOLE, cache_bytes)
                rows = dict(committed)
            case key, subscriber, number:
                rows_of: Any = state.stores["rows"]
                change(rows_of, key, subscriber, number)
                rows.pop((key, subscriber), None)
                if number is not None:
                    rows[key, subscriber] = bytes([number]) * 16
        rows_of = state.stores["rows"]
        for key in KEYS:
            expected = sorted(
                (subscriber, hash_)
                for (of, subscriber), hash_ in rows.items()
                if of == key
            )
            assert subscribers_of(rows_of.of(key)) == expected


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=30,
    deadline=None,
)
@given(
    steps=STEPS,
    cache_bytes=st.sampled_from([0, 1 << 30]),
    few=st.sampled_from([1, 3, 1000]),
)
def test_the_rows_of_a_key_are_those_of_a_dict(
    steps: list[Any], cache_bytes: int, few: int
) -> None:
    with patch.object(table, "_FEW_ROWS", few):
        run(steps, Memory(), cache_bytes)


def test_the_rows_of_a_key_are_found_in_each_engine(new_engine: NewEngine) -> None:
    steps = [
        (key, subscriber, at)
        for at, key in enumerate(KEYS)
        for subscriber in SUBSCRIBERS_OF_THEM
    ]
    more = [
        (b"a", b"1", None),
        (b"ab", b"2", 9),
        "commit",
        "reopen",
        (b"a", b"2", 7),
        (b"a", b"1", 8),
        "discard",
    ]
    for few in 2, 1000:
        with patch.object(table, "_FEW_ROWS", few):
            run([*steps, "commit", *more], new_engine(), 0)


@pytest.mark.parametrize("subscribers", [1, 5_000])
def test_a_subscription_costs_the_same_however_many_there_are(subscribers: int) -> None:
    state = TaskState(Database(Memory(), [SPEC]), [SPEC], WHOLE, 1 << 30)
    rows: Any = state.stores["rows"]
    for number in range(subscribers):
        change(rows, b"DE", b"%d" % number, 1)
    state.changes()
    state.commit({"rows": 1})
    change(rows, b"DE", b"new", 1)
    (batch,) = state.changes()
    assert [len(value or b"") for value in batch.values] == [4 + len(b"new") + 16]
    assert len(subscribers_of(rows.of(b"DE"))) == subscribers + 1
