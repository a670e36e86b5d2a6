"""Parsers of the values of settings. A parser raises ValueError with a description of
the valid values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_HOST = r"(?:\[[\da-fA-F:.]+(?:%\w+)?\]|[\w.-]+)"
_SERVER = re.compile(rf"(?:\w+://)?{_HOST}(?::(?P<port>\d+))?")
_GROUP_INSTANCE = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_REACHABLE = re.compile(
    rf"(?:https?://{_HOST}(?::(?P<port>\d+))?(?:/\S*)?|{_HOST}:(?P<plain>\d+))"
)


def integer(low: int, high: int | None = None) -> Callable[[Any], int]:
    """Return a parser of whole numbers from `low` to `high`, both inclusive."""

    def read(value: Any) -> int:
        try:
            number = (
                int(value)
                if isinstance(value, int | str) and not isinstance(value, bool)
                else None
            )
        except ValueError:
            number = None
        if number is None or number < low or (high is not None and number > high):
            raise ValueError(
                f"a whole number of at least {low}"
                + (f" and at most {high}" if high is not None else "")
            )
        return number

    return read


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a parser that takes one of these words."""

    def read(value: Any) -> str:
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return str(value)

    return read


def positive_fraction(value: Any) -> float:
    """Return the value as a number above 0, up to 1."""
    if not (number := fraction(value)):
        raise ValueError("a number above 0, up to 1")
    return number


def fraction(value: Any) -> float:
    """Return the value as a number from 0 to 1."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError("a number from 0 to 1") from None
    if not 0 <= number <= 1:
        raise ValueError("a number from 0 to 1")
    return number


def boolean(value: Any) -> bool:
    """Return the boolean that `true` or `false` means."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("true or false")
    return str(value).lower() == "true"


def text(value: Any) -> str:
    """Return the value if it is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty")
    return value


def ascii_text(value: Any) -> str:
    """Return the value if it is printable ASCII: librdkafka takes no other id of a
    group or member.
    """
    if not (text(value).isascii() and value.isprintable()):
        raise ValueError("a text of printable ASCII")
    return str(value)


def static_id(value: Any) -> str:
    """Return the value if it can be the id of a static member, with `{instance}`,
    `{host}` and `{ordinal}` in it.
    """
    try:
        filled = ascii_text(value).format(instance=0, host="host-0", ordinal=0)
    except (KeyError, IndexError, ValueError):
        filled = ""
    if not _GROUP_INSTANCE.fullmatch(filled):
        raise ValueError(
            "a text of at most 249 letters, digits, '.', '_' and '-', with {instance}, {host} or {ordinal} in it"
        )
    return str(value)


def servers(value: Any) -> str:
    """Return the value if it is a list of broker addresses. librdkafka itself would
    take the port of `kafka:port` for 0.
    """
    named = [server.strip() for server in text(value).split(",")]
    if not all(_address(_SERVER, server) for server in named):
        raise ValueError("HOST:PORT of the brokers, separated by commas")
    return str(value)


def reachable(value: Any) -> str:
    """Return the value if it is an address of a server for others: HOST:PORT or a URL."""
    if not _address(_REACHABLE, text(value)):
        raise ValueError("HOST:PORT, or http(s)://HOST:PORT with or without a path")
    return str(value)


def _address(form: re.Pattern[str], address: str) -> bool:
    found = form.fullmatch(address)
    return found is not None and all(
        0 < int(port) < 65536 for port in found.groups() if port is not None
    )
