"""The example with a schema registry: in the test driver the registry is in memory."""

from __future__ import annotations

from typing import Any

import pytest

from coopstreams import serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.schemas import IN_MEMORY, SchemaSerde
from tests.examples.loading import loaded


@pytest.mark.parametrize("ranges", [1, 4])
def test_merchants_are_paid_what_payments_say(ranges: int) -> None:
    with (
        loaded("payments") as example,
        TopologyTestDriver(example.topology, ranges) as driver,
    ):
        for number in range(40):
            currency = "EUR" if number % 4 else "USD"
            driver.input("payments").send(
                f"p{number}", example.Payment(f"m{number % 3}", number, currency)
            )
        euros = [number for number in range(40) if number % 4]
        expected = {
            f"m{merchant}": example.Paid(f"m{merchant}", len(mine), sum(mine))
            for merchant in range(3)
            for mine in [[number for number in euros if number % 3 == merchant]]
        }
        assert driver.output("paid").latest() == expected


def test_a_payment_of_a_newer_version_is_read_as_the_program_knows_it() -> None:
    with loaded("payments") as example, TopologyTestDriver(example.topology) as driver:
        fields = [
            *example.PAYMENT["fields"],
            {"name": "note", "type": "string", "default": ""},
        ]
        newer: Any = serdes.avro(example.PAYMENT | {"fields": fields})
        assert isinstance(newer, SchemaSerde)
        IN_MEMORY.register("payments-value", newer.codec.schema)
        data = newer.serialize(
            {"merchant": "m", "cents": 5, "currency": "EUR", "note": "new"}
        )
        driver.input("payments", key=serdes.text, value=serdes.raw).send("p", data)
        assert driver.output("paid").latest() == {"m": example.Paid("m", 1, 5)}
