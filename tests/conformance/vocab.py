"""The named functions of the conformance vocabulary: the meaning of `["gt", 3]` or
`"sum"` in a case.

Values are None, text, whole numbers and lists; keys are text, None, or `Windowed`. A
function is its name, or a list of name and arguments.

Invariant: pure; an argument is never changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from coopstreams.topology.serdes import Windowed

Named: TypeAlias = Any
"""`"name"` or `["name", argument, ...]`."""
Value: TypeAlias = Any
Key: TypeAlias = Any

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,15}\Z")


class NamedFailureError(Exception):
    """The error of `fail_if`."""


def num(value: Value) -> int:
    """Return a value as a number."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return int(value) if _WHOLE_NUMBER.match(value) else len(value)
    return len(value)


def text(value: Value) -> str:
    """Return a value as text."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def base(key: Key) -> str | None:
    """Return the key, without its window."""
    plain: str | None = key.key if isinstance(key, Windowed) else key
    return plain


def name_of(function: Named) -> str:
    """Return the name of a function."""
    return function if isinstance(function, str) else function[0]


def as_list(value: Value) -> list[Value]:
    """Return a value as a new list."""
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def predicate(function: Named, key: Key, value: Value) -> bool:
    """Return the result of a named predicate."""
    name, plain = name_of(function), base(key)
    if name == "not":
        return not predicate(function[1], key, value)
    if name == "and":
        return predicate(function[1], key, value) and predicate(function[2], key, value)
    if name == "or":
        return predicate(function[1], key, value) or predicate(function[2], key, value)
    there = value is not None
    answers: dict[str, Callable[[], bool]] = {
        "true": lambda: True,
        "false": lambda: False,
        "even": lambda: there and num(value) % 2 == 0,
        "odd": lambda: there and num(value) % 2 == 1,
        "gt": lambda: there and num(value) > function[1],
        "lt": lambda: there and num(value) < function[1],
        "is_null": lambda: not there,
        "not_null": lambda: there,
        "value_eq": lambda: value == function[1],
        "starts_with": lambda: there and text(value).startswith(function[1]),
        "contains": lambda: there and function[1] in text(value),
        "key_eq": lambda: plain == function[1],
        "key_in": lambda: plain in function[1],
        "key_null": lambda: key is None,
    }
    return answers[name]()


def new_value(function: Named, key: Key, value: Value) -> Value:
    """Return the result of a named value function."""
    name = name_of(function)
    if name == "compose":
        for inner in function[1:]:
            value = new_value(inner, key, value)
        return value
    if name == "fail_if":
        if predicate(function[1], key, value):
            raise NamedFailureError("fail_if")
        return value
    if name == "null_if":
        return None if predicate(function[1], key, value) else value
    null_safe: dict[str, Callable[[], Value]] = {
        "identity": lambda: value,
        "null": lambda: None,
        "const": lambda: function[1],
        "key": lambda: base(key),
        "key_value": lambda: text(base(key)) + ":" + text(value),
        "is_null_text": lambda: "was-null" if value is None else value,
        "str": lambda: text(value),
        "num": lambda: num(value),
    }
    if name in null_safe:
        return null_safe[name]()
    return None if value is None else _new_text_or_number(function, value)


def _new_text_or_number(function: Named, value: Value) -> Value:
    answers: dict[str, Callable[[], Value]] = {
        "upper": lambda: text(value).upper(),
        "lower": lambda: text(value).lower(),
        "reverse": lambda: text(value)[::-1],
        "len": lambda: len(text(value)),
        "add": lambda: num(value) + function[1],
        "mul": lambda: num(value) * function[1],
        "mod": lambda: num(value) % function[1],
        "concat": lambda: text(value) + function[1],
        "prepend": lambda: function[1] + text(value),
        "field": lambda: field(text(value), function[1]),
        "split": lambda: text(value).split(","),
    }
    return answers[name_of(function)]()


def field(line: str, i: int) -> str | None:
    """Return a field of a comma-separated line; None if it has fewer."""
    parts = line.split(",")
    return parts[i] if i < len(parts) else None


def new_key(function: Named, key: Key, value: Value) -> str | None:
    """Return the result of a named key function."""
    name, plain = name_of(function), base(key)
    start = key.start_ms if isinstance(key, Windowed) else None
    null_safe: dict[str, Callable[[], str | None]] = {
        "key": lambda: plain,
        "null": lambda: None,
        "const": lambda: function[1],
        "upper_key": lambda: None if plain is None else plain.upper(),
        "concat_key": lambda: None if plain is None else plain + function[1],
        "key_char": lambda: plain[0] if plain else None,
        "window_key": lambda: plain if start is None else f"{plain}@{start}",
        "window_start": lambda: plain if start is None else str(start),
    }
    if name in null_safe:
        return null_safe[name]()
    if value is None:
        return None
    answers: dict[str, Callable[[], str | None]] = {
        "value": lambda: text(value),
        "field": lambda: field(text(value), function[1]),
        "first_char": lambda: text(value)[0] if text(value) else None,
        "mod": lambda: str(num(value) % function[1]),
        "parity": lambda: "even" if num(value) % 2 == 0 else "odd",
    }
    return answers[name]()


def pairs(function: Named, key: Key, value: Value) -> list[tuple[Key, Value]]:
    """Return the records of a named flat_map."""
    answers: dict[str, Callable[[], list[tuple[Key, Value]]]] = {
        "none": list,
        "dup": lambda: [(key, value), (key, value)],
        "repeat": lambda: [(key, f"{text(value)}#{i}") for i in range(function[1])],
        "words": lambda: [(word, key) for word in words(value)],
        "chars": lambda: [(char, value) for char in chars(value)],
        "split_kv": lambda: (
            []
            if value is None
            else [
                _cut(piece) for piece in text(value).split(",") if piece.find("=") > 0
            ]
        ),
    }
    return answers[name_of(function)]()


def _cut(piece: str) -> tuple[str, str]:
    key, _, value = piece.partition("=")
    return key, value


def values(function: Named, value: Value) -> list[Value]:
    """Return the values of a named flat_map_values."""
    answers: dict[str, Callable[[], list[Value]]] = {
        "none": list,
        "dup": lambda: [value, value],
        "repeat": lambda: [f"{text(value)}#{i}" for i in range(function[1])],
        "words": lambda: words(value),
        "chars": lambda: chars(value),
        "with_null": lambda: [value, None],
    }
    return answers[name_of(function)]()


def words(value: Value) -> list[Value]:
    """Return the words of a value."""
    return [] if value is None else [word for word in text(value).split(" ") if word]


def chars(value: Value) -> list[Value]:
    """Return the characters of a value."""
    return [] if value is None else list(text(value))


def aggregate(function: Named, key: Key, value: Value, total: Value) -> Value:
    """Return the new aggregate."""
    name = name_of(function)
    if name == "null_if":
        return (
            None
            if predicate(function[1], key, value)
            else aggregate(function[2], key, value, total)
        )
    so_far = "" if total is None else text(total)
    answers: dict[str, Callable[[], Value]] = {
        "count": lambda: num(total) + 1,
        "uncount": lambda: num(total) - 1,
        "sum": lambda: num(total) + num(value),
        "sub": lambda: num(total) - num(value),
        "max": lambda: num(value) if total is None else max(num(total), num(value)),
        "min": lambda: num(value) if total is None else min(num(total), num(value)),
        "concat": lambda: so_far + text(value),
        "trace_add": lambda: so_far + "+" + text(value),
        "trace_sub": lambda: so_far + "-" + text(value),
        "append": lambda: [*as_list(total), value],
        "remove": lambda: _without(as_list(total), value),
        "last": lambda: value,
        "first": lambda: value if total is None else total,
        "null": lambda: None,
        "sum_or_null": lambda: (num(total) + num(value)) or None,
        "sub_or_null": lambda: (num(total) - num(value)) or None,
    }
    return answers[name]()


def _without(items: list[Value], value: Value) -> list[Value]:
    if value in items:
        items.remove(value)
    return items


def merged(function: Named, a: Value, b: Value) -> Value:
    """Return the merged aggregate of two sessions."""
    name = name_of(function)
    if name in ("max", "min"):
        choose = max if name == "max" else min
        return b if a is None else a if b is None else choose(num(a), num(b))
    answers: dict[str, Callable[[], Value]] = {
        "sum": lambda: num(a) + num(b),
        "concat": lambda: (
            ("" if a is None else text(a)) + ("" if b is None else text(b))
        ),
        "bracket": lambda: f"({text(a)},{text(b)})",
        "append": lambda: as_list(a) + as_list(b),
    }
    return answers[name]()


def joined(function: Named, key: Key, left: Value, right: Value) -> Value:
    """Return the result of a named joiner."""
    both = text(left) + "|" + text(right)
    answers: dict[str, Callable[[], Value]] = {
        "concat": lambda: both,
        "with_key": lambda: text(base(key)) + "=" + both,
        "sum": lambda: num(left) + num(right),
        "left": lambda: left,
        "right": lambda: right,
        "null_if_equal": lambda: None if left == right else both,
    }
    return answers[name_of(function)]()
