"""Computes where a key belongs: its partition, key hash, key group and key range.

Partition and key hash come from two different hash functions. The partition is Kafka's
murmur2, so that Java producers and consumers agree with us. Key ranges are cut from
xxh64 with a seed, halved: with murmur2 for both, `hash % n` inside one partition would
leave ranges empty. Spark's `xxhash64(binary)` is bit-identical to xxh64 with this seed,
so Spark can cut ranges natively.

Invariant: both functions are frozen; `tests/topology/test_keys.py` has the published
vectors. Turned down: `hash % n` for ranges (a range would not be contiguous, and a
split would move every key).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

from xxhash import xxh64_intdigest

from coopstreams.topology.errors import AssignmentError

HASH_BITS = 63
MAX_HASH = (1 << HASH_BITS) - 1
"""The largest key hash: Java's Long.MAX_VALUE, as in the proposal."""

GROUPS = 256
"""The number of key groups, which are equal slices of the hash space. Tasks are split
between key groups.
"""

_GROUP_SHIFT = HASH_BITS - 8
_SEED = 42


def key_hash(key: bytes) -> int:
    """Return the key hash of a serialised key, from which key ranges are cut.

    Shape: [0, 2**63 - 1].
    Source: xxh64, seed 42, shifted right by one.
    """
    return xxh64_intdigest(key, _SEED) >> 1


def offset_hash(offset: int) -> int:
    """Return the key hash of a record without a key: a hash of its offset, evenly
    spread.
    """
    return xxh64_intdigest(offset.to_bytes(8, "big"), _SEED) >> 1


def key_hashes(keys: Sequence[bytes | None], offsets: Sequence[int]) -> list[int]:
    """Return the key hash of each record; for a record without a key, the hash of its
    offset.
    """
    try:
        return [xxh64_intdigest(key, _SEED) >> 1 for key in keys]  # type: ignore[arg-type]
    except (
        TypeError
    ):  # xxhash refuses None, which is rare: testing every key would slow every batch
        return [
            offset_hash(offset) if key is None else key_hash(key)
            for key, offset in zip(keys, offsets, strict=True)
        ]


def without_suffix(keys: Sequence[bytes | None], suffix: int) -> Sequence[bytes | None]:
    """Return the keys without their last `suffix` bytes. A key that is None stays None."""
    return [None if key is None else key[:-suffix] for key in keys] if suffix else keys


def key_group(hash_: int) -> int:
    """Return the key group (0..255) of a key hash."""
    return hash_ >> _GROUP_SHIFT


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of the bytes, as an unsigned number.

    Source: `org.apache.kafka.common.utils.Utils.murmur2`.
    """
    length = len(data)
    h = (0x9747B28C ^ length) & 0xFFFFFFFF
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        k = (k ^ (k >> 24)) * 0x5BD1E995 & 0xFFFFFFFF
        h = (h * 0x5BD1E995 & 0xFFFFFFFF) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that the Java client's default partitioner picks for a key.

    Source: Kafka `BuiltInPartitioner.partitionForKey`: murmur2, sign bit cleared,
    modulo the partition count.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class KeyGroups(NamedTuple):
    """A run of consecutive key groups, as state is stored, restored and shipped.

    Shape: both ends inclusive.
    """

    first: int
    last: int

    @property
    def numbers(self) -> range:
        """The numbers of the groups, ascending."""
        return range(self.first, self.last + 1)

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


ALL_GROUPS = KeyGroups(0, GROUPS - 1)
"""All key groups of a partition."""


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """A run of the hash space that one shared task owns.

    Shape: `start` and `end` are hashes, both inclusive. Ranges of stateful tasks are
    cut at key groups.
    """

    MAX: ClassVar[int] = MAX_HASH
    """The largest hash: `KeyRange(0, KeyRange.MAX)` is the whole hash space."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= MAX_HASH:
            raise ValueError(
                f"key range [{self.start}, {self.end}] is not within [0, {MAX_HASH}]"
            )

    @staticmethod
    def of_groups(first: int, last: int) -> KeyRange:
        """Return the range of the key groups first..last, both inclusive."""
        return KeyRange(first << _GROUP_SHIFT, ((last + 1) << _GROUP_SHIFT) - 1)

    @staticmethod
    def split(parts: int) -> list[KeyRange]:
        """Return the whole hash space in `parts` contiguous ranges of nearly equal
        size, cut at key groups.

        Raises:
            ValueError: there are fewer key groups than parts. Ask for at most 256.
        """
        if not 1 <= parts <= GROUPS:
            raise ValueError(
                f"a partition splits into 1 to {GROUPS} key ranges, not {parts}"
            )
        cuts = [i * GROUPS // parts for i in range(parts + 1)]
        return [KeyRange.of_groups(a, b - 1) for a, b in pairwise(cuts)]

    @property
    def groups(self) -> KeyGroups:
        """The key groups that have at least one hash of the range. If the range
        `is_cut_at_groups`, they have no other hashes.
        """
        return KeyGroups(key_group(self.start), key_group(self.end))

    @property
    def is_cut_at_groups(self) -> bool:
        """Whether the range consists of whole key groups, as the ranges of stateful
        tasks do.
        """
        return self == KeyRange.of_groups(*self.groups)

    @property
    def is_whole(self) -> bool:
        """Whether the range is the whole hash space, so that its task has the partition
        alone.
        """
        return self.start == 0 and self.end == MAX_HASH

    def __contains__(self, hash_: int) -> bool:
        return self.start <= hash_ <= self.end

    def overlaps(self, other: KeyRange) -> bool:
        """Return whether the two ranges have a hash in common."""
        return self.start <= other.end and other.start <= self.end

    def covers(self, other: KeyRange) -> bool:
        """Return whether every hash of the other range lies in this range."""
        return self.start <= other.start and other.end <= self.end

    def intersect(self, other: KeyRange) -> KeyRange | None:
        """Return the hashes that both ranges have in common, None if there are none."""
        start = max(self.start, other.start)
        end = min(self.end, other.end)
        return KeyRange(start, end) if start <= end else None

    def minus(self, others: Iterable[KeyRange]) -> list[KeyRange]:
        """Return the hashes of this range that are in none of the others, as contiguous
        ranges, ascending.
        """
        left = []
        at = self.start
        for other in sorted(others):
            if other.end < at or other.start > self.end:
                continue
            if other.start > at:
                left.append(KeyRange(at, other.start - 1))
            at = max(at, other.end + 1)
        if at <= self.end:
            left.append(KeyRange(at, self.end))
        return left

    def __str__(self) -> str:
        """Return the key groups if the range is cut at them (`0..127`), else the
        hashes.
        """
        if self.is_cut_at_groups:
            return str(self.groups)
        return f"{self.start}..{self.end}"


WHOLE = KeyRange(0, MAX_HASH)
"""The whole hash space."""


def check_tiling(ranges: Sequence[KeyRange], where: str) -> None:
    """Check that every hash belongs to exactly one of the ranges.

    Raises:
        AssignmentError: two ranges overlap, or a hash belongs to no range. The message
            begins with `where`.
    """
    at = 0
    for key_range in sorted(ranges):
        if key_range.start < at:
            raise AssignmentError(
                f"{where}: key range {key_range} overlaps the one before it"
            )
        if key_range.start > at:
            raise AssignmentError(
                f"{where}: no key range has the hashes {at}..{key_range.start - 1}"
            )
        at = key_range.end + 1
    if at <= MAX_HASH:
        raise AssignmentError(f"{where}: no key range has the hashes {at}..{MAX_HASH}")
