"""Numbers of seven bits a byte, the lowest first: all bytes but the last have the highest bit set."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it.

    Raises:
        IndexError: the bytes end within it.
        ValueError: it has more than 64 bits.
    """
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
