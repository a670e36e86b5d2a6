"""A sorted map from keys of one length to bytes, with an overhead of a few bytes per
entry.

Neighbouring entries lie one behind the other in one `bytes` object, a leaf of about 2
KiB; a list has the first key of each leaf. Finding an entry is a bisection and a scan
of one leaf; changing it copies one leaf.

    leaf    n x (key | u32 length | value)

Invariant: leaves are not empty, keys ascend within and across them, and `_firsts[i]` is
the first key of `_leaves[i]`.
Turned down: a dict of bytes to bytes (42 bytes a slot and 33 an object, twice: more
than a commit itself; measured).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct

LEAF_BYTES = 2048
"""The size above which a leaf is cut in two, unless it has only one entry."""
_LENGTH = Struct(">I")


class Packed:
    """A sorted map with keys of `key_bytes` bytes each. Not thread-safe."""

    __slots__ = ("_firsts", "_key_bytes", "_leaves", "_size")

    def __init__(self, key_bytes: int) -> None:
        self._key_bytes = key_bytes
        self._firsts: list[bytes] = []
        self._leaves: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the key is absent."""
        if not self._leaves:
            return None
        leaf = self._leaves[self._leaf_of(key)]
        start, end = self._find(leaf, key)
        return leaf[start + self._key_bytes + 4 : end] if end > start else None

    def put(self, key: bytes, value: bytes) -> bool:
        """Set the value of a key; return whether the key is new."""
        entry = key + _LENGTH.pack(len(value)) + value
        if not self._leaves:
            self._firsts = [key]
            self._leaves = [entry]
            self._size = 1
            return True
        i = self._leaf_of(key)
        leaf = self._leaves[i]
        start, end = self._find(leaf, key)
        self._replace(i, leaf[:start] + entry + leaf[end:])
        self._size += start == end
        return start == end

    def remove(self, key: bytes) -> bool:
        """Remove a key; return whether the map had it."""
        if not self._leaves:
            return False
        i = self._leaf_of(key)
        leaf = self._leaves[i]
        start, end = self._find(leaf, key)
        if start == end:
            return False
        self._replace(i, leaf[:start] + leaf[end:])
        self._size -= 1
        return True

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys with this prefix and their values, ascending. Do not change
        the map meanwhile.
        """
        for i in range(self._leaf_of(prefix), len(self._leaves)):
            leaf = self._leaves[i]
            for start, end in self._entries(leaf):
                key = leaf[start : start + self._key_bytes]
                if key.startswith(prefix):
                    yield key, leaf[start + self._key_bytes + 4 : end]
                elif key > prefix:
                    return

    def _leaf_of(self, key: bytes) -> int:
        """Return the index of the leaf that has the key, or into which it belongs."""
        return max(0, bisect_right(self._firsts, key) - 1)

    def _entries(self, leaf: bytes) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of each entry of a leaf."""
        start = 0
        head = self._key_bytes + 4
        while start < len(leaf):
            end = start + head + _LENGTH.unpack_from(leaf, start + self._key_bytes)[0]
            yield start, end
            start = end

    def _find(self, leaf: bytes, key: bytes) -> tuple[int, int]:
        """Return the start and the end of a key's entry; both are the insertion point
        if the key is absent.
        """
        for start, end in self._entries(leaf):
            found = leaf[start : start + self._key_bytes]
            if found >= key:
                return start, end if found == key else start
        return len(leaf), len(leaf)

    def _replace(self, i: int, leaf: bytes) -> None:
        """Replace a leaf: by two if the new one is too large, by none if it is empty."""
        pieces = [leaf] if leaf else []
        if len(leaf) > LEAF_BYTES:
            starts = [start for start, _ in self._entries(leaf)]
            cut = min(starts, key=lambda start: abs(2 * start - len(leaf)))
            pieces = [piece for piece in (leaf[:cut], leaf[cut:]) if piece]
        self._leaves[i : i + 1] = pieces
        self._firsts[i : i + 1] = [piece[: self._key_bytes] for piece in pieces]
