"""The application that the fault tests run in processes of their own; every update of every table is an output.

orders ──┬── count ──────────────────────────────────────────> counts
         └── join customers ── by city (repartition) ── count ─> cities

With `TEST_CALLS`, each order first goes through a service that is slow, fails now and then, and sometimes is stuck.
"""

import asyncio
import os
import random
from datetime import timedelta

from coopstreams import Retry, StreamsBuilder, serdes


async def checked(number: int) -> int:
    """Return the number after a while: some milliseconds, rarely seconds, at the second attempt or the first."""
    await asyncio.sleep(random.expovariate(100) if random.random() < 0.999 else 3.0)
    if random.random() < 0.05:
        raise ConnectionError("the service is restarting")
    return number


builder = StreamsBuilder(os.environ["TEST_APPLICATION"])
customers = builder.table(os.environ["TEST_CUSTOMERS"], key=serdes.text, value=serdes.text, store="customers")
orders = builder.stream(os.environ["TEST_ORDERS"], key=serdes.text, value=serdes.int64).filter(
    lambda _, number: number >= 0
)
if "TEST_CALLS" in os.environ:
    orders = orders.map_values_async(
        checked, value=serdes.int64, retry=Retry(times=20, backoff=timedelta(milliseconds=20), on=(ConnectionError,))
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
