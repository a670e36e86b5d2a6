"""JSON that somebody else wrote is read so that other threads wait no longer than its
bytes explain.

A megabyte of `[]` is 350,000 lists, made in one call that keeps the interpreter. Before
Python 3.12 the garbage collector runs within that call, again and again, over the lists
that it has made so far: four fifths of the time *(measured: 245 ms, and 53 ms without
it)*. None of them can be garbage yet. So texts above `LONG_BYTES` are read without it.

Turned down: a limit of the objects in a text. It refuses polygons and sparse matrices
that are right, and what it allows still has the collector within the call.
Source: CPython issue 97922, "Run the GC only on eval breaker".
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import orjson

T = TypeVar("T")
Text = TypeVar("Text", bound=str | bytes)

LONG_BYTES = 65_536
"""Texts up to here are read as they are: 22,000 lists take 3 ms."""


def read_long(read: Callable[[Text], T], text: Text) -> T:
    """Return what a function reads from a text, if it is long without the garbage
    collector within.
    """
    if len(text) <= LONG_BYTES or not gc.isenabled():
        return read(text)
    # Only who has disabled it enables it again: a thread that comes between reads with
    # it, or without.
    gc.disable()
    try:
        return read(text)
    finally:
        gc.enable()


def read_json(data: bytes) -> Any:
    """Return the plain value of a JSON text."""
    return (
        orjson.loads(data) if len(data) <= LONG_BYTES else read_long(orjson.loads, data)
    )


@dataclass(frozen=True, slots=True)
class TypedReader:
    """Reads JSON texts by a decoder of msgspec. `read`: the decoder's own function."""

    decoder: msgspec.json.Decoder[Any]
    read: Callable[[bytes], Any]

    def __call__(self, data: bytes) -> Any:
        """Return the value of a text."""
        return (
            self.read(data) if len(data) <= LONG_BYTES else read_long(self.read, data)
        )


def typed_reader(type_: Any) -> TypedReader:
    """Return the reader of a type that msgspec knows."""
    decoder = msgspec.json.Decoder(type_)
    return TypedReader(decoder, decoder.decode)


def reader_of_short(read: Callable[[bytes], Any]) -> Callable[[bytes], Any] | None:
    """Return the function by which a reader of JSON reads texts up to `LONG_BYTES`.

    None: it is no reader of this module.
    """
    if read is read_json:
        return orjson.loads
    return read.read if isinstance(read, TypedReader) else None


def decoder_of(read: Callable[[bytes], Any]) -> msgspec.json.Decoder[Any] | None:
    """Return the decoder of msgspec that a function is of; None: it is of none."""
    if isinstance(read, TypedReader):
        return read.decoder
    decoder = getattr(read, "__self__", None)
    if isinstance(decoder, msgspec.json.Decoder) and read == decoder.decode:
        return decoder
    return None
