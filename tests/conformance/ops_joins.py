"""Steps that join."""

from __future__ import annotations

from typing import Any

from coopstreams.topology.join_windows import JoinWindows
from tests.conformance import vocab
from tests.conformance.world import VALUE, Op, Translators, World, require
from tests.durations import ms

LEGACY_GRACE_MS = 24 * 60 * 60 * 1000


def join_st(world: World, op: Op) -> Any:
    require(op, "kind", "joiner", "name", "grace_ms")
    left, right = op["in"]
    stream = world.stream(left)
    method: Any = (
        stream.left_join_with_key if op["kind"] == "left" else stream.join_with_key
    )
    return method(
        world.nodes[right],
        lambda key, a, b: vocab.joined(op["joiner"], key, a, b),
        value=VALUE,
        grace=ms(op["grace_ms"]) if "grace_ms" in op else None,
        name=op.get("name"),
    )


def join_tt(world: World, op: Op) -> Any:
    require(op, "kind", "joiner", "store", "name")
    left, right = (world.nodes[side] for side in op["in"])
    method: Any = {
        "inner": left.join,
        "left": left.left_join,
        "outer": left.outer_join,
    }[op["kind"]]
    return method(
        right,
        lambda a, b: vocab.joined(op["joiner"], None, a, b),
        value=VALUE,
        store=op.get("store"),
        name=op.get("name"),
    )


def join_ss(world: World, op: Op) -> Any:
    require(
        op,
        "kind",
        "joiner",
        "name",
        "before_ms",
        "after_ms",
        "grace_ms",
        "mode",
        "store",
    )
    left, right = (world.stream(side) for side in op["in"])
    eager = op.get("mode") == "legacy"
    windows = JoinWindows(
        before=ms(op["before_ms"]),
        after=ms(op["after_ms"]),
        grace=ms(op.get("grace_ms", LEGACY_GRACE_MS if eager else 0)),
        eager=eager,
    )
    method: Any = {
        "inner": left.join_with_key,
        "left": left.left_join_with_key,
        "outer": left.outer_join_with_key,
    }[op["kind"]]
    joiner = lambda key, a, b: vocab.joined(op["joiner"], key, a, b)  # noqa: E731 one line, used once
    return method(
        right,
        joiner,
        windows=windows,
        value=VALUE,
        name=op.get("name"),
        store=op.get("store"),
    )


def join_sg(world: World, op: Op) -> Any:
    require(op, "kind", "joiner", "key_fn", "name")
    left, right = op["in"]
    stream = world.stream(left)
    method: Any = (
        stream.left_join_with_key if op["kind"] == "left" else stream.join_with_key
    )
    joiner = lambda key, a, b: vocab.joined(op["joiner"], key, a, b)  # noqa: E731 one line, used once
    on = lambda key, value: vocab.new_key(op["key_fn"], key, value)  # noqa: E731
    return method(world.nodes[right], joiner, on=on, value=VALUE, name=op.get("name"))


def join_fk(world: World, op: Op) -> Any:
    require(op, "kind", "joiner", "fk_fn", "store", "name")
    left, right = (world.nodes[side] for side in op["in"])
    method: Any = left.left_join if op["kind"] == "left" else left.join
    joiner = lambda a, b: vocab.joined(op["joiner"], None, a, b)  # noqa: E731 one line, used once
    foreign_key = lambda value: vocab.new_key(op["fk_fn"], None, value)  # noqa: E731
    return method(
        right,
        joiner,
        foreign_key=foreign_key,
        value=VALUE,
        store=op.get("store"),
        name=op.get("name"),
    )


OPS: Translators = {
    "join_fk": join_fk,
    "join_sg": join_sg,
    "join_st": join_st,
    "join_tt": join_tt,
    "join_ss": join_ss,
}
