from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.commit.offset_runs import normalise
from coopstreams.commit.record import (
    MOST_TIMES,
    PARTITIONS,
    Ahead,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    consumer_metadata,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    partition_of,
    topic_and_text,
    topic_number,
    topic_spec,
)
from coopstreams.topology.compile.operator_time import OperatorTimes
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import MAX_HASH, WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC

int32s = st.integers(-(2**31), 2**31 - 1)
hashes = st.integers(0, MAX_HASH)
ranges = st.tuples(hashes, hashes).map(lambda pair: KeyRange(min(pair), max(pair)))
keys = st.builds(
    CommitKey,
    st.text(max_size=20),
    st.text(max_size=200),
    int32s,
    ranges,
    int32s,
    int32s,
)


times = st.dictionaries(
    st.integers(1, MAX_HASH), st.integers(0, 2**62), max_size=3
).map(lambda known: tuple(sorted(known.items())))


def ahead_of(position: int) -> st.SearchStrategy[Ahead | None]:
    """Return what may be done above a position in the order of births."""
    return st.none() | st.builds(
        Ahead,
        st.integers(1, 2**40).map(lambda length: position + length),
        st.integers(-(2**62), 2**62),
        st.integers(0, 2**62),
    )


@st.composite
def values(draw: st.DrawFn) -> tuple[KeyRange, CommitValue]:
    key_range = draw(ranges)
    width = key_range.end - key_range.start
    cuts = (
        sorted(
            draw(st.sets(st.integers(key_range.start, key_range.end - 1), max_size=5))
        )
        if width
        else []
    )
    segments = []
    for start, end in zip(
        [key_range.start, *(cut + 1 for cut in cuts)],
        [*cuts, key_range.end],
        strict=True,
    ):
        position = draw(st.integers(0, 2**63 - 1))
        runs = normalise(
            (position + a, position + a + b)
            for a, b in draw(
                st.lists(
                    st.tuples(st.integers(0, 2**40), st.integers(0, 1000)), max_size=4
                )
            )
        )
        segments.append(
            Segment(
                KeyRange(start, end),
                position,
                draw(st.integers(-(2**62), 2**62)),
                runs,
                draw(times),
                draw(ahead_of(position)),
            )
        )
    return key_range, CommitValue(draw(st.text(max_size=30)), tuple(segments))


SOME_KEY = CommitKey("some-group", "some-topic", 3, KeyRange(10, 99), 4, 17)
SOME_VALUE = CommitValue(
    "app-0-1",
    (
        Segment(KeyRange(10, 49), 150, 1_700_000_000_000),
        Segment(KeyRange(50, 99), 130, -1, ((140, 149), (200, 200))),
    ),
)


@given(keys)
def test_a_key_comes_back_as_it_was_written(key: CommitKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(values())
def test_a_value_comes_back_as_it_was_written(
    written: tuple[KeyRange, CommitValue],
) -> None:
    key_range, value = written
    assert decode_value(encode_value(value), key_range) == value


def test_the_bytes_are_frozen() -> None:
    assert encode_key(SOME_KEY).hex() == (
        "010a736f6d652d67726f75700a736f6d652d746f70696300000003000000000000000a00000000000000630000000400000011"
    )
    assert encode_value(SOME_VALUE).hex() == (
        "01076170702d302d31020000000000000031960180a0abfef96200820101020a0a3201"
    )
    timed = replace(
        SOME_VALUE.segments[1], operator_times=((1 << 62, 1_700_000_000_000),)
    )
    assert encode_value(
        replace(SOME_VALUE, segments=(SOME_VALUE.segments[0], timed))
    ).hex() == (
        "02076170702d302d31020000000000000031960180a0abfef96200820101020a0a3201000001400000000000000080a0abfef962"
    )


@given(keys, st.data())
def test_a_key_cut_short_or_long_is_a_clear_error(
    key: CommitKey, data: st.DataObject
) -> None:
    raw = encode_key(key)
    cut = data.draw(st.integers(1, len(raw) - 1))
    for damaged in (raw[:cut], raw + b"x"):
        with pytest.raises(LogError, match=COMMIT_TOPIC):
            decode_key(damaged)


@given(values(), st.data())
def test_a_value_cut_short_or_long_is_a_clear_error(
    written: tuple[KeyRange, CommitValue], data: st.DataObject
) -> None:
    key_range, value = written
    raw = encode_value(value)
    cut = data.draw(st.integers(1, len(raw) - 1))
    for damaged in (raw[:cut], raw + b"x"):
        with pytest.raises(LogError, match=COMMIT_TOPIC):
            decode_value(damaged, key_range)


@given(st.binary(max_size=80), ranges)
def test_no_bytes_do_more_than_raise_that_error(
    raw: bytes, key_range: KeyRange
) -> None:
    for decode in (decode_key, lambda data: decode_value(data, key_range)):
        for data in (raw, b"\1" + raw):
            with suppress(LogError):
                decode(data)


def test_a_version_of_the_future_says_so() -> None:
    with pytest.raises(LogError, match=r"version 2, this coopstreams reads version 1"):
        decode_key(b"\2" + encode_key(SOME_KEY)[1:])
    with pytest.raises(
        LogError, match=r"version 4, this coopstreams reads versions 1 to 3"
    ):
        decode_value(b"\4" + encode_value(SOME_VALUE)[1:], SOME_KEY.key_range)


def test_a_hole_between_segments_is_not_written() -> None:
    with pytest.raises(ValueError, match="not neighbours"):
        encode_value(
            CommitValue("x", (Segment(KeyRange(0, 4), 1), Segment(KeyRange(6, 9), 2)))
        )


def test_runs_below_the_position_are_not_written() -> None:
    with pytest.raises(ValueError, match="in order above the position"):
        encode_value(CommitValue("x", (Segment(WHOLE, 10, runs=((8, 9),)),)))


def test_ten_thousand_runs_fit_into_one_record() -> None:
    runs = tuple((1_000_000 + 3 * i, 1_000_000 + 3 * i + 1) for i in range(10_000))
    value = CommitValue(
        "app-0-1", (Segment(WHOLE, 1_000_000, 1_700_000_000_000, runs),)
    )
    assert len(encode_value(value)) < 20_100
    assert (
        len(
            encode_value(
                CommitValue("app-0-1", (Segment(WHOLE, 1_000_000, 1_700_000_000_000),))
            )
        )
        <= 21
    )


@given(
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**62),
    st.integers(0, 2**31 - 1),
    st.integers(0, 9),
    times,
    st.text(max_size=30).map(topic_number),
    st.sampled_from(["", "\0"]),
)
def test_metadata_of_a_plain_offset_comes_back(
    offset: int,
    stream_time: int,
    term: int,
    beside: int,
    operator_times: OperatorTimes,
    topic: int,
    appended: str,
) -> None:
    committed = Committed(offset, stream_time, term, beside, operator_times, topic)
    assert Committed.parse(offset, committed.metadata + appended) == committed


@pytest.mark.parametrize(
    "metadata",
    [None, "", "\0", "ic", "ic 5", "ic five 5", "ic 5 6 7 8", "somebody else's"],
)
def test_metadata_of_others_makes_a_foreign_offset(metadata: str | None) -> None:
    assert Committed.parse(7, metadata) == Committed(7, -1, None)


@pytest.mark.parametrize(
    ("metadata", "streams"),
    [
        ("AgAAAaIft6SK", True),  # as Kafka Streams 4.3.1 has written it
        ("AgAAAaIft6SK\0", True),
        ("Av//////////", True),  # no stream time yet
        ("AQAAAaIft6SK", True),  # before Kafka Streams 3.0
        ("AgAAAaIft6SKAAAAAQ==", True),  # with what processors have stored
        ("AAAAAaIft6SK", False),
        ("AgAAAaIft6", False),
        ("ready", False),
        ("Av7/////////", False),
    ],
)
def test_offsets_of_kafka_streams_are_told_by_their_metadata(
    metadata: str, streams: bool
) -> None:
    committed = Committed.parse(7, metadata)
    assert (committed.offset, committed.term, committed.of_kafka_streams) == (
        7,
        None,
        streams,
    )


def test_a_plain_offset_names_its_topic_where_versions_that_know_no_topics_have_an_operator_time() -> (
    None
):
    topic = topic_number("GMDMTpr4SkqKmMeZCUjO0g")
    assert (
        Committed(7, -1, 3, topic=topic).metadata == "ic -1 3 0 0:3058588115524525430"
    )
    assert (
        Committed(7, 5, 3, 2, ((0xAB, 9),), topic).metadata
        == f"ic 5 3 2 ab:9 0:{topic}"
    )
    carried = Committed(7, 5, 3, 2, ((0, 99), (0xAB, 9)), topic)
    assert Committed.parse(7, carried.metadata) == Committed(
        7, 5, 3, 2, ((0xAB, 9),), topic
    )
    assert topic_number("") == 0


@given(st.text(max_size=20).filter(lambda text: "\0" not in text), st.text(max_size=20))
def test_the_metadata_of_a_consumers_commit_has_the_topic_and_the_users_text(
    topic_id: str, text: str
) -> None:
    assert topic_and_text(consumer_metadata(topic_id, text)) == (topic_id, text)
    assert topic_and_text(topic_id) == ("", topic_id), (
        "an earlier version's names no topic"
    )


def test_the_metadata_of_a_plain_offset_fits_into_what_brokers_take() -> None:
    many = tuple((MAX_HASH - number, 1 << 62) for number in range(1000))
    metadata = Committed(7, 1 << 62, 1 << 31, 1 << 31, many, (1 << 63) - 1).metadata
    assert len(metadata) < 4096
    assert Committed.parse(7, metadata).operator_times == many[:MOST_TIMES]


def test_a_group_always_has_the_same_partition() -> None:
    assert [
        partition_of(group, PARTITIONS)
        for group in ("", "word-count", "flights", "größe")
    ] == [39, 31, 40, 39]


def test_the_topic_is_compacted_in_segments_of_ten_mebibytes() -> None:
    spec = topic_spec()
    assert (
        spec.name,
        spec.partitions,
        spec.config["cleanup.policy"],
        spec.config["segment.bytes"],
    ) == (
        COMMIT_TOPIC,
        50,
        "compact",
        str(10 << 20),
    )
