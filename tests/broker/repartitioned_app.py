"""The application of `test_woken`: a count behind a repartition topic. Each record may
take a while there.
"""

import os
import time

from coopstreams import StreamsBuilder, serdes


def count(_: str, value: int, counted: int) -> int:
    """Add one, slowly."""
    time.sleep(float(os.environ["TEST_PAUSE_S"]))
    return counted + value


builder = StreamsBuilder(os.environ["TEST_APPLICATION"])
(
    builder.stream(os.environ["TEST_INPUT"], key=serdes.text, value=serdes.int64)
    .group_by(lambda key, _: key[-1:], key=serdes.text, name="last")
    .aggregate(lambda: 0, count, value=serdes.int64, store="counts")
)
topology = builder.build()
