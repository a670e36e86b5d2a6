"""Defines `Serde`: a name, and the functions that convert values to bytes and back. The
built-in serdes are in `serdes`.

JSON encoders write NaN and infinities as `null`, and any value into a field of a class.
So some values are decoded again after they were written. For rows of stores, this is
always done (`read_back`), because an unreadable row stops every later start. For
records of topics, it is done if they contain `null` (`check_nulls`); for the others it
costs only the search.

Turned down: reading back each record of a topic, which costs as much as reading it. A
record that cannot be read is a failure that a handler decides about.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec

from coopstreams.topology.errors import SerdeError

T = TypeVar("T")

SHOWN_BYTES = 60
"""The number of bytes, or characters of a value's text, that an error message shows."""
MOST_SAID = 400
"""The number of characters of a decoder's error that an error message shows."""
_NULL = re.compile("Expected `(.+)`, got `null`")


@dataclass(frozen=True, slots=True, repr=False)
class Serde(Generic[T]):
    """The functions that convert values of one type to bytes and back. `Serde("csv",
    encode, decode)` makes your own.

    Shape: `encode` and `decode` are the bare functions, for loops that handle errors
    themselves; they may raise anything. `serialize` and `deserialize` raise only
    `SerdeError`. None is never passed to any of the four. Two serdes are equal if their
    names and functions are equal; between equal serdes, bytes pass through without
    being deserialised.
    """

    name: str
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    parts: tuple[Serde[Any], ...] = field(default=(), kw_only=True)
    """The serdes that this serde contains, such as the key's serde in that of windowed
    keys.
    """
    check_key: Callable[[bytes | None], None] | None = field(default=None, kw_only=True)
    """Raises a `SerdeError` for a key read from a topic whose bytes differ from those
    that `encode` writes for it. Stores and partitioners compare bytes, so it would be
    another key. None: no check is needed.
    """
    check_new_key: Callable[[bytes], None] | None = field(default=None, kw_only=True)
    """Raises a ValueError for bytes that `encode` wrote for a key if it would write
    other bytes for an equal key. None: no check is needed.
    """
    read_back: bool = field(default=False, kw_only=True)
    """Whether `encode` may write bytes that `decode` cannot read. If so, stores decode
    each row before it is committed.
    """
    immutable: bool = field(default=False, kw_only=True)
    """Whether no function changes a value in place, so that operators need no copies of
    the values in stores.
    """
    schema: Any = field(default=None, kw_only=True, compare=False)
    """A schema of its values, in the form of `json_schema_changes.compared`, by which
    two versions of a program are compared. None: there is none but that of its decoder.
    """
    shown: Callable[[T], Any] | None = field(default=None, kw_only=True, compare=False)
    """Returns what queries and the test driver show of a row in a store. None: the
    value itself.
    """
    around: Callable[[Serde[Any]], Serde[T]] | None = field(default=None, kw_only=True)
    """Returns the same serde of windowed keys for another serde of the key inside.
    None: this serde is not one of windowed keys.
    """

    def serialize(self, value: T) -> bytes:
        """Return the bytes of a value.

        Raises:
            SerdeError: the serde cannot write the value. Convert the value, or name
                another serde where it is written.
        """
        try:
            data = self.encode(value)
        except Exception as error:
            raise SerdeError(
                f"serde {self.name} cannot write {_shown(value)}: {reason(error)}"
            ) from error
        if not isinstance(data, bytes):
            raise SerdeError(
                f"serde {self.name} wrote {type(data).__name__} instead of bytes for {_shown(value)}"
            )
        return data

    def for_keys(self) -> Serde[T]:
        """Return the serde for keys that a program makes: its `encode` runs
        `check_new_key` on the bytes it wrote.
        """
        encode = self.encode
        check = self.check_new_key
        if check is None:
            return self

        def checked(key: T) -> bytes:
            data = encode(key)
            check(data)
            return data

        return replace(self, encode=checked, check_new_key=None)

    def deserialize(self, data: bytes) -> T:
        """Return the value that the bytes stand for.

        Raises:
            SerdeError: the serde cannot read the bytes. The message shows the first
                bytes.
        """
        try:
            return self.decode(data)
        except Exception as error:
            more = f"... ({len(data)} bytes)" if len(data) > SHOWN_BYTES else ""
            raise SerdeError(
                f"serde {self.name} cannot read {data[:SHOWN_BYTES]!r}{more}: {reason(error)}"
            ) from error

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Serde({self.name})"


def within(serde: Serde[Any]) -> Iterator[Serde[Any]]:
    """Yield a serde and all serdes that it contains."""
    yield serde
    for part in serde.parts:
        yield from within(part)


def unreadable(
    serde: Serde[Any],
    data: bytes,
    error: Exception,
) -> Exception:
    """Return a `SerdeError` that shows the bytes, in place of the decoder's own
    error.
    """
    try:
        serde.deserialize(data)
    except SerdeError as better:
        return better
    return error


def unwritable(
    serde: Serde[Any],
    value: object,
    error: Exception,
    topic: str | None,
) -> Exception:
    """Return a `SerdeError` that shows the value and names the topic, in place of the
    encoder's own error.
    """
    try:
        serde.serialize(value)
    except SerdeError as better:
        if topic is not None:
            better.args = (f'topic "{topic}": {better}',)
        return better
    return error


def reason(error: Exception) -> str:
    """Return the text of an error of `encode` or `decode`, with the likely cure if JSON
    does not fit a class.
    """
    text = shortened(str(error.__cause__ or error) or type(error).__name__)
    if "missing required field" in text:
        return f"{text}: if the type got the field later, give it a default"
    if found := _NULL.search(text):
        return f"{text}: if it may be null, its type is `{found[1]} | None`"
    return text


def shortened(text: str) -> str:
    """Return a text of at most about 400 characters: a long text keeps its beginning
    and its end. Validators print the whole value first, and the fault after it.
    """
    if len(text) <= MOST_SAID:
        return text
    half = MOST_SAID // 2
    return f"{text[:half]} ... {text[-half:]}"


def undefined(what: str, error: NameError) -> SerdeError:
    """Return the error for a class with an annotation that Python cannot evaluate."""
    return SerdeError(
        f"{what}: an annotation in it cannot be read, {error}. Import it outside of `if TYPE_CHECKING:`; a class that "
        "others refer to is defined at the top of a module, before the serde is made."
    )


def check_nulls(
    value: Any,
    data: bytes,
    decode: Callable[[bytes], Any],
) -> None:
    """Check the JSON `data`, which contains `null` and was written for `value`.

    Raises:
        ValueError: a `null` stands for a NaN or an infinity, or the type does not allow
            it.
    """
    unread: Exception | None = None
    try:
        if decode(data) == value:
            return
    except Exception as error:  # noqa: BLE001 it is raised below, unless there is a better one
        unread = error
    number = next(_no_numbers(msgspec.to_builtins(value), "$"), None)
    if number is not None:
        raise ValueError(
            f"{number}, which JSON cannot write (it would be null): do not produce it, or make it None, in a class "
            "with the type `float | None`"
        )
    if unread is not None:
        raise unread


def varint(number: int) -> bytes:
    """Return a non-negative number as a varint: seven bits a byte, the lowest first.
    The eighth bit says that more bytes follow.
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at offset `at`, and the offset of the next byte.

    Raises:
        IndexError: the bytes end within the number.
        ValueError: the number has more than 64 bits.
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


def wrong_length(length: int, left: int) -> ValueError:
    """Return the error for untrusted bytes that state the length of a part and end
    before it.
    """
    return ValueError(f"a part of {length} bytes, where {left} are left")


def _shown(value: object) -> str:
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= SHOWN_BYTES else text[:SHOWN_BYTES] + '...'}"


def _no_numbers(value: Any, place: str) -> Iterator[str]:
    """Yield the path and value of each NaN and infinity in a value."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{place} is {value}"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _no_numbers(inner, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _no_numbers(inner, f"{place}[{number}]")
