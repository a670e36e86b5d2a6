"""`Serde`: a name, and the functions by which values become bytes and come back. `serdes` has those built in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from coopstreams.topology.errors import SerdeError

T = TypeVar("T")

SHOWN_BYTES = 60
"""How many bytes, or characters of a value's text, an error message shows."""


@dataclass(frozen=True, slots=True, repr=False)
class Serde(Generic[T]):
    """How values of one type become bytes and come back. `Serde("csv", encode, decode)` makes your own.

    Shape: `encode` and `decode` are the bare functions, for loops that handle errors themselves; they may raise
    anything. `serialize` and `deserialize` raise only `SerdeError`. None of the four is ever given None. Two serdes are
    equal if their names and functions are equal; between equal serdes, bytes pass through without being deserialised.
    """

    name: str
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    parts: tuple[Serde[Any], ...] = field(default=(), kw_only=True)
    """The serdes that it contains: that of the key in a windowed key, of the rows in a list."""
    check_key: Callable[[bytes | None], None] | None = field(default=None, kw_only=True)
    """Raises a `SerdeError` if `encode` writes other bytes for a key than those read from a topic: stores and
    partitioners compare bytes, so it would be another key. None: no check is needed.
    """

    def serialize(self, value: T) -> bytes:
        """Return the bytes of a value.

        Raises:
            SerdeError: the serde cannot write the value. Convert the value, or name another serde where it is written.
        """
        try:
            data = self.encode(value)
        except Exception as error:
            raise SerdeError(f"serde {self.name} cannot write {_shown(value)}: {_reason(error)}") from error
        if not isinstance(data, bytes):
            raise SerdeError(f"serde {self.name} wrote {type(data).__name__} instead of bytes for {_shown(value)}")
        return data

    def deserialize(self, data: bytes) -> T:
        """Return the value that the bytes stand for.

        Raises:
            SerdeError: the serde cannot read the bytes; the message shows the first of them.
        """
        try:
            return self.decode(data)
        except Exception as error:
            more = f"... ({len(data)} bytes)" if len(data) > SHOWN_BYTES else ""
            raise SerdeError(f"serde {self.name} cannot read {data[:SHOWN_BYTES]!r}{more}: {_reason(error)}") from error

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Serde({self.name})"


def within(serde: Serde[Any]) -> Iterator[Serde[Any]]:
    """Yield a serde and all serdes that it contains."""
    yield serde
    for part in serde.parts:
        yield from within(part)


def _shown(value: object) -> str:
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= SHOWN_BYTES else text[:SHOWN_BYTES] + '...'}"


def _reason(error: Exception) -> str:
    return str(error.__cause__ or error) or type(error).__name__
