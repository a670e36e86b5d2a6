"""Partition, hash and key group of a key. The vectors are frozen: with a changed hash,
stores lose their rows.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import (
    GROUPS,
    MAX_HASH,
    WHOLE,
    KeyRange,
    check_tiling,
    key_group,
    key_hash,
    key_hashes,
    murmur2,
    offset_hash,
    partition_of,
)

# The expected values of Kafka's own UtilsTest for murmur2.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
# Published here: xxh64, seed 42, shifted right by one.
KEY_HASH = {
    b"": 5501336153254261634,
    b"a": 4932144372486232166,
    b"21": 1293141659989868702,
    b"foobar": 4569275629770508364,
    b"Spark": 7076138008009243355,
}
HASHES = st.integers(0, MAX_HASH)
RANGES = st.tuples(HASHES, HASHES).map(lambda ends: KeyRange(min(ends), max(ends)))


@pytest.mark.parametrize("key", MURMUR2)
def test_partitions_are_those_of_java_producers(key: bytes) -> None:
    assert murmur2(key) == MURMUR2[key] % 2**32
    assert partition_of(key, 7) == (MURMUR2[key] & 0x7FFFFFFF) % 7


@pytest.mark.parametrize("key", KEY_HASH)
def test_key_hashes_are_frozen(key: bytes) -> None:
    assert key_hash(key) == KEY_HASH[key]


def test_offset_hashes_are_frozen() -> None:
    assert [offset_hash(0), offset_hash(1)] == [
        6597109305806862902,
        3776062409821395165,
    ]


@given(st.lists(st.none() | st.binary(max_size=8)))
def test_a_batch_hashes_as_its_records(keys: list[bytes | None]) -> None:
    offsets = range(1000, 1000 + len(keys))
    assert key_hashes(keys, offsets) == [
        offset_hash(offset) if key is None else key_hash(key)
        for key, offset in zip(keys, offsets, strict=True)
    ]


@given(st.binary())
def test_a_hash_lies_in_its_group(key: bytes) -> None:
    hash_ = key_hash(key)
    assert 0 <= hash_ <= MAX_HASH
    assert hash_ in KeyRange.of_groups(key_group(hash_), key_group(hash_))


@given(st.integers(1, GROUPS))
def test_a_split_tiles_the_hash_space_evenly(parts: int) -> None:
    pieces = KeyRange.split(parts)
    check_tiling(pieces, "test")
    sizes = [len(piece.groups.numbers) for piece in pieces]
    assert len(pieces) == parts
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parts", [0, GROUPS + 1])
def test_nothing_splits_finer_than_key_groups(parts: int) -> None:
    with pytest.raises(ValueError, match="a partition splits into 1 to 256 key ranges"):
        KeyRange.split(parts)


@given(RANGES, st.lists(RANGES, max_size=4), HASHES)
def test_what_is_left_is_what_the_others_do_not_have(
    key_range: KeyRange, others: list[KeyRange], hash_: int
) -> None:
    left = key_range.minus(others)
    assert any(hash_ in piece for piece in left) == (
        hash_ in key_range and not any(hash_ in other for other in others)
    )
    assert left == sorted(left)


@given(RANGES, RANGES, HASHES)
def test_an_intersection_is_in_both(a: KeyRange, b: KeyRange, hash_: int) -> None:
    common = a.intersect(b)
    assert (common is not None) == a.overlaps(b) == b.overlaps(a)
    assert (common is not None and hash_ in common) == (hash_ in a and hash_ in b)
    assert a.covers(b) == (common == b)


def test_ranges_print_as_key_groups_where_they_are_cut_there() -> None:
    assert str(WHOLE) == "0..255"
    assert str(KeyRange.split(2)[1]) == "128..255"
    assert WHOLE.is_whole
    assert not KeyRange.split(2)[0].is_whole


@pytest.mark.parametrize("ends", [(-1, 5), (5, 4), (0, MAX_HASH + 1)])
def test_a_range_outside_the_hash_space_cannot_be(ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is not within"):
        KeyRange(*ends)


def test_a_tiling_with_a_hole_or_an_overlap_is_an_error_that_names_the_place() -> None:
    first, second, third = KeyRange.split(3)
    with pytest.raises(AssignmentError, match="orders-0: no key range has the hashes"):
        check_tiling([first, third], "orders-0")
    with pytest.raises(AssignmentError, match="orders-0: no key range has the hashes"):
        check_tiling([first, second], "orders-0")
    with pytest.raises(
        AssignmentError, match=r"orders-0: key range .* overlaps the one before it"
    ):
        check_tiling([first, second, third, second], "orders-0")
