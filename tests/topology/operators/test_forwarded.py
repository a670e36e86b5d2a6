"""What a processor forwards must be a record that Kafka can have."""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import (
    CallContext,
    Processor,
    Record,
    StreamsBuilder,
    key_value_store,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.errors import ProcessingError

COUNTS = key_value_store("counts", key=serdes.text, value=serdes.int64)


@pytest.mark.parametrize(
    ("timestamp", "headers", "says"),
    [
        (1.5, [], r"a timestamp is a whole number of milliseconds, not 1\.5"),
        (
            1,
            [("n", 5)],
            r"headers are a list of names and bytes, .* not \[\('n', 5\)\]",
        ),
        (1, [("n",)], "headers are a list"),
        (1, {"n": b"5"}, "headers are a list"),
        (1 << 63, [], "a timestamp has 63 bits at most"),
        (1, [("\ud800", b"5")], "a header is UTF-8, and its name has no NUL character"),
        (1, [("n", "\udfff")], "a header is UTF-8"),
        (1, [("n\0m", b"5")], "a header is UTF-8"),
    ],
)
def test_what_kafka_cannot_have_fails_the_record_that_forwards_it(
    timestamp: Any, headers: Any, says: str
) -> None:
    """The client would refuse it later, without a word of node and record, whatever the
    handlers say; or crash.
    """
    made = Record("a", 1, timestamp, headers)

    class Wrong(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            self.context.forward(made)

    def wrong(record: Record[str, int], context: CallContext[str, int]) -> None:
        context.forward(made)

    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    stream.process(
        Wrong, key=serdes.text, value=serdes.int64, by_key=True, name="wrong"
    ).to("out")
    asked = builder.stream("asked", key=serdes.text, value=serdes.int64)
    asked.process_async(
        wrong, stores=[COUNTS], key=serdes.text, value=serdes.int64, name="wrong-too"
    ).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(
            ProcessingError,
            match=f'"in" partition 0 offset 0 made .* wrong: TypeError: {says}',
        ):
            driver.input("in").send("a", 1)
        with pytest.raises(
            ProcessingError,
            match=f'"asked" partition 0 offset 0 made .* wrong-too: TypeError: {says}',
        ):
            driver.input("asked").send("a", 1)
