"""The application that the fault tests run in processes of their own: a running count
of each key, every update an output.
"""

import os

from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder(os.environ["TEST_APPLICATION"])
(
    builder.stream(os.environ["TEST_INPUT"], key=serdes.text, value=serdes.int64)
    .filter(lambda _, value: value is not None)
    .group_by_key()
    .count(store="counts")
    .to_stream()
    .to(os.environ["TEST_OUTPUT"])
)
topology = builder.build()
