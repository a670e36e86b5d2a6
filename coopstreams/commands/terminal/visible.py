"""Texts that users or their records have a part in, for a terminal or a log."""

from __future__ import annotations


def visible(text: str) -> str:
    """Return a text of users with its control characters written out: a terminal would
    obey them, and a table break.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def visible_lines(text: str) -> str:
    """Return a text of several lines likewise; its ends of lines stay."""
    return "\n".join(map(visible, text.split("\n")))
