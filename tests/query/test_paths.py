"""Addresses that find a key again."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

import httpx
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.query.parameters import path_piece
from coopstreams.query.paths import (
    CHARACTERS_A_REQUEST,
    KEYS_A_REQUEST,
    key_batches,
    keys_path,
    path_text,
    store_path,
)


@given(st.text())
def test_a_key_arrives_as_it_was_sent(text: str) -> None:
    url = httpx.URL(
        "http://host" + store_path("s", f"keys/{path_text(text)}?local=true")
    )
    assert path_piece(url.raw_path.partition(b"?")[0], 5) == text
    assert unquote(path_text(text)) == text


@given(st.lists(st.text(max_size=20)))
def test_batches_ask_for_every_key_once_in_order(texts: list[str]) -> None:
    queries = [keys_path("s", batch).partition("?")[2] for batch in key_batches(texts)]
    assert [
        value
        for query in queries
        for _, value in parse_qsl(query, keep_blank_values=True)
    ] == texts


def test_no_batch_is_longer_than_an_address_may_be() -> None:
    paths = [
        keys_path("s", batch) for batch in key_batches(["é" * 1000] * 50 + ["k"] * 1200)
    ]
    assert all(
        len(path) <= CHARACTERS_A_REQUEST + 20 and path.count("key=") <= KEYS_A_REQUEST
        for path in paths
    )
    assert sum(path.count("key=") for path in paths) == 1250
