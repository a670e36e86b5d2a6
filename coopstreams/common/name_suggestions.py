"""Suggests the known name that a user may have meant, for errors about unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message that suggests the known name nearest to
    `name`; empty if none is near.
    """
    near = get_close_matches(name, known, 1)
    return f'; did you mean "{near[0]}"?' if near else ""
