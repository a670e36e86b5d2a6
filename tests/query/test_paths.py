"""Addresses that find a key again."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

import httpx
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.query.asked import path_piece
from coopstreams.query.paths import CHARACTERS_A_REQUEST, KEYS_A_REQUEST, key_batches, path_text, store_path


@given(st.text())
def test_a_key_arrives_as_it_was_sent(text: str) -> None:
    url = httpx.URL("http://host" + store_path("s", f"keys/{path_text(text)}?local=true"))
    assert path_piece(url.raw_path.partition(b"?")[0], 5) == text
    assert unquote(path_text(text)) == text


@given(st.lists(st.text(max_size=20)))
def test_batches_ask_for_every_key_once_in_order(texts: list[str]) -> None:
    assert [value for query in key_batches(texts) for _, value in parse_qsl(query, keep_blank_values=True)] == texts


def test_no_batch_is_longer_than_an_address_may_be() -> None:
    queries = list(key_batches(["é" * 1000] * 50 + ["k"] * 1200))
    assert all(len(query) <= CHARACTERS_A_REQUEST and query.count("key=") <= KEYS_A_REQUEST for query in queries)
    assert sum(query.count("key=") for query in queries) == 1250
