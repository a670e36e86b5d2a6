"""URL paths of stores and keys, for the client and for an instance that forwards
requests.

Invariant: no URL is longer than HTTP clients allow (64 KiB), whatever the number of
keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

KEYS_A_REQUEST = 500
CHARACTERS_A_REQUEST = 30_000

STALE = "max_staleness"
"""The parameter with the age (ms) up to which a standby may answer for an owner."""


def path_text(text: str) -> str:
    """Return a text as one segment of a path. Dots are percent-encoded, because clients
    would resolve `..`.
    """
    return quote(text, safe="").replace(".", "%2E")


def store_path(store: str, rest: str) -> str:
    """Return the path of a resource of a store."""
    return f"/v1/stores/{path_text(store)}/{rest}"


def keys_path(store: str, texts: Sequence[str]) -> str:
    """Return the path that asks for several keys of a store."""
    return store_path(store, f"keys?{'&'.join(map(_asked, texts))}")


def key_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the keys in order, in batches that fit into one request each."""
    batch: list[str] = []
    length = 0
    for text in texts:
        size = len(_asked(text)) + 1
        if batch and (
            len(batch) == KEYS_A_REQUEST or length + size > CHARACTERS_A_REQUEST
        ):
            yield batch
            batch = []
            length = 0
        batch.append(text)
        length += size
    if batch:
        yield batch


def _asked(text: str) -> str:
    return f"key={quote(text, safe='')}"
