"""Which sub-topologies of a backfill do without the record cache: those in which
updates would be late at a flush.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coopstreams import (
    JoinWindows,
    KStream,
    Processor,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_window_closes,
)
from coopstreams.common.config import Config
from coopstreams.spark.cached_tables import holds_back
from coopstreams.spark.rounds import rounds_of
from tests.durations import ms

Stream = KStream[str, Any]
WINDOWS = TimeWindows(seconds=10)


def called(stream: Stream) -> Stream:
    return stream.process(
        Processor[str, Any, str, Any], key=serdes.text, value=serdes.json, by_key=False
    )


def joined(stream: Stream) -> Stream:
    return stream.join(
        stream,
        lambda one, _: one,
        windows=JoinWindows(milliseconds=5, grace=ms(0)),
        value=serdes.json,
    )


def moved(stream: Stream) -> Stream:
    return stream.select_key(lambda key, _: key[:1], key=serdes.text).repartition()


def windowed(stream: Stream) -> Any:
    return stream.group_by_key().windowed_by(WINDOWS)


def counted(stream: Stream) -> Stream:
    return stream.group_by_key().count().to_stream()


def suppressed(stream: Stream) -> Any:
    return windowed(stream).count().suppress(until_window_closes()).to_stream()


@pytest.mark.parametrize(
    ("write", "held_back"),
    [
        (counted, True),
        (lambda stream: windowed(stream).count(), True),
        (
            lambda stream: (
                windowed(stream).count().filter(lambda *_: True, store="view")
            ),
            True,
        ),
        (
            lambda stream: windowed(stream).emit_strategy("on_window_close").count(),
            True,
        ),
        (suppressed, True),
        (lambda stream: called(stream).merge(counted(stream)), True),
        (
            lambda stream: stream.left_join(
                stream.to_table(), lambda one, _: one, value=serdes.json
            ),
            True,
        ),
        (lambda stream: windowed(counted(stream)).count(), False),
        (lambda stream: joined(counted(stream)), False),
        (lambda stream: called(counted(stream)), False),
        (lambda stream: called(suppressed(stream)), False),
        (
            lambda stream: windowed(stream.to_table(store="rows").to_stream()).count(),
            False,
        ),
        (lambda stream: counted(moved(stream)), True),
        (lambda stream: moved(counted(stream)), True),
        (lambda stream: windowed(moved(counted(stream))).count(), False),
        (lambda stream: called(moved(moved(counted(stream)))), False),
    ],
)
def test_tables_hold_updates_back_unless_something_below_them_follows_stream_time(
    write: Callable[[Stream], object], *, held_back: bool
) -> None:
    builder = StreamsBuilder("app")
    write(builder.stream("in", key=serdes.text, value=serdes.json))
    topology, settings = builder.build(), {"bootstrap.servers": "nowhere:1"}
    round_ = rounds_of(topology)[0]
    assert holds_back(topology, round_, Config.of(settings, "app")) is held_back
    assert not holds_back(
        topology,
        round_,
        Config.of({**settings, "statestore.cache.max.bytes": 0}, "app"),
    )
