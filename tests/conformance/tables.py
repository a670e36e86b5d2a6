"""The content of a store, and the answers to queries, as rows of the case format.

`{key, value, timestamp}`; windows: with `window: [start, end]`; sessions: without a
timestamp; versioned: with `as_of`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from coopstreams.testing import Row as TableRow
from coopstreams.testing import StoreView
from coopstreams.topology.serdes import Windowed
from tests.conformance.world import NotSupportedError, World

Row: TypeAlias = dict[str, Any]


def rows(world: World, name: str, expected: list[Row], times: list[int]) -> list[Row]:
    """Return all rows of a store. `times` are the timestamps of the inputs, for stores
    with a history.
    """
    if any("as_of" in row for row in expected):
        return _versioned(_store(world, name), expected, times)
    return [_row(world, name, row) for row in _store(world, name).all()]


def _versioned(view: StoreView, expected: list[Row], times: list[int]) -> list[Row]:
    """Return the rows with their values at each time; deleted ones too, if they are
    expected.
    """
    live = {row.key: row for row in view.all()}
    shown: list[Row] = []
    for key in {**{row["key"]: None for row in expected}, **dict.fromkeys(live)}:
        then = [(time, view.as_of(key, time)) for time in times]
        versions = [
            [time] if row is None else [time, row.value, row.timestamp]
            for time, row in then
        ]
        now = (
            {"value": live[key].value, "timestamp": live[key].timestamp}
            if key in live
            else {"value": None}
        )
        shown.append({"key": key, **now, "as_of": versions})
    return shown


def answer(world: World, query: Row) -> Any:
    """Return the answer to a query.

    Raises:
        NotSupportedError: the store has no such query.
    """
    name, kind = query["store"], query["query"]
    if kind not in QUERIES:
        raise NotSupportedError(f"query {kind}")
    return QUERIES[kind](world, name, _store(world, name), query)


def _get(world: World, name: str, view: StoreView, query: Row) -> Row | None:
    row = view.row(query["key"])
    return None if row is None else _row(world, name, row)


def _range(world: World, name: str, view: StoreView, query: Row) -> list[Row]:
    found = view.range(
        query["from"], query["to"], reverse=query["query"] == "reverse_range"
    )
    return [_row(world, name, row) for row in found]


def _prefix_scan(world: World, name: str, view: StoreView, query: Row) -> list[Row]:
    return [_row(world, name, row) for row in view.prefix(query["prefix"].encode())]


def _fetch(world: World, name: str, view: StoreView, query: Row) -> list[Row]:
    """The sessions of a key are requested without a time."""
    reverse = query["query"] == "backward_fetch"
    if name in world.sessions:
        return [
            _row(world, name, row) for row in view.fetch(query["key"], reverse=reverse)
        ]
    found = view.fetch(
        query["key"], query["time_from"], query["time_to"], reverse=reverse
    )
    return [
        {"window_start": row.key.start_ms, "value": row.value}
        | ({} if name in world.untimed else {"timestamp": row.timestamp})
        for row in found
    ]


def _fetch_all(world: World, name: str, view: StoreView, query: Row) -> list[Row]:
    return [
        _row(world, name, row)
        for row in view.fetch_all(query["time_from"], query["time_to"])
    ]


QUERIES = {
    "get": _get,
    "range": _range,
    "reverse_range": _range,
    "prefix_scan": _prefix_scan,
    "fetch": _fetch,
    "backward_fetch": _fetch,
    "fetch_all": _fetch_all,
}


def _store(world: World, name: str) -> StoreView:
    assert world.driver is not None
    return world.driver.store(name)


def _row(world: World, store: str, row: TableRow[Any, Any]) -> Row:
    key = row.key
    shown: Row = (
        {"key": key.key, "window": [key.start_ms, key.end_ms]}
        if isinstance(key, Windowed)
        else {"key": key}
    )
    return (
        {**shown, "value": row.value}
        if store in world.untimed
        else {**shown, "value": row.value, "timestamp": row.timestamp}
    )
