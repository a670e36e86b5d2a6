"""Behind repartition topics everything that depends on time gives what it would give
for one source partition that has all records in the order of their births.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams import (
    JoinWindows,
    KStream,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
    until_window_closes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.graph.timed_topics import timed_topics
from coopstreams.topology.keys import partition_of

Stream = KStream[str, str]


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def renamed(stream: Stream, name: str) -> Stream:
    by_value = stream.select_key(lambda _, value: value[:1], key=serdes.text)
    return by_value.repartition(name=name, key=serdes.text, value=serdes.text)


def as_it_is(stream: Stream, name: str) -> Stream:
    return stream


Through = Callable[[Stream, str], Stream]
"""The way of a stream to what depends on time: through a repartition topic, or none."""


def source(builder: StreamsBuilder, topic: str = "in") -> Stream:
    return builder.stream(topic, key=serdes.text, value=serdes.text)


def sessions(builder: StreamsBuilder, through: Through) -> None:
    idle = SessionWindows(ms(5), grace=ms(3))
    counts = through(source(builder), "by-value").group_by_key().windowed_by(idle)
    counts.count(store="sessions").to_stream().to("out")


def final_sessions(builder: StreamsBuilder, through: Through) -> None:
    idle = SessionWindows(ms(5), grace=ms(3))
    counts = through(source(builder), "by-value").group_by_key().windowed_by(idle)
    final = counts.count(store="sessions").suppress(until_window_closes(), name="held")
    final.to_stream().to("out")


def sliding_windows(builder: StreamsBuilder, through: Through) -> None:
    near = SlidingWindows(ms(6), grace=ms(4))
    counts = through(source(builder), "by-value").group_by_key().windowed_by(near)
    counts.count(store="near").to_stream().to("out")


def sessions_behind_two_topics(builder: StreamsBuilder, through: Through) -> None:
    sessions(builder, lambda stream, _: through(through(stream, "first"), "second"))


def a_join_of_streams(builder: StreamsBuilder, through: Through, kind: str) -> None:
    left = through(source(builder), "left")
    right = through(source(builder, "other"), "right")
    within = JoinWindows(ms(6), grace=ms(4))
    joined = getattr(left, kind)(
        right, "{}+{}".format, windows=within, store="pairs", value=serdes.text
    )
    joined.to("out")


def inner_join(builder: StreamsBuilder, through: Through) -> None:
    a_join_of_streams(builder, through, "join")


def left_join(builder: StreamsBuilder, through: Through) -> None:
    a_join_of_streams(builder, through, "left_join")


def outer_join(builder: StreamsBuilder, through: Through) -> None:
    a_join_of_streams(builder, through, "outer_join")


def rows_with_a_time_to_live(builder: StreamsBuilder, through: Through) -> None:
    counts = through(source(builder), "by-value").group_by_key()
    kept = Materialized("counts", ttl=ms(8))
    counts.count(store=kept).to_stream().to("out")


def windows_of_two_topics(builder: StreamsBuilder, through: Through) -> None:
    both = through(source(builder), "first").merge(
        through(source(builder, "other"), "second")
    )
    windows = TimeWindows(ms(10), grace=ms(2))
    counts = both.group_by_key().windowed_by(windows).count(store="hours")
    counts.suppress(until_window_closes(), name="held").to_stream().to("out")


def a_cogroup_in_windows(builder: StreamsBuilder, through: Through) -> None:
    def added(_key: str, value: str, total: str) -> str:
        return total + value

    windows = SlidingWindows(ms(6), grace=ms(4))
    left = through(source(builder), "left").group_by_key()
    right = through(source(builder, "other"), "right").group_by_key()
    both = left.cogroup(added).cogroup(right, added).windowed_by(windows)
    texts = both.aggregate(str, value=serdes.text, store="texts")
    texts.to_stream().to("out")


PROGRAMS = (
    sessions,
    final_sessions,
    sliding_windows,
    sessions_behind_two_topics,
    inner_join,
    left_join,
    outer_join,
    rows_with_a_time_to_live,
    windows_of_two_topics,
    a_cogroup_in_windows,
)

Program = Callable[[StreamsBuilder, Through], None]
Outputs = dict[bytes | None, list[tuple[bytes | None, int]]]
Written = dict[TopicPartition, list[tuple[str, int]]]
"""The records of each source partition: their values and times."""
MOST = 4
"""The most partitions that are drawn."""

Row = tuple[str, int, int]
"""A key, the step of time to its birth, and by how much its own time is earlier."""
rows = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 6), st.integers(0, 9)),
    min_size=1,
    max_size=20,
)
partitions = st.lists(rows, min_size=1, max_size=MOST)


def built(program: Program, through: Through) -> Topology:
    builder = StreamsBuilder("app")
    program(builder, through)
    return builder.build()


def written_by(drawn: list[list[Row]], topics: list[str], latest: int) -> Written:
    """Return the records of the partitions of these topics. No two partitions have a
    birth in common, whose order would be that of arrival, and no two records are equal.
    `latest`: by how much a record may be late.
    """
    written: Written = {}
    for number, records in enumerate(drawn):
        where = TopicPartition(topics[number % len(topics)], number // len(topics))
        birth = number
        written[where] = []
        for at, (key, step, late) in enumerate(records):
            birth += MOST * step
            time = birth if step else max(0, birth - min(late, latest))
            written[where].append((f"{key}{at}.{number}", time))
    return written


def in_birth_order(written: Written) -> list[tuple[TopicPartition, tuple[str, int]]]:
    """Return the records that the clock reaches, in the order of their births, as those
    of one partition.
    """
    born = []
    for where, records in written.items():
        birth = -1
        for record in records:
            birth = max(birth, record[1])
            born.append((birth, where._replace(partition=0), record))
    clock = min(max(time for _, time in records) for records in written.values())
    born.sort(key=lambda record: record[0])
    return [(where, record) for birth, where, record in born if birth <= clock]


def outputs(
    topology: Topology,
    written: list[tuple[TopicPartition, tuple[str, int]]],
    counts: dict[str, int],
    ranges: int,
) -> Outputs:
    """Return what a topology writes, by key."""
    found: Outputs = defaultdict(list)
    partitions = {**counts, "out": 1}
    with TopologyTestDriver(topology, ranges=ranges, partitions=partitions) as driver:
        for where, (value, time) in written:
            source = driver.input(where.topic, serdes.text, serdes.text)
            source.send(value[:1], value, time, partition=where.partition)
        for record in driver.output("out", serdes.raw, serdes.raw).read():
            found[record.key].append((record.value, record.timestamp))
    return found


def some_as_they_are(*topics: str) -> Through:
    """Return the way in which streams with these names go past repartition topics."""

    def through(stream: Stream, name: str) -> Stream:
        return stream if name in topics else renamed(stream, name)

    return through


def matched(told: Outputs) -> Outputs:
    """Return what is told, without records that a join has found no match for."""
    rows = {
        key: [row for row in rows if b"None" not in (row[0] or b"")]
        for key, rows in told.items()
    }
    return {key: some for key, some in rows.items() if some}


def unmatched(told: Outputs) -> Counter[tuple[bytes | None, bytes | None, int]]:
    return Counter(
        (key, *row)
        for key, rows in told.items()
        for row in rows
        if b"None" in (row[0] or b"")
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_their_topics_are_timed(program: Program) -> None:
    parts = built(program, renamed).subtopologies
    topics = {topic for part in parts for topic in part.topics}
    internal = {topic for topic in topics if topic.endswith("-repartition")}
    assert timed_topics(parts) == internal


@settings(max_examples=25)
@pytest.mark.parametrize("program", PROGRAMS)
@given(partitions, st.lists(st.integers(0, 3), max_size=60), st.sampled_from([1, 2, 5]))
def test_the_answer_is_that_of_one_partition_in_the_order_of_births(
    program: Program, drawn: list[list[Row]], order: list[int], ranges: int
) -> None:
    topics = sorted(built(program, as_it_is).source_topics)
    # Behind a topic, what is open is known by births, not only by the records' times.
    alone = built(program, as_it_is if len(topics) > 1 else renamed)
    # Not later than the graces: then what is open by births is what Kafka Streams, which
    # goes by what was put, has not forgotten.
    written = written_by(drawn, topics, 3)
    left = [(where, deque(records)) for where, records in written.items()]
    turns = []
    for turn in [*order, *(p for p, (_, some) in enumerate(left) for _ in some)]:
        where, records = left[turn % len(left)]
        if records:
            turns.append((where, records.popleft()))
    count = -(-len(written) // len(topics))
    if count == 1 and len(topics) > 1:
        merged = (
            turns  # with one partition of each topic, records come as they are sent
        )
    elif count * len(topics) == len(written):
        merged = in_birth_order(written)
    else:
        merged = []  # a partition without records is not heard, and time waits for it
    expected = outputs(alone, merged, dict.fromkeys(topics, 1), 1)
    counts = dict.fromkeys(topics, count)
    found = outputs(built(program, renamed), turns, counts, ranges)
    # Kafka Streams, and a task alone, tell of some records without a match later.
    assert matched(found) == matched(expected)
    assert unmatched(found) >= unmatched(expected)
    assert all(times == 1 for times in unmatched(found).values())


OF_THE_USER = (
    (inner_join, "right"),
    (left_join, "right"),
    (left_join, "left"),
    (outer_join, "right"),
    (windows_of_two_topics, "second"),
    (windows_of_two_topics, "first"),
    (a_cogroup_in_windows, "right"),
)
"""Programs that read two topics, and the name of the stream that is read directly."""


@pytest.mark.parametrize(("program", "direct"), OF_THE_USER)
def test_a_topic_of_the_user_beside_a_timed_one_leaves_it_timed(
    program: Program, direct: str
) -> None:
    parts = built(program, some_as_they_are(direct)).subtopologies
    topics = {topic for part in parts for topic in part.topics}
    internal = {topic for topic in topics if topic.endswith("-repartition")}
    assert len(internal) == 1
    assert timed_topics(parts) == internal


def of_partition(told: Outputs, number: int, count: int) -> Outputs:
    """Return what is told of the keys of a partition. A windowed key begins with the
    key, which has one letter.
    """
    return {
        key: rows
        for key, rows in told.items()
        if partition_of((key or b"")[:1], count) == number
    }


@settings(max_examples=25)
@pytest.mark.parametrize(("program", "direct"), OF_THE_USER)
@given(
    st.lists(rows, min_size=2, max_size=MOST).filter(lambda each: len(each) != 3),
    st.lists(st.integers(0, 3), max_size=60),
    st.sampled_from([1, 2, 5]),
)
def test_a_topic_of_the_user_takes_part_in_the_order_of_births(
    program: Program,
    direct: str,
    drawn: list[list[Row]],
    order: list[int],
    ranges: int,
) -> None:
    """Each task reads one partition of it. So the answer for its keys is that of one
    partition with all records of the other topic, and those of this partition.
    """
    own = "in" if direct in ("left", "first") else "other"
    topics = ["in", "other"]
    alone = built(program, as_it_is)
    count = len(drawn) // 2
    written = written_by(drawn, topics, 3)
    for where, rows in written.items():
        if where.topic == own:  # its keys are not made anew
            letters = [
                letter
                for letter in "abcdef"
                if partition_of(letter.encode(), count) == where.partition
            ]
            written[where] = [
                (letters[ord(value[0]) % len(letters)] + value[1:], time)
                for value, time in rows
            ]
    left = [(where, deque(records)) for where, records in written.items()]
    turns = []
    for turn in [*order, *(p for p, (_, some) in enumerate(left) for _ in some)]:
        where, records = left[turn % len(left)]
        if records:
            turns.append((where, records.popleft()))
    found = outputs(
        built(program, some_as_they_are(direct)),
        turns,
        dict.fromkeys(topics, count),
        ranges,
    )
    for number in range(count):
        some = {
            where: rows
            for where, rows in written.items()
            if where.topic != own or where.partition == number
        }
        # With one partition of each topic, records come as they are sent.
        merged = turns if count == 1 else in_birth_order(some)
        every = outputs(alone, merged, dict.fromkeys(topics, 1), 1)
        expected = of_partition(every, number, count)
        here = of_partition(found, number, count)
        assert matched(here) == matched(expected)
        assert unmatched(here) >= unmatched(expected)
        assert all(times == 1 for times in unmatched(here).values())
