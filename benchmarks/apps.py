"""The topologies that are measured. Input: about 48 bytes of JSON, 100 000 keys."""

import operator
import os
from datetime import timedelta
from typing import Any

import msgspec

from coopstreams import (
    JoinWindows,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    field,
    serdes,
    until_window_closes,
)
from coopstreams.topology import aggregates
from coopstreams.topology.dsl.windowed import TimeWindowedKStream

NAME = os.environ.get("BENCH_APPLICATION", "bench")
SOURCE, SINK = (
    os.environ.get("BENCH_SOURCE", "bench-in"),
    os.environ.get("BENCH_SINK", "bench-out"),
)
RIGHT = f"{SOURCE}-right"
"""The right topic of a join."""

_count = StreamsBuilder(NAME)
_count.stream(SOURCE, key=serdes.text, value=serdes.json).group_by_key().count(
    store="counts"
).to_stream().to(SINK)
count = _count.build()

_latest = StreamsBuilder(NAME)
_latest.stream(SOURCE, key=serdes.text, value=serdes.raw).group_by_key().reduce(
    lambda _, value: value, store="latest"
).to_stream().map_values(lambda value: value[:20], value=serdes.raw).to(SINK)
latest = _latest.build()

_stateless = StreamsBuilder(NAME)
(
    _stateless.stream(SOURCE, key=serdes.text, value=serdes.json)
    .filter(lambda _, value: value["amount"] > 20)
    .map_values(
        lambda value: {"user": value["user"], "doubled": value["amount"] * 2},
        value=serdes.json,
    )
    .to(SINK)
)
stateless = _stateless.build()


class Payment(msgspec.Struct):
    """An input record."""

    user: str
    amount: int
    n: int


class Doubled(msgspec.Struct):
    """An output record of the stateless topology."""

    user: str
    doubled: int


_typed = StreamsBuilder(NAME)
(
    _typed.stream(SOURCE, key=serdes.text, value=serdes.json(Payment))
    .filter(lambda _, value: value.amount > 20)
    .map_values(
        lambda value: Doubled(value.user, value.amount * 2), value=serdes.json(Doubled)
    )
    .to(SINK)
)
typed = _typed.build()


def _by_minute(builder: StreamsBuilder) -> TimeWindowedKStream[str, Any]:
    """Return the records of each key and minute."""
    orders = builder.stream(SOURCE, key=serdes.text, value=serdes.json)
    return orders.group_by_key().windowed_by(TimeWindows(minutes=1))


_windowed = StreamsBuilder(NAME)
(
    _by_minute(_windowed)
    .aggregate(
        lambda: 0,
        lambda _, value, total: total + value["amount"],
        value=serdes.int64,
        store="sums",
    )
    .to_stream()
    .to(SINK)
)
windowed = _windowed.build()

_windowed_final = StreamsBuilder(NAME)
(
    _by_minute(_windowed_final)
    .emit_strategy("on_window_close")
    .aggregate(
        lambda: 0,
        lambda _, value, total: total + value["amount"],
        value=serdes.int64,
        store="sums",
    )
    .to_stream()
    .to(SINK)
)
windowed_final = _windowed_final.build()

_windowed_suppressed = StreamsBuilder(NAME)
(
    _by_minute(_windowed_suppressed)
    .aggregate(
        lambda: 0,
        lambda _, value, total: total + value["amount"],
        value=serdes.int64,
        store="sums",
    )
    .suppress(until_window_closes())
    .to_stream()
    .to(SINK)
)
windowed_suppressed = _windowed_suppressed.build()

_windowed_named = StreamsBuilder(NAME)
(
    _by_minute(_windowed_named)
    .aggregate(
        n=aggregates.count(),
        total=aggregates.sum_("amount"),
        store="sums",
    )
    .to_stream()
    .to(SINK)
)
windowed_named = _windowed_named.build()

_windowed_dict = StreamsBuilder(NAME)
(
    _by_minute(_windowed_dict)
    .aggregate(
        lambda: {"n": 0, "total": 0},
        lambda _, value, row: {
            "n": row["n"] + 1,
            "total": row["total"] + value["amount"],
        },
        value=serdes.json,
        store="sums",
    )
    .to_stream()
    .to(SINK)
)
windowed_dict = _windowed_dict.build()
"""The row of `windowed_named`, by a lambda."""

_windowed_field = StreamsBuilder(NAME)
(
    _windowed_field.stream(SOURCE, key=serdes.text, value=serdes.json)
    .map_values(field("amount"), value=serdes.int64)
    .group_by_key()
    .windowed_by(TimeWindows(minutes=1))
    .reduce(operator.add, store="sums")
    .to_stream()
    .to(SINK)
)
windowed_field = _windowed_field.build()

_sessions = StreamsBuilder(NAME)
(
    _sessions.stream(SOURCE, key=serdes.text, value=serdes.json)
    .group_by_key()
    .windowed_by(
        SessionWindows(
            milliseconds=int(os.environ.get("BENCH_GAP_MS", "600000")),
            grace=timedelta(milliseconds=int(os.environ.get("BENCH_GRACE_MS", "0"))),
        )
    )
    .count(store="sessions")
    .to_stream()
    .to(SINK)
)
sessions = _sessions.build()

_session_sum = StreamsBuilder(NAME)
(
    _session_sum.stream(SOURCE, key=serdes.text, value=serdes.json)
    .group_by_key()
    .windowed_by(SessionWindows(seconds=20))
    .aggregate(
        lambda: 0,
        lambda _, value, total: total + value["amount"],
        lambda _, one, other: one + other,
        value=serdes.int64,
        store="sums",
    )
    .to_stream()
    .to(SINK)
)
session_sum = _session_sum.build()

_session_uncached = StreamsBuilder(NAME)
(
    _session_uncached.stream(SOURCE, key=serdes.text, value=serdes.json)
    .group_by_key()
    .windowed_by(SessionWindows(seconds=20))
    .aggregate(
        lambda: 0,
        lambda _, value, total: total + value["amount"],
        lambda _, one, other: one + other,
        value=serdes.int64,
        store=Materialized("sums", cached=False),
    )
    .to_stream()
    .to(SINK)
)
session_uncached = _session_uncached.build()

_session_final = StreamsBuilder(NAME)
(
    _session_final.stream(SOURCE, key=serdes.text, value=serdes.json)
    .group_by_key()
    .windowed_by(SessionWindows(seconds=20))
    .emit_strategy("on_window_close")
    .aggregate(
        lambda: 0,
        lambda _, value, total: total + value["amount"],
        lambda _, one, other: one + other,
        value=serdes.int64,
        store="sums",
    )
    .to_stream()
    .to(SINK)
)
session_final = _session_final.build()

_stream_join = StreamsBuilder(NAME)
(
    _stream_join.stream(SOURCE, key=serdes.text, value=serdes.json)
    .join(
        _stream_join.stream(RIGHT, key=serdes.text, value=serdes.json),
        lambda left, right: {
            "user": left["user"],
            "sum": left["amount"] + right["amount"],
        },
        windows=JoinWindows(seconds=20, grace=timedelta(seconds=20)),
        value=serdes.json,
        store="joined",
    )
    .to(SINK)
)
stream_join = _stream_join.build()

_churn = StreamsBuilder(NAME)
_coming = _churn.stream(SOURCE, key=serdes.text, value=serdes.json).group_by_key()
_coming.count(store=Materialized("expiring", ttl=timedelta(seconds=30)))
_coming.aggregate(
    lambda: 0,
    lambda _, value, count: None if value["leaves"] else count + 1,
    value=serdes.int64,
    store="deleted",
)
_coming.windowed_by(TimeWindows(seconds=10)).count(
    store="windowed", retention=timedelta(minutes=2)
)
churn = _churn.build()
"""Rows that come and go in three ways: they expire, they are deleted, their window is
over.
"""
