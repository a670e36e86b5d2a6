"""Reads long JSON texts of unknown origin without the garbage collector, so that other
threads do not wait for it.

A megabyte of `[]` is 350,000 lists, made in one call that keeps the interpreter. Before
Python 3.12 the garbage collector runs many times within that call, over the lists made
so far. It takes four fifths of the time *(measured: 245 ms with it, 53 ms without)*,
although none of the lists can be garbage yet. So it is disabled for texts above
`LONG_BYTES`.

Turned down: a limit of the objects in a text. It refuses valid polygons and sparse
matrices, and the collector still runs within the texts that it allows.
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
"""The size up to which texts are read with the garbage collector: 22,000 lists take 3
ms.
"""


def read_long(read: Callable[[Text], T], text: Text) -> T:
    """Return the result of `read` for a text; the garbage collector is disabled while a
    long text is read.
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
    """Return the value of a JSON text as dicts, lists, texts and numbers."""
    return (
        orjson.loads(data) if len(data) <= LONG_BYTES else read_long(orjson.loads, data)
    )


@dataclass(frozen=True, slots=True)
class TypedReader:
    """A function that reads JSON texts into objects of one type. `read`: the decode
    method of `decoder`.
    """

    decoder: msgspec.json.Decoder[Any]
    read: Callable[[bytes], Any]

    def __call__(self, data: bytes) -> Any:
        """Return the object for a JSON text."""
        return (
            self.read(data) if len(data) <= LONG_BYTES else read_long(self.read, data)
        )


def typed_reader(type_: Any) -> TypedReader:
    """Return the function that reads JSON texts into a type that msgspec knows."""
    decoder = msgspec.json.Decoder(type_)
    return TypedReader(decoder, decoder.decode)


def reader_of_short(read: Callable[[bytes], Any]) -> Callable[[bytes], Any] | None:
    """Return the function that `read` calls for texts up to `LONG_BYTES`, or None if
    `read` is not from this module.
    """
    if read is read_json:
        return orjson.loads
    return read.read if isinstance(read, TypedReader) else None


def decoder_of(read: Callable[[bytes], Any]) -> msgspec.json.Decoder[Any] | None:
    """Return the msgspec decoder that `read` uses, or None if it uses none."""
    if isinstance(read, TypedReader):
        return read.decoder
    decoder = getattr(read, "__self__", None)
    if isinstance(decoder, msgspec.json.Decoder) and read == decoder.decode:
        return decoder
    return None
