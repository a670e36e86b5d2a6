"""Two helpers of the guide's examples: a first stream, and the outputs of a program for
some records.
"""

from coopstreams import KStream, StreamsBuilder, serdes
from coopstreams.testing import TopologyTestDriver


def text_stream(
    name: str, topic: str = "in"
) -> tuple[StreamsBuilder, KStream[str, int]]:
    """Return a builder, and a stream of texts and numbers that it reads from a topic."""
    new = StreamsBuilder(name)
    return new, new.stream(topic, key=serdes.text, value=serdes.int64)


def outputs_of(
    new: StreamsBuilder,
    *records: tuple[str, str | None, int | None, int],
    ranges: int = 1,
) -> list[tuple[str, object]]:
    """Send (topic, key, value, timestamp) to the topics of a program; return the keys
    and values of all outputs.
    """
    with TopologyTestDriver(new.build(), ranges=ranges) as driver:
        for topic, key, value, timestamp in records:
            driver.input(topic).send(key, value, timestamp)
        return [(str(record.key), record.value) for record in driver.outputs()]
