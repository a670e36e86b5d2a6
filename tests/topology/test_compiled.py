"""Generated code: its results for a record, and the columns that it does not read."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Any, TypeVar

import pytest

from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.topology import serdes
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import BoundProgram
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import SerdeError
from coopstreams.topology.failures import Failure
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.operators.analysis import reads_argument
from coopstreams.topology.operators.codegen import PARAMETERS
from coopstreams.topology.serdes import Serde
from coopstreams.topology.suppression import until_window_closes
from coopstreams.topology.windows import TimeWindows

T = TypeVar("T")
IN = TopicPartition("in", 0)


def counting(serde: Serde[T], name: str, calls: Counter[str]) -> Serde[T]:
    """Return the serde, which counts its calls."""

    def encode(value: T) -> bytes:
        calls[f"write {name}"] += 1
        return serde.encode(value)

    def decode(data: bytes) -> T:
        calls[f"read {name}"] += 1
        return serde.decode(data)

    return Serde(name, encode, decode)


def bound(
    builder: StreamsBuilder,
    failures: list[Failure] | None = None,
    *,
    caching: bool = False,
    number: int = 0,
) -> BoundProgram:
    topology = builder.build()
    part = topology.subtopologies[number]
    state = TaskState(Database(Memory(), part.stores), part.stores, WHOLE, 1 << 30)

    def raise_it(failure: Failure) -> None:
        raise failure.error

    return compile_subtopology(topology, part).bind(
        state.stores, raise_it if failures is None else failures.append, caching=caching
    )


def columns(
    *records: tuple[bytes | None, bytes | None], first_timestamp: int = 100
) -> Columns:
    times = [first_timestamp + i for i in range(len(records))]
    return Columns(
        [key for key, _ in records],
        [value for _, value in records],
        times,
        list(range(len(records))),
        times,
    )


def written(
    program: BoundProgram, topic: str = "out"
) -> list[tuple[bytes | None, bytes | None]]:
    output = program.outputs[topic]
    return list(zip(output.keys, output.values, strict=True))


class Lazy:
    """A builder with one stream whose serdes count their calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.key = counting(serdes.text, "key", self.calls)
        self.value = counting(serdes.text, "value", self.calls)
        self.builder = StreamsBuilder("app")
        self.stream = self.builder.stream("in", key=self.key, value=self.value)

    def process(
        self, *records: tuple[bytes | None, bytes | None], **options: Any
    ) -> BoundProgram:
        program = bound(self.builder, **options)
        program.process(IN, columns(*records))
        return program


@pytest.fixture
def lazy() -> Lazy:
    return Lazy()


def test_a_copy_touches_no_serde(lazy: Lazy) -> None:
    lazy.stream.to("out")
    assert written(lazy.process((b"k", b"v"), (None, None))) == [
        (b"k", b"v"),
        (None, None),
    ]
    assert lazy.calls == {}


@pytest.mark.parametrize("topic", PARAMETERS)
def test_a_topic_may_have_the_name_of_a_variable_of_the_code(
    lazy: Lazy, topic: str
) -> None:
    made = lazy.stream.map(
        lambda key, value: (key, value), key=lazy.key, value=lazy.value
    )
    made.to(topic)
    made.to("out")
    program = lazy.process((b"k", b"v"))
    assert written(program, topic) == written(program) == [(b"k", b"v")]


def test_a_filter_reads_what_its_function_reads_and_bytes_pass_on(lazy: Lazy) -> None:
    lazy.stream.filter(lambda _, value: value == "v").to("out")
    assert written(lazy.process((b"k", b"v"), (b"k", b"w"))) == [(b"k", b"v")]
    assert lazy.calls == {"read value": 2}


def test_a_value_is_read_once_for_all_branches_and_nulls_never(lazy: Lazy) -> None:
    for topic in ("a", "b", "c"):
        lazy.stream.filter(lambda _, value: value != "x").to(topic)
    lazy.stream.to("out")
    lazy.process((b"k", b"v"), (b"k", None))
    assert lazy.calls == {"read value": 1}


def test_what_one_branch_reads_is_not_read_before_that_branch(lazy: Lazy) -> None:
    lazy.stream.filter(lambda key, _: key == "k").map_values(
        str.upper, value=lazy.value
    ).to("out")
    lazy.stream.to("copy")
    lazy.process((b"k", b"v"), (b"l", b"v"))
    assert lazy.calls == {"read key": 2, "read value": 1, "write value": 1}


def test_an_unchanged_value_is_not_written_again_next_to_a_new_key(lazy: Lazy) -> None:
    lazy.stream.select_key(lambda key, _: key + "!", key=lazy.key).to("out")
    assert written(lazy.process((b"k", b"v"))) == [(b"k!", b"v")]
    assert lazy.calls == {"read key": 1, "write key": 1}


def test_a_key_is_read_once_for_all_values_of_a_flat_map(lazy: Lazy) -> None:
    lazy.stream.flat_map_values(str.split, value=lazy.value).filter(
        lambda key, _: bool(key)
    ).to("out")
    lazy.process((b"k", b"a b c"))
    assert lazy.calls["read key"] == 1


def test_a_count_reads_neither_key_nor_value(lazy: Lazy) -> None:
    lazy.stream.group_by_key().count(store="counts").to_stream().to("out")
    program = lazy.process((b"k", b"v"), (b"k", b"v"))
    assert written(program) == [(b"k", b"\0" * 7 + b"\1"), (b"k", b"\0" * 7 + b"\2")]
    assert lazy.calls == {}


def test_an_aggregation_reads_the_key_only_if_its_function_does(lazy: Lazy) -> None:
    lazy.stream.group_by_key().aggregate(
        int, lambda _, value, total: total + len(value), value=serdes.int64
    )
    lazy.process((b"k", b"v"))
    assert lazy.calls == {"read value": 1}


def test_a_join_without_a_match_reads_nothing(lazy: Lazy) -> None:
    table = lazy.builder.table("table", key=lazy.key, value=serdes.text)
    lazy.stream.join(table, lambda value, row: value + row, value=lazy.value).to("out")
    lazy.process((b"k", b"v"))
    assert lazy.calls == {}


def test_functions_say_themselves_which_arguments_they_read() -> None:
    outer = 1

    def nested(key: str, value: str) -> Any:
        return lambda: (key, outer)

    def looks_around(key: str, value: str) -> Any:
        return locals()

    def reassigned(key: str, value: str) -> Any:
        key += value
        return value

    assert [reads_argument(nested, i) for i in (0, 1)] == [True, False]
    assert [reads_argument(looks_around, i) for i in (0, 1)] == [True, True]
    assert [reads_argument(reassigned, i) for i in (0, 1)] == [True, True]
    assert [reads_argument(lambda _, value: value.x, i) for i in (0, 1)] == [
        False,
        True,
    ]
    assert [reads_argument(lambda *both: 1, i) for i in (0, 1)] == [True, True]
    assert reads_argument(str.upper, 0)


def test_a_record_goes_through_one_branch_to_its_end_before_the_next(
    lazy: Lazy,
) -> None:
    seen: list[str] = []
    left = lazy.stream.peek(lambda _, value: seen.append(f"left {value}"))
    left.flat_map_values(lambda value: [value + "1", value + "2"]).peek(
        lambda _, value: seen.append(f"below left {value}")
    )
    left.peek(lambda _, value: seen.append(f"also left {value}"))
    lazy.stream.peek(lambda _, value: seen.append(f"right {value}"))
    lazy.process((b"k", b"a"), (b"k", b"b"))
    assert seen == [
        *("left a", "below left a1", "below left a2", "also left a", "right a"),
        *("left b", "below left b1", "below left b2", "also left b", "right b"),
    ]


def test_an_error_names_node_and_record_and_leaves_the_others_alone(lazy: Lazy) -> None:
    failures: list[Failure] = []
    lazy.stream.map_values(int, value=serdes.int64, name="number").to("numbers")
    lazy.stream.to("out")
    program = lazy.process(
        (b"a", b"1"), (b"b", b"two"), (b"c", b"3"), failures=failures
    )
    assert [key for key, _ in written(program, "numbers")] == [b"a", b"c"]
    assert [key for key, _ in written(program)] == [b"a", b"b", b"c"]
    (failure,) = failures
    assert (
        failure.phase,
        failure.node,
        failure.source,
        failure.offset,
        failure.timestamp,
    ) == (
        "processing",
        "number",
        IN,
        1,
        101,
    )
    assert (failure.key, failure.value, failure.headers, type(failure.error)) == (
        b"b",
        b"two",
        None,
        ValueError,
    )


def test_one_of_many_values_may_fail_alone(lazy: Lazy) -> None:
    failures: list[Failure] = []
    lazy.stream.flat_map_values(str.split, value=lazy.value).map_values(
        int, value=serdes.json
    ).to("out")
    program = lazy.process((b"a", b"1 two 3"), (b"b", b"4"), failures=failures)
    assert [value for _, value in written(program)] == [b"1", b"3", b"4"]
    assert [failure.offset for failure in failures] == [0]


def test_an_iterable_that_breaks_is_its_mappers_error(lazy: Lazy) -> None:
    failures: list[Failure] = []

    def broken(value: str) -> Any:
        yield value
        raise RuntimeError

    lazy.stream.flat_map_values(broken, value=lazy.value, name="broken").to("out")
    no_pair: Any = lambda key, value: [(key, value), key]  # noqa: E731
    lazy.stream.flat_map(no_pair, key=lazy.key, value=lazy.value, name="no-pair").to(
        "out"
    )
    assert written(lazy.process((b"a", b"x"), failures=failures)) == []
    assert [failure.node for failure in failures] == ["broken", "no-pair"]


@pytest.mark.parametrize("raising", ["initializer", "aggregator"])
def test_an_aggregation_that_raises_leaves_the_row_as_it_was(
    lazy: Lazy, raising: str
) -> None:
    failures: list[Failure] = []
    broken = False

    def initial() -> int:
        return 1 // (not (broken and raising == "initializer"))

    def add(_: str, value: str, total: int) -> int:
        return total + int(value) // (not (broken and raising == "aggregator"))

    lazy.stream.group_by_key().aggregate(
        initial, add, value=serdes.int64, store="totals"
    ).to_stream().to("out")
    program = bound(lazy.builder, failures)
    program.process(IN, columns((b"k", b"5")))
    broken = True
    program.process(IN, columns((b"new", b"7")))
    broken = False
    program.process(IN, columns((b"k", b"1")))
    assert [
        value and int.from_bytes(value, "big") for _, value in written(program)
    ] == [6, 7]
    assert len(failures) == 1


def test_bytes_that_cannot_be_read_fail_at_the_source_for_all_who_read_them(
    lazy: Lazy,
) -> None:
    failures: list[Failure] = []
    lazy.stream.map_values(str.upper, value=lazy.value).to("out")
    lazy.stream.map_values(str.lower, value=lazy.value).to("out")
    lazy.process((b"a", b"\xff"), failures=failures)
    assert [
        (failure.phase, failure.node, type(failure.error)) for failure in failures
    ] == [("deserialization", "KSTREAM-SOURCE-0000000000", SerdeError)]


def test_what_cannot_be_written_fails_at_the_sink(lazy: Lazy) -> None:
    failures: list[Failure] = []
    lazy.stream.map_values(lambda value: value, value=serdes.int64).to(  # type: ignore[arg-type, return-value]
        "out", name="sink"
    )
    lazy.process((b"a", b"x"), failures=failures)
    assert [(failure.phase, failure.node) for failure in failures] == [
        ("production", "sink")
    ]
    assert "serde int64 cannot write the str 'x'" in str(failures[0].error)


def test_a_failure_while_the_cache_is_forwarded_names_the_row(lazy: Lazy) -> None:
    failures: list[Failure] = []
    counts = lazy.stream.group_by_key().count()
    counts.to_stream().map_values(
        lambda count: 1 // (count - 2), value=serdes.int64, name="divide"
    ).to("out")
    program = lazy.process(
        (b"a", b""),
        (b"b", b""),
        (b"b", b""),
        (b"c", b""),
        failures=failures,
        caching=True,
    )
    program.flush()
    assert [key for key, _ in written(program)] == [b"a", b"c"]
    (failure,) = failures
    assert (
        failure.node,
        failure.source,
        failure.offset,
        failure.key,
        failure.timestamp,
    ) == (
        "divide",
        IN,
        None,
        b"b",
        102,
    )


def test_a_failure_of_a_row_that_was_suppressed_names_it_and_no_other_row(
    lazy: Lazy,
) -> None:
    failures: list[Failure] = []
    windowed = lazy.stream.group_by_key().windowed_by(TimeWindows(milliseconds=10))
    closed = windowed.count().suppress(until_window_closes()).to_stream()
    closed.map_values(
        lambda count: 1 // (count - 2), value=serdes.int64, name="divide"
    ).to("out")
    program = lazy.process((b"a", b""), (b"a", b""), failures=failures, caching=True)
    program.process(IN, columns((b"b", b""), first_timestamp=200))
    program.flush()
    (failure,) = failures
    assert (failure.node, failure.offset, (failure.key or b"")[:-8]) == (
        "divide",
        None,
        b"a",
    )


def test_a_handler_that_raises_ends_the_batch(lazy: Lazy) -> None:
    lazy.stream.map_values(int, value=serdes.json).to("out")
    with pytest.raises(ValueError, match="two"):
        lazy.process((b"a", b"1"), (b"b", b"two"), (b"c", b"3"))


def test_a_traceback_shows_the_generated_source(lazy: Lazy) -> None:
    failures: list[Failure] = []
    lazy.stream.map_values(int, value=serdes.json).to("out")
    lazy.process((b"b", b"two"), failures=failures)
    shown = "".join(traceback.format_exception(failures[0].error))
    assert "<coopstreams app sub-topology 0" in shown
    assert "value_2 = mapper(value_1)" in shown


def test_results_do_not_depend_on_how_records_are_cut_into_batches(lazy: Lazy) -> None:
    lazy.stream.flat_map_values(str.split, value=lazy.value).to("out")
    lazy.stream.group_by_key().count().to_stream().to("counts")
    records = [(bytes([65 + i % 3]), b"x y" if i % 2 else b"z") for i in range(9)]
    whole, parts = lazy.process(*records), bound(lazy.builder)
    for record in records:
        parts.process(IN, columns(record))
    assert [written(whole, topic) for topic in ("out", "counts")] == [
        written(parts, topic) for topic in ("out", "counts")
    ]


def test_headers_cost_nothing_where_there_are_none(lazy: Lazy) -> None:
    lazy.stream.to("out")
    program = lazy.process((b"a", b"1"))
    assert program.outputs["out"].headers is None
    some = columns((b"b", b"2"), (b"c", b"3"))
    some.headers = [[("h", b"x")], None]
    program.process(IN, some)
    program.process(IN, columns((b"d", b"4")))
    assert program.outputs["out"].headers == [None, [("h", b"x")], None, None]
    program.outputs["out"].clear()
    assert program.outputs["out"].headers is None


def test_names_that_people_give_never_collide_in_the_code() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    for name in ("a-b", "a_b", "a.b", "a_b_2", "a_b_key", "value", "key_bytes"):
        stream.filter(lambda _, value: bool(value), name=f"node-{name}").to(name)
        stream.group_by_key().count(store=f"store-{name}", name=name)
    program = bound(builder)
    program.process(IN, columns((b"k", b"v")))
    assert [written(program, topic) for topic in program.outputs] == [
        [(b"k", b"v")]
    ] * 7


def test_a_reduce_over_raw_bytes_needs_no_serde_call() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).group_by_key().reduce(
        lambda old, new: old + new
    ).to_stream().to("out")
    program = bound(builder)
    program.process(IN, columns((b"k", b"a"), (b"k", b"b"), (b"k", None)))
    assert written(program) == [(b"k", b"a"), (b"k", b"ab")]


def test_the_code_grows_with_the_operators_and_not_with_the_ways_to_them() -> None:
    def size(merges: int) -> int:
        builder = StreamsBuilder("app")
        stream = builder.stream("in", key=serdes.text, value=serdes.text)
        for _ in range(merges):
            stream = stream.filter(lambda key, _: bool(key)).merge(
                stream.filter(lambda key, _: not key)
            )
        stream.to("out")
        topology = builder.build()
        return len(
            compile_subtopology(topology, topology.subtopologies[0])
            .compiled(False, False)
            .text
        )

    assert size(40) < 5 * size(10)
