"""A count behind a repartition, run by the command line: what one transaction writes to reaches five partitions and
more.
"""

import os

from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder(os.environ["TEST_APPLICATION"])
(
    builder.stream(os.environ["TEST_INPUT"], key=serdes.text, value=serdes.raw)
    .select_key(lambda key, _: key.partition(":")[0])
    .group_by_key(key=serdes.text, value=serdes.raw, name="names")
    .count(store="counts")
    .to_stream()
    .to(os.environ["TEST_OUTPUT"])
)
topology = builder.build()
