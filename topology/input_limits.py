"""The limits of untrusted bytes: records that are longer, deeper or larger are refused
before they are converted.

A record may come from any producer that may write to the topic, and a schema from
anyone who may register one. The conversion of some bytes takes time quadratic in their
length, or makes more values than there are bytes. The interpreter converts one value at
a time, so all threads of the process wait, including the thread that sends the
heartbeats of the group.

`docs/guide/errors.md` lists these limits; a test compares the two.
"""

from __future__ import annotations

DECIMAL_BYTES = 1024
"""The most bytes of an Avro decimal: they hold 2,465 digits. The conversion takes time
quadratic in them.
"""
DECIMAL_DIGITS = 2465
"""The most digits of an Avro decimal, including the zeros that its exponent adds."""
LEVELS = 250
"""The most levels of records, arrays and maps within each other in an Avro record."""
VALUES = 10_000
"""The most values of an Avro record, in addition to `VALUES_PER_BYTE` for each of its
bytes. Values of types without bytes have this limit alone.
"""
VALUES_PER_BYTE = 8
"""The number of values that each byte of an Avro record allows. It is above one because
an optional null is two values in one byte.
"""
