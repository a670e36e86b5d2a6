"""The topologies that are measured. Input: about 48 bytes of JSON, 100 000 keys."""

import os

from coopstreams import StreamsBuilder, serdes

NAME = os.environ.get("BENCH_APPLICATION", "bench")
SOURCE, SINK = os.environ.get("BENCH_SOURCE", "bench-in"), os.environ.get("BENCH_SINK", "bench-out")

_count = StreamsBuilder(NAME)
_count.stream(SOURCE, key=serdes.text, value=serdes.json).group_by_key().count(store="counts").to_stream().to(SINK)
count = _count.build()

_stateless = StreamsBuilder(NAME)
(
    _stateless.stream(SOURCE, key=serdes.text, value=serdes.json)
    .filter(lambda _, value: value["amount"] > 20)
    .map_values(lambda value: {"user": value["user"], "doubled": value["amount"] * 2}, value=serdes.json)
    .to(SINK)
)
stateless = _stateless.build()
