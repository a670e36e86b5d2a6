"""Records per second of the test driver, one by one and in bulk: `python -m
benchmarks.driver [--records N]`.

Each program runs in this process, without a broker. Machines differ, and are noisy: the
best of three runs counts, and the CPU time of a record stands beside it.

    map       JSON -> map_values -> JSON
    count     a keyed count, every update an output
    window    a count for each key and minute behind a repartition topic (`group_by`)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from coopstreams import StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.testing import TopologyTestDriver

KEYS = 1000
RUNS = 3


def _map() -> Topology:
    builder = StreamsBuilder("bench-map")
    (
        builder.stream("in", key=serdes.text, value=serdes.json)
        .map_values(lambda value: {"n": value["n"] + 1}, value=serdes.json)
        .to("out")
    )
    return builder.build()


def _count() -> Topology:
    builder = StreamsBuilder("bench-count")
    (
        builder.stream("in", key=serdes.text, value=serdes.json)
        .group_by_key()
        .count(store="counts")
        .to_stream()
        .to("out")
    )
    return builder.build()


def _window() -> Topology:
    builder = StreamsBuilder("bench-window")
    (
        builder.stream("in", key=serdes.text, value=serdes.json)
        .group_by(lambda _, value: str(value["n"] % KEYS), key=serdes.text)
        .windowed_by(TimeWindows(timedelta(minutes=1)))
        .count(store="windows")
        .to_stream()
        .to("out")
    )
    return builder.build()


PROGRAMS: Mapping[str, Callable[[], Topology]] = {
    "map": _map,
    "count": _count,
    "window": _window,
}
Records = Sequence[tuple[Any, ...]]


def one_by_one(driver: TopologyTestDriver, records: Records) -> None:
    """Send each record by itself."""
    topic = driver.input("in")
    for record in records:
        topic.send(*record)


def bulk(driver: TopologyTestDriver, records: Records) -> None:
    """Send all records with one call."""
    driver.input("in").send_all(records)


Send = Callable[[TopologyTestDriver, Records], None]


def measured(topology: Topology, send: Send, records: Records) -> tuple[float, float]:
    """Return the seconds of one run by the clock, and those of CPU."""
    with TopologyTestDriver(topology) as driver:
        began = time.perf_counter()
        cpu_began = time.process_time()
        send(driver, records)
        return time.perf_counter() - began, time.process_time() - cpu_began


def best(topology: Topology, send: Send, records: Records) -> str:
    """Return the records per second of the best run, and the least CPU of a record, in
    words.
    """
    runs = [measured(topology, send, records) for _ in range(RUNS)]
    seconds = min(seconds for seconds, _ in runs)
    cpu = min(cpu for _, cpu in runs)
    count = len(records)
    return f"{count / seconds:>8,.0f}/s {cpu / count * 1e6:4.0f} µs CPU"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    count = parser.parse_args(arguments).records
    records = [(f"k{n % KEYS}", {"n": n}, n * 10) for n in range(count)]
    print(f"{'program':10}{'one by one':24}bulk")
    for name, build in PROGRAMS.items():
        topology = build()
        single = best(topology, one_by_one, records)
        print(f"{name:10}{single:24}{best(topology, bulk, records)}")


if __name__ == "__main__":
    main()
