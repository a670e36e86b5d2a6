"""An application with two sinks in PostgreSQL: each update of a count as a row, and the
last count of each key.
"""

import os

from coopstreams import PostgresSink, StreamsBuilder, serdes

DSN = os.environ["TEST_DSN"]

builder = StreamsBuilder(os.environ["TEST_APPLICATION"])
counts = (
    builder.stream(os.environ["TEST_INPUT"], key=serdes.text, value=serdes.int64)
    .group_by_key()
    .count(store="counts")
    .to_stream()
)
counts.to_sink(
    PostgresSink(
        DSN, "updates", columns=lambda key, value: {"name": key, "count": value}
    ),
    name="updates",
)
counts.to_sink(
    PostgresSink(DSN, "totals", key="name", columns=lambda _, value: {"count": value}),
    name="totals",
)
topology = builder.build()
