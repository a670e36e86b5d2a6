"""Steps without state: sources, sinks and the operators between them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from coopstreams import KTable
from coopstreams.topology.records import TimestampedRecord
from tests.conformance import vocab
from tests.conformance.world import KEY, VALUE, Op, Translators, World, require
from tests.durations import ms

NOT_NEGATIVE = re.compile("[0-9]{1,15}")


def stream(world: World, op: Op) -> Any:
    require(op, "topic", "timestamp_extractor")
    asked = op.get("timestamp_extractor")
    return world.builder.stream(
        op["topic"],
        key=KEY,
        value=VALUE,
        timestamp=None if asked is None else _extractor(asked),
    )


def _extractor(
    asked: dict[str, Any],
) -> Callable[[TimestampedRecord[Any, Any]], int | None]:
    def timestamp(record: TimestampedRecord[Any, Any]) -> int | None:
        found = vocab.field(vocab.text(record.value), asked["field"])
        if found is not None and NOT_NEGATIVE.fullmatch(found):
            return int(found)
        if asked["on_invalid"] == "fail":
            raise ValueError("invalid timestamp")
        return {
            "skip": None,
            "partition_time": record.stream_time,
            "record_time": record.timestamp,
        }[asked["on_invalid"]]

    return timestamp


def table(world: World, op: Op) -> Any:
    require(op, "topic", "store", "versioned_ms")
    return world.builder.table(
        op["topic"],
        key=KEY,
        value=VALUE,
        store=op.get("store"),
        history=ms(op["versioned_ms"]) if "versioned_ms" in op else None,
    )


def global_table(world: World, op: Op) -> Any:
    require(op, "topic", "store")
    return world.builder.global_table(
        op["topic"], key=KEY, value=VALUE, store=op.get("store")
    )


def filter_(world: World, op: Op) -> Any:
    require(op, "fn", "store")
    world.keeps_window(op)
    node = world.nodes[op["in"]]
    method = node.filter if op["op"] == "filter" else node.filter_not
    return method(partial(vocab.predicate, op["fn"]), **_kept(op))


def _kept(op: Op) -> dict[str, str]:
    """Return the arguments of a table's method that name a store."""
    return {"store": op["store"]} if "store" in op else {}


def map_values(world: World, op: Op) -> Any:
    require(op, "fn", "store")
    world.keeps_window(op)
    return world.nodes[op["in"]].map_values_with_key(
        partial(vocab.new_value, op["fn"]), value=VALUE, **_kept(op)
    )


def map_(world: World, op: Op) -> Any:
    def mapper(key: Any, value: Any) -> Any:
        return vocab.new_key(op["key_fn"], key, value), vocab.new_value(
            op["value_fn"], key, value
        )

    require(op, "key_fn", "value_fn")
    return world.stream(op["in"]).map(mapper, key=KEY, value=VALUE)


def flat_map(world: World, op: Op) -> Any:
    require(op, "fn")
    return world.stream(op["in"]).flat_map(
        lambda key, value: vocab.pairs(op["fn"], key, value), key=KEY, value=VALUE
    )


def flat_map_values(world: World, op: Op) -> Any:
    require(op, "fn")
    world.keeps_window(op)
    return world.stream(op["in"]).flat_map_values(
        lambda value: vocab.values(op["fn"], value), value=VALUE
    )


def select_key(world: World, op: Op) -> Any:
    require(op, "fn")
    return world.stream(op["in"]).select_key(
        lambda key, value: vocab.new_key(op["fn"], key, value), key=KEY
    )


def peek(world: World, op: Op) -> Any:
    require(op)
    world.keeps_window(op)
    return world.stream(op["in"]).peek(world.seen(f"@peek:{op['id']}"))


def foreach(world: World, op: Op) -> None:
    require(op, "name")
    world.stream(op["in"]).foreach(world.seen(f"@foreach:{op['name']}"))


def merge(world: World, op: Op) -> Any:
    require(op)
    world.keeps_window(op)
    first, *others = (world.stream(id_) for id_ in op["in"])
    for other in others:
        first = first.merge(other)
    return first


def repartition(world: World, op: Op) -> Any:
    require(op, "name")
    world.keeps_window(op)
    key = None if op["in"] in world.windowed else KEY
    return world.stream(op["in"]).repartition(name=op.get("name"), key=key, value=VALUE)


def to(world: World, op: Op) -> None:
    require(op, "topic")
    world.stream(op["in"]).to(op["topic"])


def to_stream(world: World, op: Op) -> Any:
    require(op, "key_fn")
    made = world.nodes[op["in"]]
    made = made.to_stream() if isinstance(made, KTable) else made
    if "key_fn" not in op:
        world.keeps_window(op)
        return made
    return made.select_key(
        lambda key, value: vocab.new_key(op["key_fn"], key, value), key=KEY
    )


def branch(world: World, op: Op) -> None:
    require(op, "name", "branches", "default")
    split = world.stream(op["in"]).split(name=op["name"])
    for made in op["branches"]:
        split = split.branch(partial(vocab.predicate, made["fn"]), name=made["id"])
    streams = (
        split.no_default_branch()
        if op["default"] is None
        else split.default_branch(name=op["default"])
    )
    world.nodes |= streams
    if op["in"] in world.windowed:
        world.windowed |= set(streams)


def to_dynamic(world: World, op: Op) -> None:
    require(op, "prefix", "fn")
    world.stream(op["in"]).to(
        lambda key, value: (
            op["prefix"] + ("yes" if vocab.predicate(op["fn"], key, value) else "no")
        )
    )


def to_table(world: World, op: Op) -> Any:
    require(op, "store")
    world.keeps_window(op)
    return world.stream(op["in"]).to_table(store=op.get("store"))


OPS: Translators = {
    "branch": branch,
    "to_dynamic": to_dynamic,
    "to_table": to_table,
    "stream": stream,
    "table": table,
    "global_table": global_table,
    "filter": filter_,
    "filter_not": filter_,
    "map_values": map_values,
    "map": map_,
    "flat_map": flat_map,
    "flat_map_values": flat_map_values,
    "select_key": select_key,
    "peek": peek,
    "foreach": foreach,
    "merge": merge,
    "repartition": repartition,
    "to": to,
    "to_stream": to_stream,
}
