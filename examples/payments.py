"""The payments to each merchant, from records in Avro; the sums are JSON with a schema.
Both schemas are in a registry.

coopstreams dev
export COOPSTREAMS_SCHEMA_REGISTRY_URL=http://127.0.0.1:8081
coopstreams run examples/payments.py --bootstrap-servers localhost:9092

Producers may add fields with defaults to PAYMENT at any time: a record of a newer
version is read as this one.
"""

from dataclasses import dataclass, replace

from coopstreams import StreamsBuilder, serdes

PAYMENT = {
    "type": "record",
    "name": "shop.Payment",
    "fields": [
        {"name": "merchant", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}


@dataclass
class Payment:
    """A record of PAYMENT, as an object."""

    merchant: str
    cents: int
    currency: str


@dataclass
class Paid:
    """The total payment to a merchant; its schema is made from this class."""

    merchant: str
    payments: int = 0
    cents: int = 0


def add(merchant: str, payment: Payment, paid: Paid) -> Paid:
    """Count a payment."""
    return replace(
        paid,
        merchant=merchant,
        payments=paid.payments + 1,
        cents=paid.cents + payment.cents,
    )


builder = StreamsBuilder("payments")
(
    builder.stream("payments", key=serdes.text, value=serdes.avro(PAYMENT, Payment))
    .filter(lambda _, payment: payment.currency == "EUR")
    .select_key(lambda _, payment: payment.merchant, key=serdes.text)
    .group_by_key()
    .aggregate(lambda: Paid(""), add, value=serdes.json_schema(Paid), store="paid")
    .to_stream()
    .to("paid")
)
topology = builder.build()
