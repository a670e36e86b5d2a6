"""Control characters in texts of users, written out for a terminal or a log."""

from __future__ import annotations


def visible(text: str) -> str:
    """Return a text with its control characters written out. A terminal would obey
    them, and they would break a table.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def visible_lines(text: str) -> str:
    """Return a text of several lines with its control characters written out, except
    the ends of lines.
    """
    return "\n".join(map(visible, text.split("\n")))
