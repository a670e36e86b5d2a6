"""Native plans: Spark SQL folds the same rows as Python; other programs are left to
Python, with a reason.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coopstreams import StreamsBuilder, TimeWindows, Topology, field, serdes
from coopstreams.spark.native.sql_eligibility import Aggregation
from coopstreams.topology.errors import ProcessingError, SerdeError
from tests.durations import ms
from tests.spark.native_runs import (
    GOES_ON,
    GRACE,
    Row,
    aggregation_of,
    backfilled,
    both,
    flights,
    same_state,
    understood,
    was_native,
)


def counted_and_largest() -> Topology:
    """A count of all time, and the largest delay of each half second."""
    builder = StreamsBuilder("native")
    records = builder.stream("flights", key=serdes.text, value=serdes.json)
    records.group_by_key().count(store="flown").to_stream().to("flown")
    halves = (
        records.map_values(field("delay"), value=serdes.int64)
        .group_by_key()
        .windowed_by(TimeWindows(milliseconds=500, grace=GRACE))
    )
    halves.reduce(max, store="worst", value=serdes.json).to_stream().to("worst")
    return builder.build()


def counted_by_second_and_added() -> Topology:
    """A count of each second, kept for nine, and the sum and the smallest delay of all
    time.
    """
    builder = StreamsBuilder("native")
    records = builder.stream("flights", key=serdes.text, value=serdes.json)
    records.group_by_key().windowed_by(
        TimeWindows(milliseconds=1000, grace=GRACE)
    ).count(store="per-second", retention=ms(9000))
    delays = records.map_values(field("delay"), value=serdes.int64).group_by_key()
    delays.reduce(operator.add, store="total")
    delays.reduce(min, store="best")
    return builder.build()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("topology", "ranges"),
    [
        pytest.param(counted_and_largest(), 1, id="largest", marks=pytest.mark.slow),
        pytest.param(counted_by_second_and_added(), 3, id="added"),
    ],
)
def test_spark_folds_what_python_folds_row_for_row(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    topology: Topology,
    ranges: int,
) -> None:
    native, python = both(spark, topology, flights(ranges, 1500), tmp_path, ranges)
    assert GOES_ON not in caplog.text
    assert was_native(tmp_path)
    assert same_state(native, python)
    dropped = native.counts[1]
    assert sum(count for why, count in dropped.items() if why.endswith("late")) > 20
    assert sum(count for why, count in dropped.items() if why.endswith("null-key")) > 20


@pytest.mark.ci
def test_records_of_which_none_is_late_are_not_put_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = StreamsBuilder("native")
    delays = builder.stream("flights", key=serdes.text, value=serdes.json).map_values(
        field("delay"), value=serdes.int64
    )
    windows = TimeWindows(milliseconds=900, advance=ms(400), grace=GRACE)
    delays.group_by_key().windowed_by(windows).reduce(max, store="worst")
    in_order = sorted(flights(3, 300), key=lambda row: row[2])
    assert same_state(*both(spark, builder.build(), in_order, tmp_path, ranges=2))
    folded = list((tmp_path / "True" / "work" / "run-1" / "stage-0-native").iterdir())
    assert len(folded) == len({file.name.split("-")[0] for file in folded}) == 4


def per_window() -> Topology:
    builder = StreamsBuilder("native")
    records = builder.stream("records", key=serdes.text, value=serdes.raw)
    records.group_by_key().windowed_by(TimeWindows(milliseconds=100, grace=0)).count(
        store="counts"
    )
    return builder.build()


@pytest.mark.slow
def test_where_the_order_of_a_table_leaves_open_which_key_comes_first_the_same_records_are_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    generator, keys = random.Random(3), [b"key-%d" % number for number in range(5)]
    rows: list[Row] = [
        (key, b"", 50 * at + generator.randrange(200), 0)
        for at in range(80)
        for key in generator.sample(keys, len(keys))
    ]
    native, python = both(spark, per_window(), rows, tmp_path, ties=len(keys))
    assert was_native(tmp_path)
    assert same_state(native, python)
    assert sum(native.counts[1].values()) > 20


@pytest.mark.ci
@pytest.mark.parametrize(
    ("native", "partition"), [(True, 2), (True, None), (False, -1)]
)
def test_a_record_in_a_partition_that_the_topic_does_not_have_ends_the_run(
    spark: SparkSession, tmp_path: Path, native: bool, partition: Any
) -> None:
    rows: list[Row] = [(b"key", b"", 1, 0), (b"key", b"", 2, partition)]
    said = f"a record is in partition {'null' if partition is None else partition}, and the topic has 0 to 1"
    with pytest.raises(PySparkException, match=f'the history of "records": {said}'):
        backfilled(spark, per_window(), rows, tmp_path, ranges=2, native=native)


@pytest.mark.slow
def test_a_session_that_puts_rows_of_several_tasks_together_ends_the_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    setting = "spark.sql.requireAllClusterKeysForDistribution"
    spark.conf.set(setting, "true")
    try:
        with pytest.raises(
            PySparkException, match="a Spark partition must have one task"
        ):
            backfilled(
                spark,
                counted_and_largest(),
                flights(3, 300),
                tmp_path,
                ranges=2,
                native=True,
            )
    finally:
        spark.conf.unset(setting)


def folds(
    values: serdes.Serde[Any] = serdes.json, part: str | None = "delay"
) -> Aggregation:
    """Return the aggregation of a sum over values of a serde."""
    builder = StreamsBuilder("folds")
    records: Any = builder.stream("records", key=serdes.text, value=values)
    records = (
        records if part is None else records.map_values(field(part), value=serdes.int64)
    )
    records.group_by_key().reduce(operator.add, store="sum")
    return aggregation_of(builder.build())


def texts(generator: random.Random) -> Iterator[str]:
    """Yield JSON objects and similar texts."""
    numbers_ = [
        "0",
        "-0",
        "7",
        "-90",
        "007",
        "1.0",
        "1e3",
        "true",
        "null",
        '"5"',
        "9" * 18,
        "-" + "9" * 18,
        "9" * 19,
        "{}",
        "[1]",
        "+1",
        ".5",
        "NaN",
        "\u0665",
    ]
    names = ["delay", "Delay", "delay ", "other", "d\\u0065lay", "\u00fc", ""]
    others = [
        "1",
        "-1.25",
        '"x"',
        '"a,b}"',
        '"\\"delay\\":3"',
        '"\u20ac"',
        "[]",
        "null",
        '"delay"',
        "1e400",
        "true",
    ]
    for _ in range(3000):
        pairs = [
            f'"{generator.choice(names)}"{generator.choice([":", " : ", ""])}{generator.choice(others)}'
            for _ in range(generator.randrange(3))
        ]
        pairs += [
            f'"delay"{generator.choice([":", ": "])}{generator.choice(numbers_)}'
            for _ in range(generator.choice([0, 1, 1, 1, 1, 2]))
        ]
        generator.shuffle(pairs)
        text = (
            "{"
            + generator.choice([",", ", ", ",\n", ",,"]).join(pairs)
            + generator.choice(["}", "}", "}", " } ", "", "}}", ",}"])
        )
        yield generator.choice(
            [
                text,
                text,
                text,
                text.replace('"', "'"),
                text + "x",
                generator.choice(numbers_),
            ]
        )


@pytest.mark.parametrize("part", ["delay", None])
def test_a_number_that_sql_reads_is_the_one_that_python_reads(
    spark: SparkSession, part: str | None
) -> None:
    values = [text.encode() for text in texts(random.Random(8))]
    values += [
        b"",
        b" 5 ",
        b"\xff5",
        b'{"delay":5,"x":"\xff"}',
        b'{"delay":5,"x":"\xed\xa0\x80"}',
        b'{"delay":5}\n',
        b'{"delay":5,"x":"\x00"}',
    ]
    function: Callable[[Any], Any] = (
        field(part) if part is not None else lambda value: value
    )
    certain = 0
    for value, number in zip(
        values, understood(spark, folds(part=part), list(values)), strict=True
    ):
        if number is None:
            continue
        certain += 1
        read = function(serdes.json.deserialize(value))
        assert (type(read), read) == (int, number), value
    assert certain > 50


def test_integers_of_eight_bytes_are_read_and_others_are_in_doubt(
    spark: SparkSession,
) -> None:
    generator = random.Random(3)
    known = [
        0,
        1,
        -1,
        (1 << 63) - 1,
        1 - (1 << 63),
        *(generator.randrange(-(1 << 63) + 1, 1 << 63) for _ in range(200)),
    ]
    aggregation = folds(serdes.int64, None)
    assert (
        understood(
            spark, aggregation, [serdes.int64.encode(number) for number in known]
        )
        == known
    )
    assert (
        understood(
            spark,
            aggregation,
            [b"1234567", b"123456789", b"", serdes.int64.encode(-(1 << 63))],
        )
        == [None] * 4
    )


def test_a_field_of_a_dict_or_of_a_typed_value_with_or_without_a_key() -> None:
    assert field("delay")({"delay": 5}) == 5
    assert field("real")("key", 7) == 7
    with pytest.raises(KeyError, match="delay"):
        field("delay")({})


def totals(values: serdes.Serde[Any], part: str | None) -> Topology:
    builder = StreamsBuilder("native")
    records: Any = builder.stream("records", key=serdes.text, value=values)
    records = (
        records if part is None else records.map_values(field(part), value=serdes.json)
    )
    records.group_by_key().reduce(operator.add, store="total")
    return builder.build()


@pytest.mark.slow
def test_records_in_doubt_leave_the_stage_to_python(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[Row] = [
        (b"key-%d" % (at % 9), b'{"delay":%d}' % at, at, at % 2) for at in range(300)
    ]
    rows.append((b"key-1", b'{"delay":0.25}', 300, 0))
    native, python = both(spark, totals(serdes.json, "delay"), rows, tmp_path)
    assert (
        f"sub-topology 0 {GOES_ON}: SQL may treat 1 of its records differently"
        in caplog.text
    )
    assert same_state(native, python)


@pytest.mark.slow
def test_a_poison_record_and_a_sum_of_more_than_64_bits_fail_as_they_do_in_python(
    spark: SparkSession, tmp_path: Path
) -> None:
    missing: list[Row] = [(b"key", b'{"delay":1}', 1, 0), (b"key", b'{"late":1}', 2, 0)]
    with pytest.raises(
        ProcessingError,
        match=r'the record at "records" partition 0 offset 1 made a function raise',
    ):
        backfilled(
            spark,
            totals(serdes.json, "delay"),
            missing,
            tmp_path / "missing",
            ranges=1,
            native=True,
            partitions=1,
        )
    large: list[Row] = [
        (b"key", serdes.int64.encode(1 << 62), at, 0) for at in range(2)
    ]
    with pytest.raises(SerdeError, match='store "total"'):
        backfilled(
            spark,
            totals(serdes.int64, None),
            large,
            tmp_path / "large",
            ranges=1,
            native=True,
            partitions=1,
        )


@pytest.mark.slow
def test_what_comes_through_a_repartition_is_folded_and_what_leads_there_is_not(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = StreamsBuilder("native")
    rekeyed = builder.stream("flights", key=serdes.text, value=serdes.json).select_key(
        field("delay"), key=serdes.json
    )
    rekeyed.group_by_key().count(store="per-delay")
    topology = builder.build()
    native, python = both(spark, topology, flights(4, 800), tmp_path, ranges=2)
    assert GOES_ON not in caplog.text
    assert not was_native(tmp_path, 0)
    assert was_native(tmp_path, 1)
    assert same_state(native, python)
