"""URL paths of stores and keys, for the client and for an instance that forwards.

Invariant: no URL is longer than HTTP clients allow (64 KiB), however many keys are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

KEYS_A_REQUEST = 500
CHARACTERS_A_REQUEST = 30_000


def path_text(text: str) -> str:
    """Return a text as one segment of a path. Dots are percent-encoded, because clients would resolve `..`."""
    return quote(text, safe="").replace(".", "%2E")


def store_path(store: str, rest: str) -> str:
    """Return the path of a resource of a store."""
    return f"/v1/stores/{path_text(store)}/{rest}"


def key_batches(texts: Sequence[str]) -> Iterator[str]:
    """Yield `key=a&key=b` query strings that together ask for all keys in order."""
    batch: list[str] = []
    length = 0
    for text in texts:
        asked = f"key={quote(text, safe='')}"
        if batch and (len(batch) == KEYS_A_REQUEST or length + len(asked) > CHARACTERS_A_REQUEST):
            yield "&".join(batch)
            batch, length = [], 0
        batch.append(asked)
        length += len(asked) + 1
    if batch:
        yield "&".join(batch)
