"""Messages become columns: duplicates and records below the position are dropped, in
any batches of the client.
"""

from __future__ import annotations

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.kafka.messages import columns_of


def message(offset: int) -> Message:
    return Message(
        topic="t",
        partition=0,
        offset=offset,
        key=b"k",
        value=b"v",
        timestamp=(1, offset),
        headers=[],
    )


@given(st.lists(st.integers(0, 12), max_size=12), st.integers(0, 6))
def test_offsets_ascend_from_the_position_on_each_once_and_none_is_invented(
    offsets: list[int], at: int
) -> None:
    expected: list[int] = []
    for offset in offsets:
        if offset >= at and (not expected or offset > expected[-1]):
            expected.append(offset)
    assert (
        list(columns_of([message(offset) for offset in offsets], at).offsets)
        == expected
    )


def test_a_record_that_comes_twice_does_not_hide_one_that_is_missing() -> None:
    assert list(columns_of([message(5), message(5), message(7)], 5).offsets) == [5, 7]
