"""`process` and `process_values`: processors of the user."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest

from coopstreams import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    TimeWindows,
    key_value_store,
    session_store,
    until_window_closes,
    versioned_store,
    window_store,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError, StateError, TopologyError
from coopstreams.topology.stores import StoreSpec
from tests.durations import ms
from tests.topology.operators.results import outputs

AnyRecord: TypeAlias = Record[Any, Any]
Context: TypeAlias = ProcessorContext[Any, Any]

COUNTS = key_value_store("counts", key=serdes.text, value=serdes.int64)


class Each(Processor[Any, Any, Any, Any]):
    """Forwards the results of a function of (context, record) for each record."""

    def __init__(
        self, function: Callable[[Context, AnyRecord], AnyRecord | None]
    ) -> None:
        self._function = function

    def process(self, record: AnyRecord) -> None:
        made = self._function(self.context, record)
        if made is not None:
            self.context.forward(made)


class Counting(Processor[str, Any, str, int]):
    """Forwards the number of records of its key."""

    def init(self, context: Context) -> None:
        super().init(context)
        self.counts: KeyValueStore[str, int] = context.store("counts")

    def process(self, record: Record[str, Any]) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count))


def driver_of(
    supplier: Callable[[], Processor[Any, Any, Any, Any]],
    *stores: StoreSpec | str,
    ranges: int = 1,
    by_key: bool = False,
    config: dict[str, Any] | None = None,
) -> TopologyTestDriver:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.process(
        supplier, stores=stores, key=serdes.text, value=serdes.json, by_key=by_key
    ).to("out")
    return TopologyTestDriver(builder.build(), ranges, config)


class Careless(Counting):
    """Does not call the `init` of `Processor`."""

    def init(self, context: Context) -> None:
        self.counts: KeyValueStore[str, int] = context.store("counts")


def test_a_processor_has_its_context_whether_its_init_calls_the_one_of_the_base_class_or_not() -> (
    None
):
    with driver_of(Careless, COUNTS, by_key=True) as driver:
        driver.input("in").send("a", 1)
        assert driver.output("out").latest() == {"a": 1}


def each(
    function: Callable[[Context, AnyRecord], AnyRecord | None],
    *records: tuple[Any, ...],
    **more: Any,
) -> list[Any]:
    with driver_of(lambda: Each(function), **more) as driver:
        for record in records:
            driver.input("in", serdes.text, serdes.json).send(*record)
        return driver.outputs()


def test_what_is_forwarded_has_the_key_value_timestamp_and_headers_that_it_was_given() -> (
    None
):
    (made,) = each(
        lambda _, record: Record("k", [record.key, record.value], 7, [("a", b"1")]),
        ("x", 1, 3, [("b", b"2")]),
    )
    assert (made.key, made.value, made.timestamp, made.headers) == (
        "k",
        ["x", 1],
        7,
        [("a", b"1")],
    )


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_record_can_be_forwarded_to_one_operator_by_its_name(ranges: int) -> None:
    def sort(context: Context, record: AnyRecord) -> None:
        if record.value > 9:
            context.forward(record, to="large")
        elif record.value < 0:
            context.forward(record, to="debts")
        else:
            context.forward(record)

    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    sorted_out = stream.process(
        lambda: Each(sort), key=serdes.text, value=serdes.int64, by_key=True
    )
    sorted_out.filter(lambda _, value: value != 7, name="large").to("large-numbers")
    sorted_out.map_values(abs, value=serdes.int64, name="debts").to("owed")
    sorted_out.to("rest", name="rest")
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for value in (10, -2, 3):
            driver.input("in", serdes.text, serdes.int64).send("a", value)
        assert [(record.topic, record.value) for record in driver.outputs()] == [
            ("large-numbers", 10),
            ("owed", 2),
            ("large-numbers", 3),
            ("owed", 3),
            ("rest", 3),
        ]


def test_the_only_operator_below_has_a_name_too() -> None:
    with driver_of(
        lambda: Each(
            lambda context, record: context.forward(
                record, to="KSTREAM-SINK-0000000002"
            )
        )
    ) as driver:
        driver.input("in", serdes.text, serdes.json).send("a", 1)
        assert [record.value for record in driver.outputs()] == [1]


def test_a_name_that_no_operator_below_has_is_an_error_that_names_those_that_are_there() -> (
    None
):
    with pytest.raises(
        ProcessingError, match=r'to="out".*there are KSTREAM-SINK-0000000002'
    ):
        each(lambda context, record: context.forward(record, to="out"), ("a", 1))


def test_headers_pass_and_are_added_for_this_record_only() -> None:
    def add(_: Context, record: AnyRecord) -> AnyRecord:
        return record.with_header("n", b"1") if record.value == 2 else record

    made = each(
        add,
        ("x", 1, 1),
        ("x", 2, 2, [("b", b"2")]),
        ("x", 3, 3),
        ("x", 2, 4),
        ("x", 3, 5, [("c", None)]),
    )
    assert [record.headers for record in made] == [
        [],
        [("b", b"2"), ("n", b"1")],
        [],
        [("n", b"1")],
        [("c", None)],
    ]


def test_a_processor_knows_where_its_record_was_read_and_what_time_it_is() -> None:
    def look(context: Context, record: AnyRecord) -> AnyRecord:
        assert context.metadata is not None
        return record.with_value(
            [*context.metadata, context.stream_time(), context.wall_clock()]
        )

    made = each(look, ("x", 1, 30), ("x", 1, 20))
    assert [record.value for record in made] == [
        ["in", 0, 0, 30, 0],
        ["in", 0, 1, 30, 0],
    ]


@pytest.mark.parametrize("ranges", [1, 4])
def test_a_store_counts_and_can_be_read(ranges: int) -> None:
    with driver_of(Counting, COUNTS, ranges=ranges, by_key=True) as driver:
        for key in "abcaab":
            driver.input("in", serdes.text, serdes.json).send(key, 0)
        assert driver.output("out", serdes.text, serdes.json).latest() == {
            "a": 3,
            "b": 2,
            "c": 1,
        }
        driver.commit()
        assert [(row.key, row.value) for row in driver.store("counts").all()] == [
            ("a", 3),
            ("b", 2),
            ("c", 1),
        ]


def test_two_processors_may_share_a_store() -> None:
    builder = StreamsBuilder("app")
    for topic in ("left", "right"):
        builder.stream(topic, key=serdes.text, value=serdes.json).process(
            Counting, stores=[COUNTS], key=serdes.text, value=serdes.json, by_key=False
        ).to("out")
    topology = builder.build()
    assert len(topology.subtopologies) == 1
    assert [
        value
        for _, value, _ in outputs(topology, ("left", "a", 0, 0), ("right", "a", 0, 0))
    ] == [1, 2]


def test_a_processor_may_look_into_the_store_of_a_table() -> None:
    class Look(Processor[str, Any, str, Any]):
        def process(self, record: Record[str, Any]) -> None:
            table: KeyValueStore[str, Any] = self.context.store("names")
            self.context.forward(
                record.with_value([table.get(record.key), table.timestamp(record.key)])
            )

    builder = StreamsBuilder("app")
    builder.table("names-topic", key=serdes.text, value=serdes.json, store="names")
    builder.stream("in", key=serdes.text, value=serdes.json).process_values(
        Look, stores=["names"], value=serdes.json, by_key=False
    ).to("out")
    found = outputs(
        builder.build(),
        ("names-topic", "a", "Ann", 5),
        ("in", "a", 0, 6),
        ("in", "b", 0, 6),
    )
    assert [value for _, value, _ in found] == [["Ann", 5], [None, None]]


def test_process_values_needs_no_repartition_and_keeps_the_key() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    same = stream.process_values(
        lambda: Each(lambda _, record: record.with_value(record.value + 1)),
        value=serdes.json,
        by_key=False,
    )
    same.group_by_key().reduce(
        lambda total, value: total + value, store="sums"
    ).to_stream().to("out")
    topology = builder.build()
    assert [topic.kind for topic in topology.internal_topics] == ["changelog"]
    assert [
        value for _, value, _ in outputs(topology, ("in", "a", 1, 0), ("in", "a", 2, 0))
    ] == [2, 5]


def test_process_values_cannot_change_the_key() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.process_values(
        lambda: Each(lambda _, record: record.with_key("other")),
        value=serdes.json,
        by_key=False,
    ).to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError, match="cannot change the key 'a' to 'other'"),
    ):
        driver.input("in", serdes.text, serdes.json).send("a", 1)


def test_an_error_fails_the_record_at_the_processor_and_the_next_goes_on() -> None:
    def fragile(_: Context, record: AnyRecord) -> AnyRecord:
        return record.with_value(10 // record.value)

    with driver_of(
        lambda: Each(fragile), config={"processing.exception.handler": "continue"}
    ) as driver:
        for value in (5, 0, 2):
            driver.input("in", serdes.text, serdes.json).send("a", value)
        assert [record.value for record in driver.outputs()] == [2, 5]
        assert [(failure.node, failure.offset) for failure in driver.failures] == [
            ("KSTREAM-PROCESSOR-0000000001", 1)
        ]


@pytest.mark.parametrize("by_key", [True, False])
def test_a_supplier_that_returns_the_same_processor_for_several_tasks_is_an_error(
    by_key: bool,
) -> None:
    builder, only = StreamsBuilder("app"), Counting()
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.process(
        lambda: only,
        stores=[COUNTS],
        key=serdes.text,
        value=serdes.int64,
        by_key=by_key,
    ).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in").send("a", 1)
    with pytest.raises(TopologyError, match="another task or node has already"):
        TopologyTestDriver(builder.build(), ranges=2, partitions=2)


def test_an_error_below_is_that_of_the_node_below_even_if_the_processor_catches_everything() -> (
    None
):
    class Careless(Processor[Any, Any, Any, Any]):
        def process(self, record: AnyRecord) -> None:
            try:
                self.context.forward(record)
            except Exception:  # noqa: BLE001 what this test is about
                self.context.forward(record.with_value(1))

    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json).process(
        Careless, key=serdes.text, value=serdes.json, by_key=False
    )
    stream.map_values(lambda value: 1 // value, value=serdes.json, name="divide").to(
        "out"
    )
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(ProcessingError, match="divide: ZeroDivisionError"),
    ):
        driver.input("in", serdes.text, serdes.json).send("a", 0)


def test_a_node_below_that_stops_the_application_stops_it_whatever_the_handler_says() -> (
    None
):
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    seen = stream.process_values(
        lambda: Each(lambda _, record: record), value=serdes.json, by_key=True
    )
    seen.group_by_key().windowed_by(TimeWindows(milliseconds=10)).count().suppress(
        until_window_closes(max_records=1)
    )
    config = {"processing.exception.handler": "continue"}
    driver = TopologyTestDriver(builder.build(), config=config)
    driver.input("in").send("a", 1)
    with driver, pytest.raises(ProcessingError, match="2 rows with 34 bytes wait"):
        driver.input("in").send("b", 1)


def each_of(
    function: Callable[[Context, AnyRecord], AnyRecord | None],
) -> Callable[[], Each]:
    return lambda: Each(function)


def test_a_processor_that_looks_at_several_keys_has_its_partition_to_itself() -> None:
    class Latest(Processor[Any, Any, Any, Any]):
        last: Any = None

        def process(self, record: AnyRecord) -> None:
            self.context.forward(record.with_value([self.last, record.key]))
            self.last = record.key

    def outputs(ranges: int) -> list[Any]:
        with driver_of(Latest, ranges=ranges) as driver:
            for key in "abcdefgh":
                driver.input("in", serdes.text, serdes.json).send(key, 0)
            return driver.outputs()

    assert outputs(4) == outputs(1)


def test_mistakes_are_found_while_building_or_when_the_task_begins() -> None:
    stream = StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.json)
    with pytest.raises(TopologyError, match="stores= takes"):
        stream.process(Counting, stores=[3], by_key=False)  # type: ignore[list-item]
    with pytest.raises(TopologyError, match='two stores are named "counts"'):
        stream.process(
            Counting,
            stores=[
                COUNTS,
                key_value_store("counts", key=serdes.raw, value=serdes.raw),
            ],
            by_key=False,
        )
    with pytest.raises(TopologyError, match='has no store "counts"'):
        driver_of(Counting)
    with pytest.raises(TopologyError, match="which is no Processor"):
        driver_of(lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(TopologyError, match="retention at least the size"):
        window_store(
            "w", key=serdes.text, value=serdes.text, size=ms(10), retention=ms(5)
        )


def test_a_store_that_is_used_by_key_has_the_keys_of_the_records() -> None:
    builder = StreamsBuilder("app")
    builder.table("rows", key=serdes.int64, value=serdes.text, store="rows")
    stream = builder.stream("in", key=serdes.text, value=serdes.json)
    stream.process(
        lambda: Each(lambda _, record: record),
        stores=["rows"],
        by_key=True,
        name="look",
    )
    with pytest.raises(
        TopologyError,
        match=r'"look" keeps state by_key, but its store "rows" writes keys as int64, .* written as text: .*'
        r"Give the records the keys of the store, \.select_key\(\.\.\., key=serdes.int64\)\.repartition\(\), or say",
    ):
        builder.build()


def counted_by_new_keys(ranges: int, *, by_key: bool, repartitioned: bool) -> list[Any]:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.json).select_key(
        lambda _, value: value, key=serdes.text
    )
    (stream.repartition(name="around") if repartitioned else stream).process(
        Counting, stores=[COUNTS], by_key=by_key
    )
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for at, key in enumerate("abcdefgh"):
            driver.input("in").send(key, "xy"[at % 2])
        return [(row.key, row.value) for row in driver.store("counts").all()]


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("repartitioned", [False, True])
def test_new_keys_are_treated_by_one_task_or_repartitioned(
    ranges: int, repartitioned: bool
) -> None:
    assert counted_by_new_keys(
        ranges, by_key=repartitioned, repartitioned=repartitioned
    ) == [("x", 4), ("y", 4)]


def test_new_keys_that_were_not_repartitioned_cannot_be_treated_each_on_its_own() -> (
    None
):
    with pytest.raises(
        TopologyError,
        match=r'process\(\): by_key=True needs .* "KSTREAM-KEY-SELECT-0000000001" may .*repartition\(\) .*by_key=False',
    ):
        counted_by_new_keys(1, by_key=True, repartitioned=False)


@pytest.mark.parametrize("method", ["process", "process_values"])
def test_whether_a_processor_goes_by_key_must_be_said(method: str) -> None:
    stream = StreamsBuilder("app").stream("in", key=serdes.text, value=serdes.json)
    with pytest.raises(
        TopologyError,
        match=rf"{method}\(\): say how its state is kept. by_key=True: .* by_key=False: ",
    ):
        getattr(stream, method)(Counting, stores=[COUNTS])


USES: dict[str, Callable[[Any], object]] = {
    "a row is read": lambda stores: stores["rows"].get("one"),
    "a row is written": lambda stores: stores["rows"].put("one", 1),
    "a row that expires is read": lambda stores: stores["expiring"].get("one"),
    "a version is read": lambda stores: stores["versions"].get("one"),
    "a version is written": lambda stores: stores["versions"].put("one", 1, 5),
    "a window is written": lambda stores: stores["windows"].put("one", 1, 0),
    "windows are read": lambda stores: list(stores["windows"].fetch("one", 0, 9)),
    "sessions are read": lambda stores: list(stores["sessions"].sessions("one")),
}


@pytest.mark.parametrize("use", USES)
def test_a_row_of_a_key_that_another_task_has_is_an_error(use: str) -> None:
    kinds = {
        "rows": key_value_store("rows", key=serdes.text, value=serdes.int64),
        "expiring": key_value_store(
            "expiring", key=serdes.text, value=serdes.int64, ttl=ms(1000)
        ),
        "versions": versioned_store(
            "versions", key=serdes.text, value=serdes.int64, history=ms(1000)
        ),
        "windows": window_store(
            "windows",
            key=serdes.text,
            value=serdes.int64,
            size=ms(10),
            retention=ms(1000),
        ),
        "sessions": session_store(
            "sessions", key=serdes.text, value=serdes.int64, retention=ms(1000)
        ),
    }

    def strays(context: Context, record: AnyRecord) -> AnyRecord:
        USES[use]({name: context.store(name) for name in kinds})
        return record

    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.int64)
    read.process(
        lambda: Each(strays),
        stores=list(kinds.values()),
        key=serdes.text,
        value=serdes.int64,
        by_key=True,
    ).to("out")
    with TopologyTestDriver(
        builder.build(), 4, {"processing.exception.handler": "continue"}
    ) as driver:
        for key in ("one", "a", "b", "c", "d", "e"):
            driver.input("in").send(key, 1, 5)
        assert "one" in (passed := {record.key for record in driver.outputs()})
        assert len(passed) < 6
        assert len(driver.failures) == 6 - len(passed)
        for failure in driver.failures:
            assert isinstance(failure.error, StateError)
            assert (
                "it is not the key of the record. A processor with by_key=True"
                in str(failure.error)
            )


def test_each_processor_is_closed_whatever_another_one_raises() -> None:
    closed: list[str] = []

    class Closing(Processor[str, str, str, str]):
        def __init__(self, name: str) -> None:
            self._name = name

        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record)

        def close(self) -> None:
            closed.append(self._name)
            if self._name == "first":
                raise ConnectionError("the connection is gone")

    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    for name in ("first", "second"):
        stream = stream.process(
            partial(Closing, name), key=serdes.text, value=serdes.text, by_key=False
        )
    stream.to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(ConnectionError):
        driver.close()
    assert closed == ["first", "second"]
