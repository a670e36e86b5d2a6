"""Every public argument that is a length of time takes a `timedelta`, and refuses
anything else while the program is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import coopstreams
from coopstreams import (
    CircuitBreaker,
    JoinWindows,
    KStream,
    Materialized,
    Retry,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    key_value_store,
    serdes,
    session_store,
    until_time_limit,
    versioned_store,
    window_store,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import TopologyError
from tests.durations import ms

SECOND = timedelta(seconds=1)
KINDS: dict[str, Any] = {"key": serdes.text, "value": serdes.int64}
"""The serdes of a store."""


def stream(**options: Any) -> KStream[str, int]:
    return StreamsBuilder("app").stream(
        "in", key=serdes.text, value=serdes.int64, **options
    )


def windowed(windows: Any = None) -> Any:
    return (
        stream().group_by_key().windowed_by(windows or TimeWindows(SECOND, grace=ms(0)))
    )


def cogrouped(windows: Any) -> Any:
    group = stream().group_by_key()
    return group.cogroup(added).windowed_by(windows)


def joined(**options: Any) -> object:
    builder = StreamsBuilder("app")
    left = builder.stream("in", key=serdes.text, value=serdes.int64)
    right = builder.table(
        "table",
        key=serdes.text,
        value=serdes.int64,
        history=timedelta(days=1),
    )
    return left.join(right, max, value=serdes.int64, **options)


async def called(value: int) -> int:
    return value


async def called_with_all(values: list[int]) -> list[int]:
    return values


def zero() -> int:
    return 0


def added(_key: str, value: int, total: int) -> int:
    return total + value


def merged(_key: str, one: int, other: int) -> int:
    return one + other


SESSIONS = SessionWindows(SECOND)
TAKERS: dict[str, Callable[[Any], object]] = {
    "TimeWindows.size": TimeWindows,
    "TimeWindows.advance": lambda it: TimeWindows(SECOND, advance=it),
    "TimeWindows.grace": lambda it: TimeWindows(SECOND, grace=it),
    "SlidingWindows.difference": SlidingWindows,
    "SlidingWindows.grace": lambda it: SlidingWindows(SECOND, grace=it),
    "SessionWindows.gap": SessionWindows,
    "SessionWindows.grace": lambda it: SessionWindows(SECOND, grace=it),
    "JoinWindows.difference": JoinWindows,
    "JoinWindows.before": lambda it: JoinWindows(SECOND, before=it),
    "JoinWindows.after": lambda it: JoinWindows(SECOND, after=it),
    "JoinWindows.grace": lambda it: JoinWindows(SECOND, grace=it),
    "Materialized.ttl": lambda it: Materialized("s", ttl=it),
    "Retry.backoff": lambda it: Retry(backoff=it),
    "Retry.longest": lambda it: Retry(longest=it),
    "CircuitBreaker.pause": lambda it: CircuitBreaker(5, pause=it),
    "KStream.repartition.idle_advance": lambda it: stream().repartition(
        idle_advance=it
    ),
    "KStream.distinct.within": lambda it: stream().distinct(it),
    "KStream.join.grace": lambda it: joined(grace=it),
    "KStream.left_join.grace": lambda it: joined(grace=it),
    "KStream.map_values_async.timeout": lambda it: stream().map_values_async(
        called, value=serdes.int64, timeout=it
    ),
    "KStream.map_batches.max_wait": lambda it: stream().map_batches(
        called_with_all, value=serdes.int64, max_wait=it
    ),
    "StreamsBuilder.stream.idle_advance": lambda it: stream(idle_advance=it),
    "StreamsBuilder.stream.reset": lambda it: stream(reset=it),
    "StreamsBuilder.table.history": lambda it: StreamsBuilder("app").table(
        "in", key=serdes.text, value=serdes.int64, history=it
    ),
    "TimeWindowedKStream.count.retention": lambda it: windowed().count(retention=it),
    "TimeWindowedKStream.mean.retention": lambda it: windowed().mean(retention=it),
    "TimeWindowedKStream.reduce.retention": lambda it: windowed().reduce(
        max, retention=it
    ),
    "TimeWindowedKStream.aggregate.retention": lambda it: windowed().aggregate(
        zero, added, value=serdes.int64, retention=it
    ),
    "SessionWindowedKStream.count.retention": lambda it: windowed(SESSIONS).count(
        retention=it
    ),
    "SessionWindowedKStream.mean.retention": lambda it: windowed(SESSIONS).mean(
        retention=it
    ),
    "SessionWindowedKStream.reduce.retention": lambda it: windowed(SESSIONS).reduce(
        max, retention=it
    ),
    "SessionWindowedKStream.aggregate.retention": lambda it: windowed(
        SESSIONS
    ).aggregate(zero, added, merged, value=serdes.int64, retention=it),
    "TimeWindowedCogroupedKStream.aggregate.retention": lambda it: cogrouped(
        TimeWindows(SECOND)
    ).aggregate(zero, value=serdes.int64, retention=it),
    "SessionWindowedCogroupedKStream.aggregate.retention": lambda it: cogrouped(
        SESSIONS
    ).aggregate(zero, merged, value=serdes.int64, retention=it),
    "key_value_store.ttl": lambda it: key_value_store("s", **KINDS, ttl=it),
    "window_store.size": lambda it: window_store(
        "s", **KINDS, size=it, retention=SECOND
    ),
    "window_store.retention": lambda it: window_store(
        "s", **KINDS, size=SECOND, retention=it
    ),
    "session_store.retention": lambda it: session_store("s", **KINDS, retention=it),
    "versioned_store.history": lambda it: versioned_store("s", **KINDS, history=it),
    "until_time_limit.limit": until_time_limit,
    "serdes.windowed.size": lambda it: serdes.windowed(serdes.text, it),
}
"""The arguments that are lengths of time, by class or function and name."""

AT_RUN_TIME = {
    "ProcessorContext.schedule.interval",
    "coopstreams.testing.TopologyTestDriver.advance.time",
}
"""The arguments of what is called while a program runs."""


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("wrong", [1000, 2.5, True, "1h", "PT1H"])
def test_what_is_no_timedelta_is_refused_while_building_with_the_cure(
    name: str, wrong: object
) -> None:
    with pytest.raises(TopologyError, match="timedelta"):
        TAKERS[name](wrong)


@pytest.mark.parametrize("name", TAKERS)
def test_a_timedelta_is_taken(name: str) -> None:
    TAKERS[name](SECOND)


def test_the_driver_refuses_a_number() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64).to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(TopologyError, match=r"write timedelta|Write timedelta"),
    ):
        driver.advance(1000)  # type: ignore[arg-type]


def public() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public functions and methods, with their names."""
    for module in (coopstreams, coopstreams.testing, serdes):
        said = f"{module.__name__}."
        if module is coopstreams:
            said = ""
        if module is serdes:
            said = "serdes."
        for name in getattr(module, "__all__", vars(module)):
            found = getattr(module, name)
            if name.startswith("_") or not callable(found):
                continue
            if not inspect.isclass(found):
                yield said + name, found
                continue
            for of, method in inspect.getmembers(found, inspect.isfunction):
                if of == "__init__":
                    yield said + name, method
                elif not of.startswith("_"):
                    yield f"{said}{name}.{of}", method


def test_no_public_argument_is_missing_here() -> None:
    found = {
        f"{name}.{argument}"
        for name, function in public()
        for argument, parameter in inspect.signature(function).parameters.items()
        if "Duration" in str(parameter.annotation)
        and not name.startswith("serdes.checked_ms")
    }
    assert found <= TAKERS.keys() | AT_RUN_TIME
    assert len(found) > 25
