"""Windows behind a repartition topic, with real processes on one real broker: `python -m
benchmarks.time_behind_topics [--records N] [--only NAME]`.

Records of 20 hours, counted by a new key in windows of an hour without grace. What a
window should hold is a fold over the source partitions. Machines differ, and are noisy.

    too many     records that windows hold beyond the fold: wrong at any time
    missing      records that windows lack: wrong, or not yet counted when time was up
    uncounted    records that no window holds, and how many the fold leaves out
    seconds      from the start of the processes until the windows are right
    records/s    from the first committed count on
    marks        records without a key in the repartition topic, a second

The cases `jvm` are the same program and records in Kafka Streams with its defaults, if
`python -m benchmarks.peers` has installed it. It is waited for until it has no lag.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from benchmarks.peers import HERE, JVM
from benchmarks.running import lag
from coopstreams.common.java import find_java
from coopstreams.dev.broker import KafkaBroker
from tests.broker.processes import Workers
from tests.broker.reading import read_topic
from tests.broker.test_time_behind_topics import backlog, expected, told, write
from tests.conftest import Kafka

_APP = Path(__file__).parents[1] / "tests/broker/windowed_app.py"
_WRITTEN = 50_000
"""Records at once: the queue of a producer is limited."""
LIMIT_S = 90.0
KILLS = 3
CLEANED = {"log.cleaner.backoff.ms": "1000"}
"""Brokers delete by retention once a second: a changelog that has one loses windows."""
EXACTLY_ONCE = "exactly_once_v2"


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `kills`: how many times a process is killed; `scale`: its records, as a
    multiple of those asked for; `jvm`: whether Kafka Streams runs it.
    """

    name: str
    partitions: int = 2
    processes: int = 3
    threads: int = 2
    ranges: int = 3
    kills: int = 0
    out_of_order: float = 0.0
    guarantee: str = EXACTLY_ONCE
    scale: int = 1
    jvm: bool = False


CASES = (
    Case("plain"),
    Case("killed", kills=KILLS),
    Case("late", out_of_order=0.05),
    Case("fast-1", 1, 1, ranges=4, scale=10),
    Case("fast-2", 1, 2, ranges=4, scale=10),
    Case("one", 1),
    Case("four", 4),
    Case("at-least-once", guarantee="at_least_once"),
    Case("fast-4", 1, 4, ranges=4, scale=10),
    Case("alone", processes=1, threads=1, ranges=1),
    Case("jvm", processes=1, threads=1, jvm=True),
    Case("jvm-3", jvm=True),
)


def written(
    kafka: Kafka, case: Case, records: int
) -> tuple[str, str, list[list[tuple[str, str, int]]]]:
    """Write the input of a case; return its topic, one for the output, and the rows."""
    source = kafka.topic("payments", case.partitions, **{"retention.ms": "-1"})
    out = kafka.topic("out", 1, **{"retention.ms": "-1"})
    rows = backlog(1, case.partitions, records * case.scale, case.out_of_order)
    for begin in range(0, len(rows[0]), _WRITTEN):
        write(kafka, source, [some[begin : begin + _WRITTEN] for some in rows])
    return source, out, rows


def measure(kafka: Kafka, folder: Path, case: Case, records: int) -> str:
    """Run a case on topics of its own; return its line of the table."""
    source, out, rows = written(kafka, case, records)
    want = expected(rows)
    application = kafka.unique("hours")
    workers = Workers(
        _APP,
        kafka.bootstrap,
        folder,
        {
            "TEST_APPLICATION": application,
            "TEST_INPUT": source,
            "TEST_OUTPUT": out,
        },
        {
            "ranges.per.partition": str(case.ranges),
            "num.stream.threads": str(case.threads),
            "processing.guarantee": case.guarantee,
        },
    )
    folder.mkdir()
    began = time.perf_counter()
    first: tuple[float, int] | None = None
    killed = 0
    try:
        for number in range(case.processes):
            workers.start(number)
        while True:
            found = told(kafka, out)
            now = time.perf_counter()
            counted = found.total()
            if first is None and counted:
                first = (now, counted)
            if found == want and killed == case.kills:
                break
            if now - began > LIMIT_S:
                break
            if first and killed < case.kills:
                number = killed % case.processes
                workers.kill(number)
                workers.start(number)
                killed += 1
                time.sleep(1.0)
            time.sleep(0.05)
    finally:
        workers.clean_up()
    over = (found - want).total()
    short = (want - found).total()
    right = sum(found[window] == want[window] for window in want)
    total = sum(map(len, rows))
    rate = (counted - first[1]) / (now - first[0]) if first and now > first[0] else 0.0
    marks = _marks(kafka, application)
    return (
        f"{case.name:14} {total:8,} records {right}/{len(want)} right, "
        f"{over} too many, {short} missing; uncounted {total - counted} of {total - want.total()}; "
        f"{killed} kills; {now - began:.1f} s; {rate:,.0f} records/s; "
        f"{marks / (now - began):.1f} marks/s"
    )


def measure_jvm(kafka: Kafka, folder: Path, case: Case, records: int) -> str:
    """Run a case in Kafka Streams until it has no lag; return its line of the table."""
    source, out, rows = written(kafka, case, records)
    application = kafka.unique("hours")
    command = [
        *(str(find_java().executable), "-cp", f"{JVM.folder}/jars/*"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        str(HERE / "Hours.java"),
    ]
    environment = {
        "BENCH_BROKERS": kafka.bootstrap,
        "BENCH_APPLICATION": application,
        "BENCH_SOURCE": source,
        "BENCH_SINK": out,
        "BENCH_THREADS": str(case.threads),
    }
    began = time.perf_counter()
    running = [
        subprocess.Popen(
            command,
            env=os.environ | environment | {"BENCH_STATE": f"{folder}-{number}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(case.processes)
    ]
    try:
        while time.perf_counter() - began < LIMIT_S:
            time.sleep(1.0)
            topics = [source, *_repartition(kafka, application)]
            if len(topics) > 1 and lag(kafka.bootstrap, application, topics) == 0:
                break
        seconds = time.perf_counter() - began
    finally:
        for one in running:
            one.terminate()
        said = [one.communicate()[0] for one in running]
    want = expected(rows)
    found = told(kafka, out)
    right = sum(found[window] == want[window] for window in want)
    total = sum(map(len, rows))
    return (
        f"{case.name:14} {total:8,} records {right}/{len(want)} right, "
        f"{(found - want).total()} too many, {(want - found).total()} missing; "
        f"uncounted {total - found.total()} of {total - want.total()}; "
        f"dropped by its metric {sum(map(int, said))}; {seconds:.1f} s"
    )


def _repartition(kafka: Kafka, application: str) -> list[str]:
    names = [name for name in kafka.topics() if name.startswith(application)]
    return [name for name in names if name.endswith("repartition")]


def _marks(kafka: Kafka, application: str) -> int:
    return sum(
        record.key is None
        for name in _repartition(kafka, application)
        for record in read_topic(kafka.bootstrap, name)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each case once, and print its line at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument(
        "--only", action="append", choices=[case.name for case in CASES]
    )
    asked = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as name,
        KafkaBroker(Path(name) / "kafka", settings=CLEANED) as broker,
    ):
        folder = Path(name)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        kafka = Kafka(broker.bootstrap, admin)
        for case in CASES:
            if asked.only and case.name not in asked.only:
                continue
            if case.jvm and not JVM.installed:
                print(f"{case.name} is left out: `python -m benchmarks.peers`")
                continue
            run = measure_jvm if case.jvm else measure
            print(run(kafka, folder / case.name, case, asked.records), flush=True)


if __name__ == "__main__":
    main()
