"""CPU of stateless programs by expressions and by lambdas, without Kafka: `python -m
benchmarks.expressions [--records N] [--rounds N]`.

A compiled program processes batches of JSON values; its outputs are dropped. User and
system time of the process for each record: in pure Python and, where the extension
`coopstreams-native` is installed, natively, by turns. A third of the records passes the
filter.

    filter           a condition on two parts, and the same bytes as a result
    a number         the filter, and a calculated float
    a key            the filter, a text of the value as the key, and the same bytes
    a row            the filter, and a dict of four values
    a sum            the filter, and a sum by key of a calculated number
"""

from __future__ import annotations

import argparse
import operator
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.aggregates import SOURCE, cost_of
from benchmarks.report import planes
from coopstreams import KStream, StreamsBuilder, field, row, serdes, when
from coopstreams.topology.columns import Columns

BATCH, BATCHES = 10_000, 20
LARGE = (field("pieces") * field("price") > 30_000) & (field("country") == "DE")
TOTAL = field("pieces") * field("price") / 100
CENTS = field("pieces") * field("price")
SIZE = when(field("pieces") > 50, "large").otherwise("small")
ROW = row(user=field("user"), total=TOTAL, size=SIZE, city=field("city").upper())
Orders = KStream[str, Any]


def is_large(_: str, order: Any) -> bool:
    cents: int = order["pieces"] * order["price"]
    german: bool = order["country"] == "DE"
    return cents > 30_000 and german


def total(order: Any) -> float:
    value: float = order["pieces"] * order["price"] / 100
    return value


def as_row(order: Any) -> dict[str, Any]:
    return {
        "user": order["user"],
        "total": order["pieces"] * order["price"] / 100,
        "size": "large" if order["pieces"] > 50 else "small",
        "city": order["city"].upper(),
    }


def summed(cents: KStream[str, int]) -> None:
    cents.group_by_key().reduce(operator.add, store="cents")


CASES: dict[tuple[str, str], Callable[[Orders], Any]] = {
    ("filter", "expressions"): lambda orders: orders.filter(LARGE).to("out"),
    ("filter", "lambdas"): lambda orders: orders.filter(is_large).to("out"),
    ("a number", "expressions"): lambda orders: (
        orders.filter(LARGE).map_values(TOTAL, value=serdes.float64).to("out")
    ),
    ("a number", "lambdas"): lambda orders: (
        orders.filter(is_large).map_values(total, value=serdes.float64).to("out")
    ),
    ("a key", "expressions"): lambda orders: (
        orders.filter(LARGE).select_key(field("city"), key=serdes.text).to("out")
    ),
    ("a key", "lambdas"): lambda orders: (
        orders.filter(is_large)
        .select_key(lambda _, order: order["city"], key=serdes.text)
        .to("out")
    ),
    ("a row", "expressions"): lambda orders: (
        orders.filter(LARGE).map_values(ROW, value=serdes.json).to("out")
    ),
    ("a row", "lambdas"): lambda orders: (
        orders.filter(is_large).map_values(as_row, value=serdes.json).to("out")
    ),
    ("a sum", "expressions"): lambda orders: summed(
        orders.filter(LARGE).map_values(CENTS, value=serdes.int64)
    ),
    ("a sum", "lambdas"): lambda orders: summed(
        orders.filter(is_large).map_values(
            lambda order: order["pieces"] * order["price"], value=serdes.int64
        )
    ),
}


def batches(records: int) -> Iterator[Columns]:
    """Yield the input: about 110 bytes of JSON each."""
    generator = random.Random(7)
    for first in range(0, records, BATCH):
        numbers = range(first, min(first + BATCH, records))
        users = [generator.randrange(10_000) for _ in numbers]
        times = [1_700_000_000_000 + number // 20 for number in numbers]
        values = [
            b'{"user":"u%d","country":"%s","city":"Dresden","pieces":%d,"price":%d,"note":"by post","n":%d}'
            % (
                user,
                generator.choice([b"DE", b"DE", b"FR"]),
                generator.randrange(1, 100),
                generator.randrange(1, 2_000),
                number,
            )
            for user, number in zip(users, numbers, strict=True)
        ]
        keys: list[bytes | None] = [b"u%d" % user for user in users]
        yield Columns(keys, values, times, list(numbers), times)


def timed(
    flow: Callable[[Orders], Any], records: int, folder: Path, *, native: bool
) -> float:
    """Return nanoseconds of CPU for a record."""
    builder = StreamsBuilder("bench")
    flow(builder.stream(SOURCE.topic, key=serdes.text, value=serdes.json))
    cost = cost_of(
        builder.build(),
        ([(SOURCE, columns)] for columns in batches(records)),
        folder,
        native=native,
        commit_each=BATCHES,
    )
    return statistics.fmean(cost.processing) * 1e9 / BATCH


def main() -> None:
    """Measure every case on both planes, by turns, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    shown = Table("case", "by", "plane", "ns of CPU a record")
    for (case, by), flow in CASES.items():
        found: dict[str, list[float]] = {plane: [] for plane in planes()}
        for _ in range(arguments.rounds):
            for plane, times in found.items():
                with tempfile.TemporaryDirectory() as folder:
                    took = timed(
                        flow,
                        arguments.records,
                        Path(folder),
                        native=plane == "native",
                    )
                times.append(took)
        for plane, times in found.items():
            shown.add_row(case, by, plane, f"{statistics.median(times):,.0f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
