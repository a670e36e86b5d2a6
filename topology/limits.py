"""The limits of bytes from outside: what is longer, deeper or more is refused before it
becomes a value.

A record may come from any producer that may write to the topic, and a schema from
whoever may register one. Conversion of some bytes takes time in the square of their
length, or makes more values than there are bytes. The interpreter converts one value at
a time, so all threads of the process wait: also the one that keeps its place in the
group.

`docs/guide/errors.md` lists these limits; a test compares the two.
"""

from __future__ import annotations

DECIMAL_BYTES = 1024
"""The bytes of an Avro decimal at most: 2,465 digits. The conversion takes time in the
square of them.
"""
DECIMAL_DIGITS = 2465
"""The digits of an Avro decimal at most, with those that its exponent adds."""
LEVELS = 250
"""The levels of records, arrays and maps within each other, in an Avro record."""
VALUES = 10_000
"""The values of an Avro record at most, besides `VALUES_PER_BYTE` for each of its
bytes; and those of types that have no bytes.
"""
VALUES_PER_BYTE = 8
"""A null has no byte of its own, and an optional one has one byte for two values."""
