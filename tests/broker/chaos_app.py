"""The application that the fault tests run in processes of their own; every update of every table is an output.

orders ──┬── count ──────────────────────────────────────────> counts
         └── join customers ── by city (repartition) ── count ─> cities
"""

import os

from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder(os.environ["TEST_APPLICATION"])
customers = builder.table(os.environ["TEST_CUSTOMERS"], key=serdes.text, value=serdes.text, store="customers")
orders = builder.stream(os.environ["TEST_ORDERS"], key=serdes.text, value=serdes.int64).filter(
    lambda _, number: number >= 0
)
orders.group_by_key().count(store="counts").to_stream().to(os.environ["TEST_COUNTS"])
(
    orders.join(customers, lambda _, city: city, value=serdes.text)
    .group_by(lambda _, city: city, key=serdes.text)
    .count(store="cities")
    .to_stream()
    .to(os.environ["TEST_CITIES"])
)
topology = builder.build()
