"""`table`: the latest record of a key is its row."""

from coopstreams.testing import Row, TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.graph.topology import Topology


def table(store: str | None = "kept") -> Topology:
    builder = StreamsBuilder("app")
    builder.table(
        "rows", key=serdes.text, value=serdes.int64, store=store
    ).to_stream().to("out")
    return builder.build()


def test_the_latest_record_of_a_key_is_its_row_even_if_it_is_older() -> None:
    with TopologyTestDriver(table()) as driver:
        rows = driver.input("rows", serdes.text, serdes.int64)
        rows.send("b", 1, 10)
        rows.send("a", 2, 20)
        rows.send("b", 3, 5)
        assert driver.store("kept").all() == [Row("a", 2, 20), Row("b", 3, 5)]
        assert [
            (record.key, record.value, record.timestamp) for record in driver.outputs()
        ] == [
            ("b", 1, 10),
            ("a", 2, 20),
            ("b", 3, 5),
        ]


def test_a_null_value_deletes_the_row_and_is_forwarded_also_where_there_was_none() -> (
    None
):
    with TopologyTestDriver(table()) as driver:
        rows = driver.input("rows", serdes.text, serdes.int64)
        rows.send("a", None, 1)
        rows.send("a", 1, 2)
        rows.send("a", None, 3)
        assert driver.store("kept").get("a") is None
        assert [record.value for record in driver.outputs()] == [None, 1, None]


def test_records_without_a_key_are_dropped_and_counted() -> None:
    with TopologyTestDriver(table()) as driver:
        driver.input("rows", serdes.text, serdes.int64).send(None, 1)
        assert driver.outputs() == []
        assert [reason for _, reason in driver.dropped] == ["null-key"]


def test_a_table_without_a_store_forwards_all_the_same() -> None:
    with TopologyTestDriver(table(store=None), caching=True) as driver:
        driver.input("rows", serdes.text, serdes.int64).send("a", 1)
        assert driver.output("out", serdes.text, serdes.int64).latest() == {"a": 1}


def test_with_the_record_cache_a_commit_forwards_each_changed_row_once() -> None:
    with TopologyTestDriver(table(), caching=True) as driver:
        rows = driver.input("rows", serdes.text, serdes.int64)
        for value in (1, 2, 3):
            rows.send("a", value, value)
        rows.send("b", 1)
        rows.send("b", None)
        assert driver.outputs() == []
        driver.commit()
        assert [
            (record.key, record.value, record.timestamp) for record in driver.outputs()
        ] == [("a", 3, 3)]
        driver.commit()
        rows.send("a", None, 9)
        driver.commit()
        assert [(record.value, record.timestamp) for record in driver.outputs()] == [
            (3, 3),
            (None, 9),
        ]
