"""Headers go with a record to whatever comes of it."""

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.builder import StreamsBuilder


def test_headers_go_with_a_record_through_every_operator_and_topic() -> None:
    builder = StreamsBuilder("app")
    lines = builder.stream("lines", key=serdes.text, value=serdes.text)
    words = lines.flat_map_values(str.split, value=serdes.text)
    words.to("words")
    words.group_by(lambda _, word: word, key=serdes.text).count(store="counts").to_stream().to("counts")
    with TopologyTestDriver(builder.build(), ranges=2) as driver:
        topic = driver.input("lines", serdes.text, serdes.text)
        topic.send("k", "a b", 1, [("trace", b"1"), ("trace", None)])
        topic.send("k", "a", 2)
        topic.send("k", "b", 3, [("trace", b"3")])
        got = [(record.topic, record.value, record.headers) for record in driver.outputs()]
    first, third = [("trace", b"1"), ("trace", None)], [("trace", b"3")]
    assert got == [
        ("words", "a", first),
        ("words", "b", first),
        ("counts", 1, first),
        ("counts", 1, first),
        ("words", "a", []),
        ("counts", 2, []),
        ("words", "b", third),
        ("counts", 2, third),
    ]
