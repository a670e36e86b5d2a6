"""Expressions as trees of plain tuples, which the native extension reads.

Shape: a tree is the name of an operation and its operands, which are trees; `part` and
`field` have a name behind it, `constant` a value, and the functions of
`expression_values` their options last. `field` stands for a field by itself, which
raises KeyError where the part is missing. Behind `row` are pairs of a name and a tree.
Invariant: `native/src/expressions.rs` knows each operation that is written here, and
`native/src/json.rs` a row.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from coopstreams.topology.fields import (
    Applied,
    Arithmetic,
    Both,
    Case,
    Coalesce,
    Comparison,
    Either,
    Expression,
    IsNull,
    Known,
    Not,
    Row,
    field,
)

Tree: TypeAlias = tuple[Any, ...]
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def tree_of(expression: Expression) -> Tree | None:
    """Return the tree of an expression; None: the extension cannot compute it."""
    if type(expression) is field:
        return ("field", expression.name) if _is_unicode(expression.name) else None
    return _tree(expression)


def json_tree_of(expression: Expression) -> Tree | None:
    """Return the tree of an expression that is written as JSON, so it may be a row of
    others; None: the extension cannot compute it.
    """
    if not isinstance(expression, Row):
        return tree_of(expression)
    items = []
    for name, item in zip(expression.names, expression.items, strict=True):
        tree = json_tree_of(item) if isinstance(item, Row) else _tree(item)
        if tree is None or not _is_unicode(name):
            return None
        items.append((name, tree))
    return ("row", *items)


def _tree(expression: Expression) -> Tree | None:
    match expression:
        case field(name):
            return ("part", name) if _is_unicode(name) else None
        case Known(value):
            # NaN has many bits, and no other language has texts with lone surrogates.
            told = value == value and _is_unicode(value)
            return ("constant", value) if told else None
    head = _head(expression)
    operands = [_tree(each) for each in expression.operands]
    if head is None or None in operands:
        return None
    if isinstance(expression, Case) and expression.rest is None:
        operands.append(("constant", None))
    options = expression.options if isinstance(expression, Applied) else ()
    return (head, *operands, *options)


def _head(expression: Expression) -> str | None:
    """Return the name of an operation; None: of one that only Python computes."""
    match expression:
        case Arithmetic(_, sign):
            return sign
        case Comparison(_, comparing):
            return comparing
        case Applied(name):
            return name
        case Both():
            return "all"
        case Either():
            return "any"
        case Not():
            return "not"
        case IsNull():
            return "is_null"
        case Coalesce():
            return "coalesce"
        case Case():
            return "case"
    return None


def _is_unicode(value: object) -> bool:
    """Return whether a value is anything but a text with lone surrogates."""
    return not isinstance(value, str) or _SURROGATE.search(value) is None
