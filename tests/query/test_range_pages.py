"""Parts of a range query become pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.query.range_pages import (
    Entry,
    PartialPage,
    Query,
    cursor_of,
    cursor_text,
    page_of,
)
from coopstreams.topology.errors import QueryError

entries_by_place = st.dictionaries(
    st.tuples(st.binary(max_size=2), st.integers(0, 2)), st.integers(0, 3), max_size=30
)


def parts_of(entries: dict[tuple[bytes, int], int], query: Query) -> list[PartialPage]:
    """Return the parts of four instances, each with some of the entries."""
    parts = []
    for instance in range(4):
        mine: list[Entry] = [
            (*at, b"1")
            for at, holder in entries.items()
            if holder == instance and query.is_after(*at)
        ]
        mine.sort(reverse=query.reverse)
        parts.append(PartialPage([], mine[: query.limit], len(mine) > query.limit))
    return parts


@given(entries_by_place, st.integers(1, 7), st.booleans())
def test_pages_give_every_entry_once_in_order(
    entries: dict[tuple[bytes, int], int], limit: int, reverse: bool
) -> None:
    seen: list[tuple[bytes, int]] = []
    after: tuple[bytes, int] | None = None
    for _ in range(len(entries) + 2):
        query = Query(limit=limit, reverse=reverse, after=after)
        page = page_of(parts_of(entries, query), query)
        assert len(page.entries) <= limit
        seen += [(key, partition) for key, partition, _ in page.entries]
        if page.cursor is None:
            break
        after = cursor_of(page.cursor)
    else:
        pytest.fail("the pages do not end")
    assert seen == sorted(entries, reverse=reverse)


@given(st.binary(), st.integers(0, 2**31))
def test_a_cursor_reads_back(key: bytes, partition: int) -> None:
    assert cursor_of(cursor_text(key, partition)) == (key, partition)


@pytest.mark.parametrize("text", ["", "A", "AAAA", "***", "ä"])
def test_a_cursor_that_is_none_of_ours_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="cursor") as caught:
        cursor_of(text)
    assert caught.value.status == 400
