"""Steps that group and aggregate, windows, suppress."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from coopstreams import (
    KGroupedTable,
    KTable,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    until_time_limit,
    until_window_closes,
)
from tests.conformance import vocab
from tests.conformance.world import (
    KEY,
    VALUE,
    NotSupportedError,
    Op,
    Translators,
    World,
    require,
)
from tests.durations import ms


def group_by_key(world: World, op: Op) -> Any:
    require(op)
    return world.stream(op["in"]).group_by_key(value=VALUE)


def group_by(world: World, op: Op) -> Any:
    node = world.nodes[op["in"]]
    if isinstance(node, KTable):
        require(op, "key_fn", "value_fn", "name")

        def mapper(key: Any, value: Any) -> Any:
            return vocab.new_key(op["key_fn"], key, value), vocab.new_value(
                op["value_fn"], key, value
            )

        return node.group_by(mapper, key=KEY, value=VALUE, name=op.get("name"))
    require(op, "fn", "name")
    return node.group_by(
        lambda key, value: vocab.new_key(op["fn"], key, value),
        key=KEY,
        value=VALUE,
        name=op.get("name"),
    )


def count(world: World, op: Op) -> Any:
    require(op, "store", "window", "retention_ms", "emit")
    grouped, more = _windowed(world, op)
    return grouped.count(store=op.get("store"), **more)


def reduce(world: World, op: Op) -> Any:
    if isinstance(world.nodes[op["in"]], KGroupedTable):
        require(op, "store", "adder", "subtractor")
        return world.nodes[op["in"]].reduce(
            _reducer(op["adder"]),
            _reducer(op["subtractor"]),
            value=VALUE,
            store=op.get("store"),
        )
    require(op, "store", "window", "agg", "retention_ms", "emit")
    grouped, more = _windowed(world, op)
    return grouped.reduce(
        _reducer(op["agg"]), value=VALUE, store=op.get("store"), **more
    )


def aggregate(world: World, op: Op) -> Any:
    if isinstance(world.nodes[op["in"]], KGroupedTable):
        require(op, "store", "adder", "subtractor", "init")
        grouped_table = world.nodes[op["in"]]
        return grouped_table.aggregate(
            _beginning(op),
            _aggregator(op["adder"]),
            _aggregator(op["subtractor"]),
            value=VALUE,
            store=op.get("store"),
        )
    require(op, "store", "window", "agg", "init", "retention_ms", "emit", "merger")
    grouped, more = _windowed(world, op)
    return grouped.aggregate(
        _beginning(op),
        _aggregator(op["agg"]),
        value=VALUE,
        store=op.get("store"),
        **more,
    )


def cogroup(world: World, op: Op) -> Any:
    require(op, "store", "window", "init", "retention_ms", "merger")
    (first, agg), *others = [
        (world.nodes[part["grouped"]], _aggregator(part["agg"])) for part in op["in"]
    ]
    cogrouped = first.cogroup(agg)
    for grouped, agg in others:
        cogrouped = cogrouped.cogroup(grouped, agg)
    cogrouped, more = _cut(world, op, cogrouped)
    return cogrouped.aggregate(
        _beginning(op), value=VALUE, store=op.get("store"), **more
    )


def suppress(world: World, op: Op) -> Any:
    require(op, "until", "limit_ms", "max_records")
    world.keeps_window(op)
    if op["until"] == "window_close":
        return world.nodes[op["in"]].suppress(until_window_closes())
    return world.nodes[op["in"]].suppress(
        until_time_limit(ms(op["limit_ms"]), max_records=op.get("max_records"))
    )


def _reducer(name: Any) -> Callable[[Any, Any], Any]:
    return lambda total, value: vocab.aggregate(name, None, value, total)


def _aggregator(name: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda key, value, total: vocab.aggregate(name, key, value, total)


def _beginning(op: Op) -> Callable[[], Any]:
    return lambda: deepcopy(op["init"])


def _windowed(world: World, op: Op) -> tuple[Any, dict[str, Any]]:
    """Return the grouped stream in the windows of the step, and the other arguments of
    its method.
    """
    grouped, more = _cut(world, op, world.nodes[op["in"]])
    if "emit" in op:
        grouped = grouped.emit_strategy(f"on_window_{op['emit']}")
    return grouped, more


def _cut(world: World, op: Op, grouped: Any) -> tuple[Any, dict[str, Any]]:
    if "window" not in op:
        return grouped, {}
    world.windowed.add(op["id"])
    more: dict[str, Any] = (
        {"retention": ms(op["retention_ms"])} if "retention_ms" in op else {}
    )
    if op["window"]["type"] == "session":
        world.untimed.add(op.get("store", ""))
        world.sessions.add(op.get("store", ""))
        if "merger" in op:
            more["merger"] = lambda _, one, other: vocab.merged(
                op["merger"], one, other
            )
    return grouped.windowed_by(_windows(op["window"])), more


def _windows(window: dict[str, Any]) -> Any:
    kind, grace = window["type"], window.get("grace_ms", 0)
    if kind == "tumbling":
        return TimeWindows(milliseconds=window["size_ms"], grace=ms(grace))
    if kind == "hopping":
        return TimeWindows(
            milliseconds=window["size_ms"],
            advance=ms(window["advance_ms"]),
            grace=ms(grace),
        )
    if kind == "sliding":
        return SlidingWindows(milliseconds=window["diff_ms"], grace=ms(grace))
    if kind == "session":
        return SessionWindows(milliseconds=window["gap_ms"], grace=ms(grace))
    if kind == "unlimited":
        return UnlimitedWindows(start_ms=window.get("start_ms", 0))
    raise NotSupportedError(f"{kind} windows")


OPS: Translators = {
    "group_by_key": group_by_key,
    "group_by": group_by,
    "count": count,
    "reduce": reduce,
    "aggregate": aggregate,
    "cogroup": cogroup,
    "suppress": suppress,
}
