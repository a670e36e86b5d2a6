"""The measured topologies in Quix Streams: `quix_app.py CASE`."""

import os
import sys
from typing import Any

from quixstreams import Application, State

name = sys.argv[1]
exactly_once = name.endswith("exactly-once")
app = Application(
    broker_address=os.environ["BENCH_BROKERS"],
    consumer_group=os.environ["BENCH_APPLICATION"],
    state_dir=os.environ["BENCH_STATE"],
    auto_offset_reset="earliest",
    commit_interval=0.1 if exactly_once else 1.0,
    processing_guarantee="exactly-once" if exactly_once else "at-least-once",
    loglevel="ERROR",
)
payments = app.dataframe(
    app.topic(
        os.environ["BENCH_SOURCE"], key_deserializer="str", value_deserializer="json"
    )
)


def counted(_: dict[str, Any], state: State) -> int:
    """Return the number of payments of this key."""
    count = state.get("count", 0) + 1
    state.set("count", count)
    return count


if name.startswith("stateless"):
    kept = payments.filter(lambda value: value["amount"] > 20)
    results = kept.apply(
        lambda value: {"user": value["user"], "doubled": value["amount"] * 2}
    )
elif name.startswith("count"):
    results = payments.apply(counted, stateful=True)
else:
    results = (
        payments.apply(lambda value: value["amount"])
        .tumbling_window(60_000)
        .sum()
        .current()
    )
results.to_topic(
    app.topic(os.environ["BENCH_SINK"], key_serializer="str", value_serializer="json")
)
app.run()
