"""Shrinks a failing list to the items needed for the failure.

Source: Zeller, Hildebrandt, "Simplifying and isolating failure-inducing input" (ddmin,
by complements only), IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrunk(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a failing sublist, in order, that does not fail without any one of its
    items.
    """
    kept, size = list(items), len(items)
    while size:
        at, before = 0, len(kept)
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if fails(shorter):
                kept = shorter
            else:
                at += size
        size = size // 2 if size > 1 else int(len(kept) < before)
    return kept
