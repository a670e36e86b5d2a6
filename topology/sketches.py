"""Summaries of many values in little space: how many distinct values there were, and
below which number a share of them lies.

    Distinct    a set of hashes up to 256 values, then 4,096 registers of a HyperLogLog: 1.6 % standard error
    Spread      counts of numbers in buckets whose widths grow with the numbers, so each quantile has a bounded
                relative error

Invariant: a summary is a function of the values that were added, not of their order, of
merges in between, or of when it was serialised. So results are the same for any ranges,
any commits, in a backfill, and for sessions that merge. Buckets are computed by exact
operations (`frexp`, multiplication, no logarithm), so they are the same on every
machine.
Turned down: Apache DataSketches. Its quantile sketches KLL, REQ and `quantiles` draw at
random; its t-digest gives other results after each serialisation, so a result would
depend on commits *(measured: 192 or 197 for one p99 of 20,000 numbers)*; and it has no
wheels for Python 3.14. Turned down: t-digest in general, whose result depends on the
order.
Source: Flajolet et al., "HyperLogLog"; Ertl, "New cardinality estimation algorithms for
HyperLogLog sketches", algorithm 6; Tene, HdrHistogram; Masson et al., "DDSketch", for
quantiles of buckets and the collapse of the lowest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import frexp
from struct import Struct
from typing import Any, Final, TypeAlias

import msgspec
from xxhash import xxh3_64_intdigest

FEW: Final = 256
"""The most distinct values that are counted exactly."""
_INDEX_BITS: Final = 12
_REGISTERS: Final = 1 << _INDEX_BITS
_REST_BITS: Final = 64 - _INDEX_BITS
_REST: Final = (1 << _REST_BITS) - 1
_HIGHEST: Final = _REST_BITS + 1
"""The largest value of a register."""
_ALPHA: Final = 0.5 / math.log(2.0)

POWERS: Final = 64
"""How many powers of two have buckets: of numbers of one sign, those that are less than
10⁻¹⁹ of the largest count as the smallest that has a bucket.
"""

_canonical = msgspec.msgpack.Encoder(order="deterministic").encode
_HASH = Struct(">Q")

SpreadState: TypeAlias = tuple[int, int, list[int], int, list[int]]
"""Zeros; the first bucket and the counts of positive numbers, and of negative ones."""


class Distinct:
    """The distinct values among those added, as their 64-bit hashes. Immutable.

    Shape: `few` is the set of hashes, at most 256; beyond, it is None and there are
    `registers`, with the number of registers of each value in `of_value`.
    """

    __slots__ = ("_estimate", "few", "of_value", "registers")

    def __init__(
        self,
        few: frozenset[int] | None,
        registers: bytes = b"",
        of_value: tuple[int, ...] = (),
    ) -> None:
        self.few = few
        self.registers = registers
        self.of_value = of_value
        self._estimate: int | None = None

    def add(self, hash_: int) -> Distinct:
        """Return the summary with one more value, given its hash; the same object if
        nothing changes.
        """
        if self.few is not None:
            if hash_ in self.few:
                return self
            return _of_hashes(self.few | {hash_})
        at = hash_ >> _REST_BITS
        value = _HIGHEST - (hash_ & _REST).bit_length()
        before = self.registers[at]
        if value <= before:
            return self
        registers = b"%b%c%b" % (self.registers[:at], value, self.registers[at + 1 :])
        counts = list(self.of_value)
        counts[before] -= 1
        counts[value] += 1
        return Distinct(None, registers, tuple(counts))

    def merge(self, other: Distinct) -> Distinct:
        """Return the summary of the values of both."""
        if self.few is not None and other.few is not None:
            return _of_hashes(self.few | other.few)
        registers = bytes(map(max, self._dense(), other._dense()))
        return Distinct(None, registers, _of_value(registers))

    def estimate(self) -> int:
        """Return how many distinct values there were: exactly up to 256."""
        if self.few is not None:
            return len(self.few)
        if self._estimate is None:
            self._estimate = round(_cardinality(self.of_value))
        return self._estimate

    def state(self) -> bytes:
        """Return the summary as bytes: sorted hashes of 8 bytes, or 4,096 registers and
        a last byte.
        """
        if self.few is not None:
            return b"".join(map(_HASH.pack, sorted(self.few)))
        return self.registers + b"\0"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Distinct):
            return NotImplemented
        return self.few == other.few and self.registers == other.registers

    def __hash__(self) -> int:
        return hash((self.few, self.registers))

    def __repr__(self) -> str:
        return f"Distinct({self.estimate()})"

    def _dense(self) -> bytes:
        return self.registers if self.few is None else _registers(self.few)


NOTHING: Final = Distinct(frozenset())
"""The summary of no values."""


def distinct_of(state: bytes) -> Distinct:
    """Return the summary whose `state` this is.

    Raises:
        ValueError: it is not such a state.
    """
    if len(state) == _REGISTERS + 1:
        registers = bytes(state[:-1])
        if state[-1] or max(registers) > _HIGHEST:
            raise ValueError("these are no registers of distinct values")
        return Distinct(None, registers, _of_value(registers))
    hashes = frozenset(found for (found,) in _HASH.iter_unpack(state))
    if len(hashes) > FEW:
        raise ValueError(f"{len(hashes)} hashes of distinct values are too many")
    return Distinct(hashes)


def value_hash(value: Any) -> int:
    """Return the hash of a value, which is not None. Values with equal JSON have equal
    hashes, whole floats that of their integer.

    Raises:
        TypeError: the value has no such form.
    """
    if value.__class__ is str:
        return xxh3_64_intdigest(value.encode())
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        value = int(value)
    return xxh3_64_intdigest(_canonical(value), 1)


def _of_hashes(hashes: frozenset[int]) -> Distinct:
    if len(hashes) <= FEW:
        return Distinct(hashes)
    registers = _registers(hashes)
    return Distinct(None, registers, _of_value(registers))


def _registers(hashes: Iterable[int]) -> bytes:
    registers = bytearray(_REGISTERS)
    for hash_ in hashes:
        at = hash_ >> _REST_BITS
        value = _HIGHEST - (hash_ & _REST).bit_length()
        if value > registers[at]:
            registers[at] = value
    return bytes(registers)


def _of_value(registers: bytes) -> tuple[int, ...]:
    counts = Counter(registers)
    return tuple(counts[value] for value in range(_HIGHEST + 1))


def _cardinality(of_value: Sequence[int]) -> float:
    """Return the estimate of a HyperLogLog with `of_value[k]` registers of value k.

    Source: Ertl, algorithm 6, with `tau` and `sigma`.
    """
    total = _REGISTERS * _tau(1.0 - of_value[_HIGHEST] / _REGISTERS)
    for value in range(_HIGHEST - 1, 0, -1):
        total = 0.5 * (total + of_value[value])
    total += _REGISTERS * _sigma(of_value[0] / _REGISTERS)
    return _ALPHA * _REGISTERS * _REGISTERS / total


def _tau(share: float) -> float:
    if share in (0.0, 1.0):
        return 0.0
    power = 1.0
    total = 1.0 - share
    while True:
        share = math.sqrt(share)
        before = total
        power *= 0.5
        total -= (1.0 - share) * (1.0 - share) * power
        if total == before:
            return total / 3.0


def _sigma(share: float) -> float:
    if share == 1.0:
        return math.inf
    power = 1.0
    total = share
    while True:
        share *= share
        before = total
        total += share * power
        power += power
        if total == before:
            return total


class Spread:
    """The numbers that were added, counted in buckets. Changed in place.

    Shape: `parts` is how many buckets a power of two has. The bucket `i` of positive
    numbers, at `positive[i - low]`, is [2ᵉ⁻¹ (1 + j / parts), the next one's begin) for
    i = e · parts + j + parts. `negative` has the buckets of the absolute values, and
    `zeros` counts zeros.
    """

    __slots__ = ("low", "negative", "negative_low", "parts", "positive", "zeros")

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.zeros = 0
        self.low = 0
        self.positive: list[int] = []
        self.negative_low = 0
        self.negative: list[int] = []

    def add(self, number: float) -> None:
        """Count a finite number."""
        if number > 0.0:
            fraction, exponent = frexp(number)
            parts = self.parts
            at = exponent * parts + int(fraction * 2 * parts) - self.low
            counts = self.positive
            if 0 <= at < len(counts):
                counts[at] += 1
            else:
                self.low = self._count(self.positive, self.low, at + self.low, 1)
        elif number == 0.0:
            self.zeros += 1
        else:
            bucket = self._bucket(-number)
            low = self.negative_low
            self.negative_low = self._count(self.negative, low, bucket, 1)

    def subtract(self, number: float) -> None:
        """Uncount a number that was added."""
        if number > 0.0:
            bucket = self._bucket(number)
            self.low = self._count(self.positive, self.low, bucket, -1)
        elif number == 0.0:
            self.zeros -= 1
        else:
            bucket = self._bucket(-number)
            low = self.negative_low
            self.negative_low = self._count(self.negative, low, bucket, -1)

    def merged(self, other: Spread) -> Spread:
        """Return the counts of the numbers of both; they have the same accuracy."""
        assert self.parts == other.parts
        both = Spread(self.parts)
        both.zeros = self.zeros + other.zeros
        for one in (self, other):
            for bucket, count in enumerate(one.positive, one.low):
                if count:
                    both.low = both._count(both.positive, both.low, bucket, count)
            for bucket, count in enumerate(one.negative, one.negative_low):
                if count:
                    low = both.negative_low
                    both.negative_low = both._count(both.negative, low, bucket, count)
        return both

    def quantiles(self, shares: Sequence[float]) -> list[float] | None:
        """Return for each share a number that this share of all numbers does not
        exceed, apart from the accuracy; None if there are no numbers.
        """
        below = sum(self.negative)
        total = below + self.zeros + sum(self.positive)
        if not total:
            return None
        found = []
        for share in shares:
            rank = max(0, math.ceil(share * total) - 1)
            if rank < below:
                found.append(
                    -self._number(self.negative, self.negative_low, below - 1 - rank)
                )
            elif rank < below + self.zeros:
                found.append(0.0)
            else:
                rank -= below + self.zeros
                found.append(self._number(self.positive, self.low, rank))
        return found

    def state(self) -> SpreadState:
        """Return the counts as values of MessagePack."""
        return (
            self.zeros,
            self.low,
            self.positive,
            self.negative_low,
            self.negative,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spread):
            return NotImplemented
        return self.parts == other.parts and self.state() == other.state()

    __hash__ = None  # type: ignore[assignment]  # it changes in place

    def __repr__(self) -> str:
        return f"Spread{self.state()}"

    def _bucket(self, number: float) -> int:
        fraction, exponent = frexp(number)
        return exponent * self.parts + int(fraction * 2 * self.parts)

    def _count(
        self,
        counts: list[int],
        low: int,
        bucket: int,
        more: int,
    ) -> int:
        """Add to the count of a bucket, and return the first bucket of `counts`.
        Buckets far below the highest are counted in the lowest.
        """
        if not counts:
            counts.append(more)
            return bucket
        most = self.parts * POWERS
        at = bucket - low
        if at >= len(counts):
            counts.extend([0] * (at + 1 - len(counts)))
            excess = len(counts) - most
            if excess > 0:
                collapsed = sum(counts[: excess + 1])
                del counts[:excess]
                counts[0] = collapsed
                low += excess
                at = bucket - low
        elif at < 0:
            further = min(-at, most - len(counts))
            counts[:0] = [0] * further
            low -= further
            at = max(0, bucket - low)
        counts[at] += more
        return low

    def _number(
        self,
        counts: Sequence[int],
        low: int,
        rank: int,
    ) -> float:
        """Return the middle of the bucket that has the number of this rank, from 0.
        `counts`: of the buckets from the number `low` on.
        """
        at = bisect_right(list(accumulate(counts)), rank)
        exponent, part = divmod(low + at - self.parts, self.parts)
        return math.ldexp((part + 0.5) / self.parts + 1.0, exponent - 1)


def spread_of(state: SpreadState, parts: int) -> Spread:
    """Return the counts whose `state` this is.

    Raises:
        ValueError: it is not such a state.
    """
    spread = Spread(parts)
    spread.zeros, spread.low, spread.positive = state[:3]
    spread.negative_low, spread.negative = state[3:]
    if max(len(spread.positive), len(spread.negative)) > parts * POWERS:
        raise ValueError("these are no counts of numbers")
    return spread


def parts_for(accuracy: float) -> int:
    """Return how many buckets a power of two needs so that the middle of a bucket is at
    most this share away from each number in it.
    """
    return math.ceil(0.5 / accuracy)
