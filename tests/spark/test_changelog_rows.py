"""Which rows of a store a backfill leaves out of its changelog."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from coopstreams.spark.changelog_rows import KEPT_FOR_EVER, Expiry
from coopstreams.state import layout
from coopstreams.topology import serdes
from coopstreams.topology.stores import StoreSpec

ROWS = StoreSpec("rows", "key_value", serdes.text, serdes.text)
WINDOWS = replace(ROWS, kind="window", window_ms=10, retention_ms=100)
SLIDING = replace(WINDOWS, step_ms=1, lag_ms=10)
SESSIONS = replace(ROWS, kind="session", retention_ms=100, step_ms=1)


def row(spec: StoreSpec, time: int) -> tuple[bytes, bytes]:
    """Return a row of a window that starts at this time, or of a session that ends at
    it.
    """
    pack = layout.TIMESTAMP.pack
    start = pack(time) if spec.kind == "session" else b""
    return b"key" + pack(time) + start, pack(time + 5) + b"value"


def kept(
    spec: StoreSpec, oldest_ms: int, reached_ms: int, *times: int
) -> tuple[list[int], int]:
    """Return the times of the rows that are kept, and how many are not."""
    expired = Counter[str]()
    rows = iter([row(spec, time) for time in times])
    found = Expiry(oldest_ms, reached_ms).kept(spec, rows, expired)
    return [layout.time_of(spec.kind, key) for key, _ in found], expired[spec.name]


@pytest.mark.parametrize(
    ("spec", "first"), [(WINDOWS, 901), (SLIDING, 891), (SESSIONS, 901)]
)
def test_what_the_broker_would_delete_is_left_out_if_it_has_expired(
    spec: StoreSpec, first: int
) -> None:
    assert kept(spec, 2000, 1000, 500, first - 1, first, 990) == ([first, 990], 2)


def test_what_the_broker_keeps_is_kept() -> None:
    assert kept(WINDOWS, 506, 1000, 500, 501) == ([501], 1)
    assert kept(WINDOWS, KEPT_FOR_EVER, 1000, 500) == ([500], 0)


def test_rows_without_windows_do_not_expire() -> None:
    found = Expiry(2000, 1000).kept(ROWS, iter([row(WINDOWS, 5)]), Counter())
    assert len(list(found)) == 1
