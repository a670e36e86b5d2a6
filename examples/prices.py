"""Orders are completed with prices from a network service, which is slow and sometimes
fails.

The requests of many orders run at a time, those of one customer in sequence. The sums
equal those of a program that waits for each answer in turn.

coopstreams dev PRICES_URL=http://127.0.0.1:8000 coopstreams run examples/prices.py
--bootstrap-servers localhost:9092
"""

import os
from datetime import timedelta
from typing import TypedDict

import httpx

from coopstreams import Retry, StreamsBuilder, serdes


class Order(TypedDict):
    """A customer's order."""

    article: str
    pieces: int


client = httpx.AsyncClient(
    base_url=os.environ.get("PRICES_URL", "http://127.0.0.1:8000"), timeout=5.0
)


async def cost_of(order: Order) -> float:
    """Request the price of one piece from the service."""
    answer = await client.get(f"/prices/{order['article']}")
    answer.raise_for_status()
    return float(answer.json()["price"]) * order["pieces"]


builder = StreamsBuilder("prices")
(
    builder.stream("orders", key=serdes.text, value=serdes.json(Order))
    .map_values_async(
        cost_of,
        value=serdes.json(float),
        max_in_flight=50,
        timeout=timedelta(seconds=10),
        retry=Retry(times=5, backoff=timedelta(milliseconds=20), on=(httpx.HTTPError,)),
    )
    .group_by_key()
    .aggregate(
        lambda: 0.0,
        lambda _, cost, total: total + cost,
        value=serdes.json(float),
        store="spent",
    )
    .to_stream()
    .to("spent")
)
topology = builder.build()
