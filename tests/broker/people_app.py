"""The application of the tests of a reused source topic: a table as it is in its topic, and sums of its rows in
groups.
"""

import os
from typing import Any

from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder(os.environ["TEST_APPLICATION"])


def group_of(_: str, row: Any) -> tuple[str, int]:
    return row["group"], row["amount"]


people = builder.table(os.environ["TEST_INPUT"], key=serdes.text, value=serdes.json, store="people")
people.group_by(group_of, key=serdes.text, value=serdes.int64).reduce(
    lambda total, amount: total + amount, lambda total, amount: total - amount, store="sums"
).to_stream().to(os.environ["TEST_OUTPUT"])
topology = builder.build()
