"""`count`: the number of records of a key."""

from typing import Any

from coopstreams.testing import Row, TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder


def counted(stream: Any) -> Any:
    return stream.group_by_key().count()


def test_each_record_is_an_update_of_its_keys_count(flow: Any) -> None:
    assert flow(counted, ("a", 1, 0), ("b", 1, 1), ("a", 1, 2)) == [
        ("a", 1, 0),
        ("b", 1, 1),
        ("a", 2, 2),
    ]


def test_the_timestamp_is_the_largest_of_the_records_counted(flow: Any) -> None:
    assert flow(counted, ("a", 1, 10), ("a", 1, 5), ("a", 1, 11)) == [
        ("a", 1, 10),
        ("a", 2, 10),
        ("a", 3, 11),
    ]


def test_records_without_key_or_value_do_not_count() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).group_by_key().count(
        store="counts"
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for key, value in [
            ("a", "x"),
            (None, "x"),
            ("a", None),
            ("b", ""),
            (None, None),
        ]:
            topic.send(key, value, 3)
        assert driver.store("counts").all() == [Row("a", 1, 3), Row("b", 1, 3)]
        assert sorted(
            (reason, count) for (_, reason), count in driver.dropped.items()
        ) == [
            ("null-key", 2),
            ("null-value", 1),
        ]


def test_with_the_record_cache_a_commit_forwards_the_latest_count(flow: Any) -> None:
    assert flow(counted, ("a", 1, 0), ("b", 1, 1), ("a", 1, 2), caching=True) == [
        ("a", 2, 2),
        ("b", 1, 1),
    ]


def test_counts_go_on_after_a_commit() -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).group_by_key().count(
        store="counts"
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build(), ranges=2, caching=True) as driver:
        for key in ("a", "a", "b"):
            driver.input("in", serdes.text, serdes.text).send(key, "x")
        driver.commit()
        driver.input("in", serdes.text, serdes.text).send("a", "x")
        assert driver.store("counts").get("a") == 3
        driver.commit()
        assert driver.output("out", serdes.text, serdes.int64).latest() == {
            "a": 3,
            "b": 1,
        }
        assert len(driver.outputs()) == 3
