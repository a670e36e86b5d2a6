"""The sales of a shop by country and hour: the program that the pages of the guide look
at.
"""

from dataclasses import dataclass
from datetime import timedelta

from coopstreams import StreamsBuilder, TimeWindows, serdes


@dataclass(frozen=True)
class Order:
    customer: str
    amount: float
    time_ms: int


@dataclass(frozen=True)
class Customer:
    name: str
    country: str


builder = StreamsBuilder(
    "shop"
)  # the application id: consumer group, and prefix of internal topics
orders = builder.stream(
    "orders",
    key=serdes.text,
    value=serdes.json(Order),
    timestamp=lambda record: (
        record.value.time_ms if record.value else None
    ),  # without a value it is dropped
)
customers = builder.table(
    "customers", key=serdes.text, value=serdes.json(Customer), store="customers"
)

(
    orders.filter(lambda _, order: order.amount > 0)
    .select_key(lambda _, order: order.customer, key=serdes.text)
    .join(
        customers,
        lambda order, customer: (customer.country, order.amount),
        value=serdes.json(tuple[str, float]),
    )
    .group_by(lambda _, sale: sale[0], key=serdes.text)
    .windowed_by(TimeWindows(hours=1, grace=timedelta(minutes=5)))
    .aggregate(
        float,
        lambda _, sale, total: total + sale[1],
        value=serdes.float64,
        store="sales",
    )
    .to_stream()
    .to("sales-by-country")
)
topology = builder.build()
