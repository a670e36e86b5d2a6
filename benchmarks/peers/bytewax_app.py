"""The measured topologies in Bytewax: `bytewax_app.py CASE`. It commits no offsets, so
its outputs are counted.
"""

import os
import sys

import orjson
from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from bytewax.run import cli_main

name, brokers = sys.argv[1], [os.environ["BENCH_BROKERS"]]
flow = Dataflow("bench")
payments = kafka.input(
    "payments",
    flow,
    brokers=brokers,
    topics=[os.environ["BENCH_SOURCE"]],
    batch_size=1_000,
).oks


def doubled(message: KafkaSourceMessage) -> KafkaSinkMessage | None:
    """Return a large payment, doubled."""
    value = orjson.loads(message.value)
    if value["amount"] <= 20:
        return None
    return KafkaSinkMessage(
        message.key,
        orjson.dumps({"user": value["user"], "doubled": value["amount"] * 2}),
    )


def counted(count: int | None, _: KafkaSourceMessage) -> tuple[int, int]:
    """Return the state and the output: the number of payments of this key."""
    new = (count or 0) + 1
    return new, new


if name.startswith("stateless"):
    results = op.filter_map("double", payments, doubled)
else:
    keyed = op.key_on("key", payments, lambda message: message.key.decode())
    counts = op.stateful_map("count", keyed, counted)
    results = op.map(
        "out",
        counts,
        lambda pair: KafkaSinkMessage(pair[0].encode(), pair[1].to_bytes(8, "big")),
    )
kafka.output("out", results, brokers=brokers, topic=os.environ["BENCH_SINK"])
cli_main(flow)
