from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.state import layout
from coopstreams.topology.keys import GROUPS, KeyGroups, KeyRange, key_group, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec, window_key

KEYS = st.binary(max_size=12)
WINDOWS = StoreSpec("w", "window", text, int64, window_ms=10, retention_ms=300_000)


@given(KEYS)
def test_a_database_key_begins_with_the_key_group_of_its_plain_key(key: bytes) -> None:
    assert layout.database_key(key, key) == bytes([key_group(key_hash(key))]) + key


@given(KEYS, st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1))
def test_the_bounds_of_groups_hold_their_keys_and_no_others(
    key: bytes, one: int, other: int
) -> None:
    first, last = sorted((one, other))
    low, high = layout.group_bounds(KeyGroups(first, last))
    found = layout.database_key(key, key)
    assert (low <= found and (high is None or found < high)) == (
        first <= found[0] <= last
    )


@given(st.binary(min_size=1, max_size=4), KEYS)
def test_a_prefix_bounds_exactly_the_keys_that_begin_with_it(
    prefix: bytes, key: bytes
) -> None:
    end = layout.prefix_end(prefix)
    assert (key >= prefix and (end is None or key < end)) == key.startswith(prefix)


@given(KEYS, KEYS)
def test_no_key_lies_between_a_key_and_the_one_after_it(
    key: bytes, other: bytes
) -> None:
    assert not key < other < layout.after(key)


@given(KEYS, st.integers(0, 2**63 - 1))
def test_a_changelog_key_becomes_the_store_key_again(key: bytes, start: int) -> None:
    windowed = window_key(key, start)
    assert (
        layout.store_key("window", layout.changelog_key("window", windowed)) == windowed
    )
    assert layout.changelog_key("window", windowed) == key + start.to_bytes(
        8, "big"
    ) + bytes(4)
    assert layout.store_key("key_value", layout.changelog_key("key_value", key)) == key
    assert layout.window_start(windowed) == start


@given(st.binary(), st.integers(-(2**63), 2**63 - 1))
def test_a_value_comes_back_with_its_timestamp(value: bytes, timestamp: int) -> None:
    assert layout.unpack(layout.TIMESTAMP.pack(timestamp) + value) == (value, timestamp)


def test_a_segment_is_half_the_retention_and_at_least_a_minute() -> None:
    assert layout.segment_ms(WINDOWS) == 150_000
    assert (
        layout.segment_ms(
            StoreSpec("w", "window", text, int64, window_ms=10, retention_ms=20)
        )
        == 60_000
    )


def test_the_name_of_a_segment_says_which_it_is_even_if_the_store_name_has_dots() -> (
    None
):
    assert layout.parse_segment_family(layout.segment_family("a.b-c_1", -3)) == (
        "a.b-c_1",
        -3,
    )
    assert layout.parse_segment_family(layout.family_of("window")) is None


def test_a_range_that_is_not_cut_at_key_groups_is_refused() -> None:
    assert layout.groups_of(KeyRange.of_groups(3, 7)) == (3, 7)
    with pytest.raises(ValueError, match="not cut at key groups"):
        layout.groups_of(KeyRange(0, 12))
