"""The measured topologies in Faust: `faust_app.py CASE`."""

import os
import sys

import faust

name = sys.argv.pop(1)
app = faust.App(
    os.environ["BENCH_APPLICATION"],
    broker=f"kafka://{os.environ['BENCH_BROKERS']}",
    store="rocksdb://?driver=rocksdict",
    datadir=os.environ["BENCH_STATE"],
    topic_partitions=1,
    broker_commit_interval=1.0,
    web_enabled=False,
    consumer_auto_offset_reset="earliest",
)
source = app.topic(
    os.environ["BENCH_SOURCE"],
    key_type=str,
    key_serializer="raw",
    value_serializer="json",
)
sink = app.topic(
    os.environ["BENCH_SINK"],
    key_type=str,
    key_serializer="raw",
    value_serializer="json",
)

if name.startswith("stateless"):

    @app.agent(source)
    async def double(payments):
        """Forward large payments, doubled."""
        async for key, value in payments.items():
            if value["amount"] > 20:
                await sink.send(
                    key=key,
                    value={"user": value["user"], "doubled": value["amount"] * 2},
                )
else:
    counts = app.Table("counts", default=int, partitions=1)

    @app.agent(source)
    async def count(payments):
        """Count the payments of each key."""
        async for key, _ in payments.items():  # noqa: PERF102 (a stream, not a dict)
            counts[key] += 1
            await sink.send(key=key, value=counts[key])


sys.argv += ["worker", "--loglevel", "error", "--without-web"]
app.main()
