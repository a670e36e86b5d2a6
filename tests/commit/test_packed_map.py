"""A packed map equals a sorted dict; its memory, and that of a view of many commits."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.packed_map import LEAF_BYTES, Packed
from coopstreams.commit.record import (
    CommitKey,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
)
from coopstreams.commit.view import TILINGS, CommitView
from coopstreams.log.log import Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE, KeyRange

keys = st.integers(0, 200).map(lambda number: number.to_bytes(2, "big"))
values = st.one_of(st.binary(max_size=40), st.integers(0, 2 * LEAF_BYTES).map(bytes))


@given(
    st.lists(st.tuples(keys, st.one_of(st.none(), values)), max_size=300),
    st.binary(max_size=2),
)
def test_it_is_a_dict_in_order(
    steps: list[tuple[bytes, bytes | None]], prefix: bytes
) -> None:
    packed, plain = Packed(2), dict[bytes, bytes]()
    for key, value in steps:
        assert packed.get(key) == plain.get(key)
        if value is None:
            assert packed.remove(key) == (plain.pop(key, None) is not None)
        else:
            assert packed.put(key, value) == (key not in plain)
            plain[key] = value
        assert packed.get(key) == value
    assert len(packed) == len(plain)
    assert list(packed.items()) == sorted(plain.items())
    assert list(packed.items(prefix)) == sorted(
        (key, value) for key, value in plain.items() if key.startswith(prefix)
    )


@pytest.mark.ci
@pytest.mark.parametrize(("topics", "pieces"), [(1, 1), (20, 1), (2, 256)])
def test_an_entry_of_a_view_takes_no_more_than_64_bytes(
    topics: int, pieces: int
) -> None:
    each = 2560 // topics // pieces
    view = CommitView("accounting")
    records = [
        (
            encode_key(
                CommitKey("accounting", f"topic-{topic}", partition, key_range, 7, 12)
            ),
            encode_value(
                CommitValue(
                    f"accounting-consumer-{partition % 9:032}-commit",
                    (Segment(key_range, 5_000_000_000, 1_700_000_000_000),),
                )
            ),
        )
        for topic in range(topics)
        for partition in range(each)
        for key_range in KeyRange.split(pieces)
    ]
    tracemalloc.start()
    for key, value in records:
        view.apply(key, value)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert sum(len(view.live(at)) for at in view.sources()) == len(records)
    assert held / len(records) <= 64


def test_asking_about_all_partitions_keeps_a_few_tilings_only() -> None:
    view = CommitView("g")
    some = [TopicPartition("orders", number) for number in range(2 * TILINGS)]
    for topic, number in some:
        view.apply(
            encode_key(CommitKey("g", topic, number, WHOLE, 1, 1)),
            encode_value(CommitValue("t", (Segment(WHOLE, number),))),
        )
    assert [view.stable(at, None) for at in some] == [
        Position(number) for number in range(2 * TILINGS)
    ]
    assert len(view._tilings) <= TILINGS
