"""The application that the fault tests run in processes of their own; every update of
every table is an output.

orders ──┬── count ──────────────────────────────────────────> counts
         └── join customers ── by city (repartition) ── count ─> cities

With `TEST_CALLS`, the address of a `slow_service`, each order is sent to it before it
is counted; and once more, with state: `told` has the number of each order and of the
one before it of the same key, "-" for the first.
"""

import os
from datetime import timedelta

from coopstreams import (
    CallContext,
    Record,
    Retry,
    StreamsBuilder,
    key_value_store,
    serdes,
)
from coopstreams.topology.calls import CallOptions
from tests.broker.slow_service import asked

SERVICE = os.environ.get("TEST_CALLS", "")
AGAIN = Retry(
    times=100, backoff=timedelta(milliseconds=20), longest=timedelta(seconds=1)
)
CALLS = CallOptions(timeout=timedelta(seconds=5), retry=AGAIN)


async def checked(number: int) -> int:
    """Return the number after a call of the service."""
    await asked(SERVICE, number)
    return number


async def followed(record: Record[str, int], context: CallContext[str, str]) -> None:
    """Forward an order with the number of the one before it of the same key, when its
    call has ended.
    """
    last = context.store("last")
    before = last.get()
    last.put(record.value)
    context.forward(
        record.with_value(f"{'-' if before is None else before} {record.value}")
    )
    await asked(SERVICE, record.value)


builder = StreamsBuilder(os.environ["TEST_APPLICATION"])
customers = builder.table(
    os.environ["TEST_CUSTOMERS"], key=serdes.text, value=serdes.text, store="customers"
)
orders = builder.stream(
    os.environ["TEST_ORDERS"], key=serdes.text, value=serdes.int64
).filter(lambda _, number: number >= 0)
if SERVICE:
    last = key_value_store("last", key=serdes.text, value=serdes.int64)
    orders.process_async(
        followed, stores=[last], key=serdes.text, value=serdes.text, **CALLS
    ).to(os.environ["TEST_TOLD"])
    orders = orders.map_values_async(checked, value=serdes.int64, **CALLS)
orders.group_by_key().count(store="counts").to_stream().to(os.environ["TEST_COUNTS"])
(
    orders.join(customers, lambda _, city: city, value=serdes.text)
    .group_by(lambda _, city: city, key=serdes.text)
    .count(store="cities")
    .to_stream()
    .to(os.environ["TEST_CITIES"])
)
topology = builder.build()
