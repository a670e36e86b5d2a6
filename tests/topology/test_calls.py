"""Options of calls: valid and invalid ones, and the pauses between attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.topology import serdes
from coopstreams.topology.calls import CircuitBreaker, Retry, calling
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.processors import (
    CallContext,
    Processor,
    key_value_store,
    window_store,
)
from coopstreams.topology.records import Record
from coopstreams.topology.suppression import until_window_closes
from coopstreams.topology.windows import SessionWindows, TimeWindows
from tests.durations import ms

WINDOWS = TimeWindows(milliseconds=10)


async def twice(value: int) -> int:
    return value * 2


class Asked:
    async def __call__(self, value: int) -> int:
        return value


@given(failed=st.integers(1, 60), chance=st.floats(0, 1), jitter=st.floats(0, 1))
def test_pauses_double_up_to_the_longest_and_are_only_ever_shortened(
    failed: int, chance: float, jitter: float
) -> None:
    retry = Retry(times=60, backoff=ms(100), longest=ms(5000), jitter=jitter)
    full = min(0.1 * 2 ** (failed - 1), 5.0)
    assert full * (1 - jitter) - 1e-9 <= retry.pause_s(failed, chance) <= full


def test_only_so_many_failures_of_the_named_kinds_are_tried_again() -> None:
    retry = Retry(times=2, on=(ConnectionError, TimeoutError))
    assert [retry.again(failed, ConnectionError()) for failed in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    assert not retry.again(1, ValueError())


@pytest.mark.parametrize(
    "made",
    [
        lambda: Retry(times=0),
        lambda: Retry(times=1.5),  # type: ignore[arg-type]
        lambda: Retry(backoff=1),  # type: ignore[arg-type]
        lambda: Retry(longest=timedelta(seconds=-1)),
        lambda: Retry(jitter=2),
        lambda: Retry(on=ValueError),  # type: ignore[arg-type]
        lambda: Retry(on=(KeyboardInterrupt,)),  # type: ignore[arg-type]
        lambda: CircuitBreaker(failures=0),
        lambda: CircuitBreaker(pause=ms(0)),
        lambda: CircuitBreaker(on=OSError),  # type: ignore[arg-type]
    ],
)
def test_a_retry_or_breaker_that_makes_no_sense_is_refused(
    made: Callable[[], Retry | CircuitBreaker],
) -> None:
    with pytest.raises(TopologyError, match=r"^(Retry|CircuitBreaker): "):
        made()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_in_flight": 0}, "whole number from 1 on"),
        ({"order": "offset"}, '"key", "partition" or "none"'),
        ({"timeout": 5}, "a number without a unit"),
        ({"timeout": 0}, "at least 1 ms"),
        ({"retry": 3}, "Retry\\(times=3\\)"),
        ({"dead_letters": ""}, "the name of a topic"),
        ({"breaker": 3}, "CircuitBreaker\\(\\)"),
        ({"retries": 3}, "takes no retries="),
    ],
)
def test_options_that_make_no_sense_are_refused_where_they_are_given(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(TopologyError, match=f"map_values_async.*{says}"):
        stream().map_values_async(twice, **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_records": 0}, "max_records must be a whole number from 1 on"),
        ({"max_wait": 5}, "max_wait.*a number without a unit"),
        ({"retries": 3}, "takes no retries=.*max_records"),
    ],
)
def test_options_of_batches_that_make_no_sense_are_refused(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(TopologyError, match=f"map_batches.*{says}"):
        stream().map_batches(sorted, **options)
    with pytest.raises(TopologyError, match="map_values_async takes no max_records="):
        stream().map_values_async(twice, max_records=3)  # type: ignore[call-overload]


def filtered(stream: KStream[str, Any]) -> KStream[str, Any]:
    return stream.filter(lambda *_: True)


@pytest.mark.parametrize(
    ("below", "suffice"),
    [
        (lambda stream: filtered(stream).to("out"), True),
        (lambda stream: filtered(stream).group_by_key().count(), True),
        (lambda stream: stream.group_by_key().windowed_by(WINDOWS).count(), True),
        (
            lambda stream: filtered(stream).group_by_key().windowed_by(WINDOWS).count(),
            False,
        ),
        (lambda stream: filtered(stream.merge(filtered(stream))).to("out"), True),
        (
            lambda stream: (
                stream.merge(filtered(stream))
                .group_by_key()
                .windowed_by(WINDOWS)
                .count()
            ),
            False,
        ),
        (
            lambda stream: (
                stream.group_by_key()
                .windowed_by(WINDOWS)
                .emit_strategy("on_window_close")
                .count()
            ),
            False,
        ),
        (
            lambda stream: (
                stream.group_by_key().windowed_by(SessionWindows(gap=ms(5))).count()
            ),
            False,
        ),
        (
            lambda stream: (
                stream.group_by_key()
                .windowed_by(WINDOWS)
                .count()
                .suppress(until_window_closes())
            ),
            False,
        ),
        (
            lambda stream: stream.join(
                stream, max, windows=JoinWindows(milliseconds=5)
            ),
            False,
        ),
        (
            lambda stream: stream.left_join(
                stream.to_table(), max, value=serdes.json
            ).to("out"),
            True,
        ),
    ],
)
def test_records_pass_others_only_where_the_order_of_each_key_suffices(
    below: Callable[..., Any], suffice: bool
) -> None:
    def built(**options: Any) -> bool:
        builder = StreamsBuilder("app")
        read = filtered(builder.stream("in", key=serdes.text, value=serdes.json))
        below(read.map_values_async(twice, value=serdes.json, **options))
        topology = builder.build()
        return compile_subtopology(topology, topology.subtopologies[0]).keys_suffice

    assert built() is suffice
    assert not built(order="partition")


def test_what_is_not_said_has_sane_values() -> None:
    assert calling("f", twice) == calling(
        "f",
        twice,
        max_in_flight=100,
        order="key",
        timeout=timedelta(seconds=30),
        retry=None,
    )
    assert calling("f", twice, timeout=None).timeout_s is None


def test_coroutine_functions_are_awaited_and_others_run_on_threads() -> None:
    assert [
        calling("f", function).coroutine
        for function in (twice, Asked(), lambda value: value, str)
    ] == [
        True,
        True,
        False,
        False,
    ]


def test_a_coroutine_function_elsewhere_is_an_error_that_names_the_operator_for_it() -> (
    None
):
    with pytest.raises(TopologyError, match="map_values_async"):
        stream().map_values(twice)
    with pytest.raises(TopologyError, match="map_values_async"):
        stream().map_values(Asked())


@pytest.mark.parametrize(
    ("above", "says"),
    [
        (
            lambda stream: stream.group_by_key().count().to_stream(),
            "KSTREAM-AGGREGATE|KTABLE-TOSTREAM",
        ),
        (
            lambda stream: stream.map_values_async(twice, value=serdes.json),
            "asynchronous, too",
        ),
        (
            lambda stream: stream.join(stream.to_table(), lambda left, right: left),
            "StreamTableJoin",
        ),
    ],
)
def test_state_and_other_calls_above_are_refused_and_a_repartition_cures_it(
    above: Callable[[KStream[str, int]], KStream[str, int]], says: str
) -> None:
    with pytest.raises(TopologyError, match=f"(?s)({says}).*repartition"):
        above(stream()).filter(lambda *_: True).map_values_async(twice)
    above(stream()).repartition(value=serdes.json).map_values_async(twice)


def test_a_call_with_other_arguments_than_it_will_get_is_refused() -> None:
    with pytest.raises(
        TopologyError, match=r"map_values_with_key_async calls \(key, value\)"
    ):
        stream().map_values_with_key_async(twice)  # type: ignore[arg-type]


def test_an_asynchronous_generator_is_refused() -> None:
    """Nothing would have awaited its values."""

    async def yields(value: int) -> AsyncIterator[int]:
        yield value

    with pytest.raises(
        TopologyError,
        match=r"yields \(line \d+ .* is an asynchronous generator. Return a list",
    ):
        stream().flat_map_values_async(yields)  # type: ignore[arg-type]


def test_keys_that_stay_need_no_repartition_and_new_ones_do() -> None:
    async def swapped(key: str, value: int) -> tuple[str, int]:
        return str(value), 0

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.map_values_async(twice).group_by_key(value=serdes.json).windowed_by(
        TimeWindows(milliseconds=10)
    ).count()
    assert len(builder.build().subtopologies) == 1
    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.map_async(swapped, key=serdes.text, value=serdes.json).group_by_key().count()
    assert len(builder.build().subtopologies) == 2


async def kept(record: Record[str, int], context: CallContext[str, int]) -> None:
    context.store("counts").put(record.value)


COUNTS = key_value_store("counts", key=serdes.text, value=serdes.json)


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (
            lambda stream: stream.process_async(kept, order="none"),
            'order="none" is not possible',
        ),
        (
            lambda stream: stream.process_async(kept, order="partition"),
            'order="partition" is not possible',
        ),
        (
            lambda stream: stream.process_async(twice),
            r"process_async calls \(record, context\)",
        ),
        (
            lambda stream: stream.select_key(
                lambda *_: "a", key=serdes.text
            ).process_async(kept),
            r"\.repartition\(\)",
        ),
        (
            lambda stream: stream.map_values_async(twice).process_async(kept),
            "asynchronous, too",
        ),
        (
            lambda stream: stream.process_async(kept).map_values_async(twice),
            "asynchronous, too",
        ),
        (
            lambda stream: stream.process_async(kept, stores=["counts"]),
            "stores of its own",
        ),
        (
            lambda stream: stream.process_async(
                kept,
                stores=[
                    window_store(
                        "w",
                        key=serdes.text,
                        value=serdes.json,
                        size=ms(1),
                        retention=ms(9),
                    )
                ],
            ),
            "a row for each key",
        ),
    ],
)
def test_state_of_calls_is_rows_of_their_own_by_the_keys_of_the_topic(
    refused: Callable[[KStream[str, int]], object], says: str
) -> None:
    with pytest.raises(TopologyError, match=says):
        refused(stream())


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            lambda stream: stream.process(Nothing, stores=["counts"], by_key=True),
            "cannot use it",
        ),
        (
            lambda stream: stream.process(Nothing, stores=[COUNTS], by_key=True),
            "cannot use it",
        ),
        (lambda stream: stream.process_async(kept, stores=[COUNTS]), "cannot use it"),
    ],
)
def test_a_store_of_calls_is_used_by_nobody_else(
    other: Callable[[KStream[str, int]], object], says: str
) -> None:
    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.process_async(kept, stores=[COUNTS])
    other(read)
    with pytest.raises(TopologyError, match=says):
        builder.build()


def test_a_store_by_other_keys_than_those_of_the_records_is_refused() -> None:
    builder = StreamsBuilder("app")
    by_number = key_value_store("counts", key=serdes.int64, value=serdes.json)
    builder.stream("in", key=serdes.text, value=serdes.json).process_async(
        kept, stores=[by_number]
    )
    with pytest.raises(TopologyError, match="writes keys as int64"):
        builder.build()


class Nothing(Processor[str, int, str, int]):
    def process(self, record: Record[str, int]) -> None:
        pass


def stream() -> KStream[str, Any]:
    return StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.json)
