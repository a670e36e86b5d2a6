"""Mistakes of users are found while the topology is built, and the message names the
place and the cure.
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.processors import Processor, key_value_store
from coopstreams.topology.suppression import until_time_limit, until_window_closes
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms
from tests.topology.test_subtopologies import built


async def later(value: Any) -> Any:
    return value


def text(builder: Any, topic: Any = "in", **more: Any) -> Any:
    return builder.stream(topic, **{"key": serdes.text, "value": serdes.text, **more})


def table(builder: StreamsBuilder, topic: str = "rows", key: Any = serdes.text) -> Any:
    return builder.table(topic, key=key, value=serdes.text)


def hourly(builder: StreamsBuilder, **more: Any) -> Any:
    return (
        text(builder)
        .group_by_key()
        .windowed_by(TimeWindows(hours=1, grace=timedelta(hours=1)))
        .count(**more)
    )


def both(builder: StreamsBuilder, *operators: Callable[[Any], Any]) -> None:
    for operator in operators:
        operator(text(builder))


def max_of(_: str, value: str, most: str) -> str:
    return max(value, most)


MINUTE = timedelta(minutes=1)


def closing(grouped: Any) -> None:
    windows = grouped.windowed_by(TimeWindows(minutes=1)).count(store="n")
    windows.suppress(until_window_closes(), name="closed").to_stream().to("out")


MISTAKES: dict[str, tuple[Callable[[StreamsBuilder], object], str]] = {
    "nothing in it": (
        lambda b: None,
        r'the topology "app" is empty: begin with stream\(\.\.\.\) or table\(\.\.\.\)',
    ),
    "no topic": (lambda b: text(b, []), "name at least one topic"),
    "a topic twice": (lambda b: text(b, ["a", "a"]), "a topic is named twice"),
    "an illegal topic": (
        lambda b: text(b, "a b"),
        "the topic 'a b' is not a legal name in Kafka",
    ),
    "a topic that is no string": (
        lambda b: text(b, [3]),
        "the topic must be a string, not 3",
    ),
    "an illegal sink": (
        lambda b: text(b).to("a/b"),
        "the topic 'a/b' is not a legal name",
    ),
    "an illegal store": (
        lambda b: text(b).group_by_key().count(store="a b"),
        "the store name 'a b' is not a legal name",
    ),
    "an illegal node": (
        lambda b: text(b).peek(print, name="a b"),
        "the node name 'a b' is not a legal name",
    ),
    "a serde that is a type": (
        lambda b: text(b, value=str),
        r"value= must be a serde such as serdes\.text .* not <class 'str'>",
    ),
    "a serde that is a type, later": (
        lambda b: text(b).map_values(len, value=int),
        r"map_values: value= must be a serde",
    ),
    "two nodes of one name": (
        lambda b: both(
            b, lambda s: s.peek(print, name="p"), lambda s: s.filter(max, name="p")
        ),
        'two nodes are named "p"',
    ),
    "two stores of one name": (
        lambda b: both(
            b,
            lambda s: s.group_by_key().count(store="n"),
            lambda s: s.group_by_key().count(store="n"),
        ),
        'two stores are named "n". Give one of them another store=',
    ),
    "a store named like the past of another": (
        lambda b: (
            text(b).group_by_key().count(store="n-history"),
            b.table(
                "rows", key=serdes.text, value=serdes.text, store="n", history=ms(10)
            ),
        ),
        'two stores are named "n-history".* A store "n" with a history takes that name, too',
    ),
    "two repartitions of one name": (
        lambda b: both(
            b, lambda s: s.repartition(name="r"), lambda s: s.repartition(name="r")
        ),
        'two repartition topics are named "r-repartition"',
    ),
    "a repartition with no partitions": (
        lambda b: text(b).repartition(partitions=0),
        "partitions must be 1 or more, not 0",
    ),
    "a silence without a unit": (
        lambda b: text(b).repartition(idle_advance=5),
        r"^repartition\(\): idle_advance is 5, a number without a unit. Write timedelta\(milliseconds=5\)",
    ),
    "too few arguments": (
        lambda b: text(b).filter(lambda v: True),
        r"filter calls \(key, value\): .*<lambda> \(line \d+ of .*\) takes \(v\)",
    ),
    "too many arguments": (
        lambda b: text(b).map_values(lambda k, v: v),
        r"map_values calls \(value\)",
    ),
    "an initializer with arguments": (
        lambda b: (
            text(b)
            .group_by_key()
            .aggregate(lambda k: 0, lambda k, v, a: a, value=serdes.int64)
        ),
        r"aggregate calls \(\)",
    ),
    "no function": (
        lambda b: text(b).peek(None),
        r"peek calls \(key, value\): None cannot be called",
    ),
    "an initial value": (
        lambda b: (
            text(b)
            .group_by_key()
            .aggregate(0, lambda k, v, a: a + 1, value=serdes.int64)
        ),
        r"aggregate calls \(\): 0 cannot be called. Give it what makes a new one each time: a class, or `lambda: ...`",
    ),
    "a processor that is made already": (
        lambda b: text(b).process(object(), by_key=True),
        r"process calls \(\): <object .*> cannot be called. Give it what makes a new one each time: a class",
    ),
    "a coroutine function": (
        lambda b: text(b).map_values(later),
        r"map_values calls \(value\): later .* is a coroutine function",
    ),
    "an extractor of two arguments": (
        lambda b: text(b, timestamp=lambda k, v: 0),
        r"timestamp= calls \(record\)",
    ),
    "one topic, two serdes": (
        lambda b: (text(b), b.stream("in", key=serdes.text, value=serdes.json)),
        'topic "in" is read twice, once with value=text and once with value=json',
    ),
    "one topic, two extractors": (
        lambda b: (text(b), text(b, timestamp=lambda record: 0)),
        'topic "in" is read twice with different timestamp=',
    ),
    "one topic, two resets": (
        lambda b: (text(b, reset="latest"), table(b, "in")),
        'topic "in" is read twice with different reset=. Use one for both',
    ),
    "one topic, two silences": (
        lambda b: (text(b), text(b, idle_advance=MINUTE)),
        'topic "in" is read twice with different idle_advance=. Give it where the topic is read first',
    ),
    "one topic, two names": (
        lambda b: (text(b), text(b, name="again")),
        'topic "in" is read twice, as "KSTREAM-SOURCE-0000000000" and as "again"',
    ),
    "one topic, two sets": (
        lambda b: (text(b), text(b, ["in", "more"])),
        r"topic \"in\" is read twice, in \['in'\] and in \['in', 'more'\]",
    ),
    "streams of two builders": (
        lambda b: text(b).merge(text(StreamsBuilder("b"))),
        "both sides must come from the same StreamsBuilder",
    ),
    "a table of another builder": (
        lambda b: text(b).join(table(StreamsBuilder("b")), max),
        r"join with KTABLE-SOURCE-0000000002: both sides must come from the same StreamsBuilder",
    ),
    "merge with a table": (
        lambda b: text(b).merge(table(b)),
        r"merge\(\) puts two streams into one, not a stream and a KTable",
    ),
    "join with a stream": (
        lambda b: text(b).join(text(b), max),
        "two streams are joined within windows such as JoinWindows",
    ),
    "join with a topic": (
        lambda b: text(b).join("table", max),
        "a stream is joined with a table or a stream, not with a str",
    ),
    "join a table with windows=": (
        lambda b: text(b).join(table(b), max, windows=JoinWindows(milliseconds=1)),
        "windows= is for two streams",
    ),
    "join windows without a length": (
        lambda b: text(b).join(text(b), max, windows=JoinWindows()),
        "JoinWindows: give the difference either in",
    ),
    "join windows that are empty": (
        lambda b: JoinWindows(before=ms(-2), after=ms(1)),
        "nothing is in it",
    ),
    "a joiner of the wrong arity": (
        lambda b: text(b).join(table(b), lambda k, v, t: v),
        r"join calls \(value, table_value\)",
    ),
    "a joiner without the key": (
        lambda b: text(b).left_join_with_key(table(b), lambda v, t: v),
        r"left_join_with_key calls \(key, value, table_value\)",
    ),
    "join with windows": (
        lambda b: text(b).join(hourly(b), max),
        "its keys are windows, a stream's are not",
    ),
    "keys written differently": (
        lambda b: text(b).join(table(b, key=serdes.json), max),
        "the keys of the stream are written as text, those of the table as json, so equal keys have different bytes "
        "and never meet",
    ),
    "another key serde without new keys": (
        lambda b: text(b).group_by_key(key=serdes.json),
        r"group_by_key\(\): the keys are written as text",
    ),
    "a table with another key serde": (
        lambda b: text(b).to_table(key=serdes.json),
        r"to_table\(\): the keys are written as text, and it does not write them again",
    ),
    "no windows": (
        lambda b: text(b).group_by_key().windowed_by(timedelta(hours=1)),
        r"windowed_by\(\) needs windows such as TimeWindows",
    ),
    "retention too short": (
        lambda b: hourly(b, store="n", retention=timedelta(hours=1)),
        'count into "n": a retention of 3600000 ms .* 7200000 ms',
    ),
    "a kept view of suppressed windows": (
        lambda b: hourly(b).suppress(until_window_closes()).filter(max, store="kept"),
        'the table "kept": suppressed windows come when they expire, and cannot be kept',
    ),
    "a kept view of a view of suppressed windows": (
        lambda b: (
            hourly(b)
            .suppress(until_window_closes())
            .filter(max)
            .map_values(int, value=serdes.int64, store="v")
        ),
        'the table "v": suppressed windows come when they expire, and cannot be kept',
    ),
    "a sink to an internal topic": (
        lambda b: both(
            b,
            lambda s: s.group_by(lambda k, v: v, key=serdes.text).count(store="n"),
            lambda s: s.to("app-n-repartition"),
        ),
        'KSTREAM-SINK-.* uses the topic "app-n-repartition", which is an internal topic',
    ),
    "windows that a silence above their topic cannot close": (
        lambda b: closing(
            text(b, idle_advance=MINUTE).group_by(
                lambda k, v: v, key=serdes.text, name="by"
            )
        ),
        '"closed" waits for the stream time of "app-by-repartition", which idle_advance= of "in" does not advance: .*'
        r"\.repartition\(idle_advance=\.\.\.\) before the operator",
    ),
    "the same, behind an explicit topic and another one": (
        lambda b: closing(
            text(b, idle_advance=MINUTE)
            .repartition(name="r")
            .group_by(lambda k, v: v, key=serdes.text, name="by")
        ),
        '"closed" waits for the stream time of "app-by-repartition", which idle_advance= of "in"',
    ),
    "the same, of a topic whose own silence is said": (
        lambda b: closing(
            text(b)
            .repartition(name="r", idle_advance=MINUTE)
            .group_by(lambda k, v: v, key=serdes.text, name="by")
        ),
        '"closed" waits for the stream time of "app-by-repartition", which idle_advance= of "app-r-repartition"',
    ),
    "records without a match that a silence above their topics cannot end": (
        lambda b: (
            text(b, idle_advance=MINUTE)
            .select_key(lambda k, v: v, key=serdes.text)
            .left_join(
                text(b, "other"),
                max,
                windows=JoinWindows(seconds=5),
                value=serdes.text,
                name="j",
            )
            .to("out")
        ),
        '"j.*" waits for the stream time of "app-j.*-repartition", which idle_advance= of "in" does not advance',
    ),
    "topics in no order": (
        lambda b: text(b, {"a", "b"}),
        r"stream\(\) takes a topic, a list of topics, or re.compile\(…\), not \{",
    ),
    "no list of stores": (
        lambda b: text(b).process(Processor, stores="rows", by_key=True),
        r"process\(\): stores= takes a list of stores, stores=\[\.\.\.\], not 'rows'",
    ),
    "no list of stores of a call": (
        lambda b: text(b).process_async(max, stores=None),
        "process_async: stores= takes a list of stores, .* not None",
    ),
    "a store whose serde is a type": (
        lambda b: key_value_store("n", key=serdes.text, value=int),  # type: ignore[arg-type]
        r'store "n": value= must be a serde such as serdes\.text .* not <class \'int\'>',
    ),
    "a processor that is by_key by a word": (
        lambda b: text(b).process(Processor, by_key="no"),
        r"process\(\): say how its state is kept",
    ),
    "a cogroup with a stream": (
        lambda b: text(b).group_by_key().cogroup(max_of).cogroup(text(b), max_of),
        r"cogroup\(\) takes a grouped stream and its aggregator, not a KStream\. A stream has \.group_by_key\(\)",
    ),
    "a cogroup without a serde": (
        lambda b: (
            text(b).group_by_key().cogroup(max_of).aggregate(str, value=None, store="n")
        ),
        'cogroup into "n": how do the aggregates become bytes',
    ),
    "a join by foreign key whose serde is a type": (
        lambda b: table(b).join(table(b, "others"), max, foreign_key=str, value=str),
        r"join with .*: value= must be a serde .* not <class \'str\'>",
    ),
    "a join of streams with a store for a name": (
        lambda b: text(b).join(
            text(b, "b"), max, windows=JoinWindows(minutes=1), store=Materialized("s")
        ),
        "the store name must be a string, not Materialized",
    ),
    "a source from a changelog": (
        lambda b: (text(b).group_by_key().count(store="n"), text(b, "app-n-changelog")),
        'uses the topic "app-n-changelog", which is an internal topic',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_while_building(mistake: str) -> None:
    program, message = MISTAKES[mistake]
    with pytest.raises(TopologyError, match=message):
        built(program)


@pytest.mark.parametrize(
    "program",
    [
        lambda idle, _, moved: closing(
            moved.repartition(name="r", idle_advance=MINUTE).group_by_key()
        ),
        lambda idle, _, moved: moved.left_join(
            idle, max, windows=JoinWindows(seconds=5), value=serdes.text
        ),
        lambda idle, _, moved: moved.join(
            moved, max, windows=JoinWindows(seconds=5), value=serdes.text
        ),
        lambda idle, _, moved: (
            moved.group_by_key().windowed_by(TimeWindows(minutes=1)).count()
        ),
        lambda idle, other, _: closing(other.group_by(lambda k, v: v, key=serdes.text)),
        lambda idle, *_: (
            idle.to_table()
            .group_by(lambda k, v: (v, v), key=serdes.text, value=serdes.text)
            .count()
            .suppress(until_time_limit(ms(5)))
        ),
    ],
    ids=[
        "its own silence",
        "one side of a join",
        "an inner join",
        "no result waits",
        "another stream",
        "a table",
    ],
)
def test_a_silence_that_need_not_pass_a_topic_is_no_mistake(program: Any) -> None:
    def attach(builder: StreamsBuilder) -> None:
        idle = text(builder, idle_advance=MINUTE)
        program(
            idle,
            text(builder, "other"),
            idle.select_key(lambda k, v: v, key=serdes.text),
        )

    assert built(attach).subtopologies


@pytest.mark.parametrize("application_id", ["", "my app", "a" * 250, None])
def test_an_illegal_application_id_is_found_at_once(application_id: Any) -> None:
    with pytest.raises(TopologyError, match="the application id"):
        StreamsBuilder(application_id)


def test_builtins_and_classes_are_functions_too() -> None:
    builder = StreamsBuilder("app")
    text(builder).map_values(str.split).map_values(len).map_values(
        float
    ).group_by_key().aggregate(dict, lambda k, v, a: a, value=serdes.json)
    assert len(builder.build().subtopologies) == 1


@pytest.mark.skipif(
    sys.version_info < (3, 14),
    reason="such a name must be quoted, and nothing looks it up",
)
def test_annotations_may_name_what_only_type_checkers_import() -> None:
    program: dict[str, Any] = {}
    lines = "def large(key: str, order: Order) -> bool: return True\ndef wrong(order: Order) -> bool: return True\n"
    exec(compile(lines, "orders.py", "exec", dont_inherit=True), program)
    text(StreamsBuilder("app")).filter(program["large"])
    with pytest.raises(
        TopologyError,
        match=r"wrong \(line 2 of orders.py\) takes \(order: Order\) -> bool\. Write",
    ):
        text(StreamsBuilder("app")).filter(program["wrong"])


def test_a_program_may_write_to_a_topic_it_reads() -> None:
    builder = StreamsBuilder("app")
    text(builder).filter(lambda k, v: v != "").to("in")
    assert builder.build().source_topics == builder.build().sink_topics == ("in",)
