"""Records per second of one process, next to a bare loop with the same parts: `python -m benchmarks [--records N]`.

Each case runs in a process of its own, on a fresh group, against one real broker on this machine. Compare the ratios
within one run: machines differ, and are noisy. Where the extension `coopstreams-native` is installed, each case runs in
pure Python and natively, by turns.

    stateless        JSON -> filter -> map -> JSON
    count            a keyed count with changelog, record cache on (updates go out once a commit)
    count uncached   the same, every update an output
    bare loop        consume -> dict -> changelog and output and RocksDB at each commit, by hand, without a framework
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from rich.console import Console
from rich.table import Table

from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.native import SETTING, data_plane

KEYS = 100_000
BARE = "bare loop"
PLANES = {"pure": "0", "native": "1"}
"""The data planes, and what chooses them."""
HERE = Path(__file__).parent


def planes() -> list[str]:
    """Return the data planes that can run here."""
    return ["pure", "native"] if data_plane() == "native" else ["pure"]


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write the input."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        }
    )
    generator = random.Random(7)
    for number in range(records):
        user = generator.randrange(KEYS)
        producer.produce(
            topic, b'{"user":"u%d","amount":%d,"n":%d}' % (user, generator.randrange(100), number), b"u%d" % user
        )
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def committed(admin: KafkaAdminClient, group: str, topic: str) -> int:
    """Return the committed offset of a group, 0 before its first commit."""
    try:
        offsets = admin.list_group_offsets(group)[group]
    except KafkaError:  # the group does not exist yet
        return 0
    return max((found.offset for partition, found in offsets.items() if partition.topic == topic), default=0)


def measure(
    admin: KafkaAdminClient, source: str, command: list[str], group: str, records: int, environment: dict[str, str]
) -> tuple[float, float]:
    """Run a process until it has committed everything; return records/s from its first commit on, and its CPU seconds
    per million records.
    """
    before = os.times()
    worker = subprocess.Popen(command, env=os.environ | environment)
    first: tuple[float, int] | None = None
    try:
        while True:
            at, now = committed(admin, group, source), time.perf_counter()
            if first is None and at > 0:
                first = (now, at)
            if at >= records:
                break
            if worker.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with status {worker.returncode}")
            time.sleep(0.02)
        assert first is not None
        rate = (at - first[1]) / (now - first[0]) if at > first[1] else float("nan")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    after = os.times()
    cpu = (
        (after.children_user - before.children_user + after.children_system - before.children_system)
        * 1_000_000
        / records
    )
    return rate, cpu


def main() -> None:
    """Measure every case once and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--planes", nargs="+", choices=PLANES, default=planes(), help="data planes, by turns")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        offsets = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        source = "bench-in"
        admin.create_topics([NewTopic(source, 1, 1)])[source].result()
        with console.status(f"writing {arguments.records:,} records"):
            fill(broker.bootstrap, source, arguments.records)
        table = Table(title=f"{arguments.records:,} records, one process")
        for column in ("case", "data plane", "records/s", "CPU s per million"):
            table.add_column(column, justify="right")
        for round_ in range(arguments.rounds):
            for (name, command, settings), plane in product(cases(broker.bootstrap, folder), arguments.planes):
                if arguments.only not in name or (name == BARE and plane != arguments.planes[0]):
                    continue
                group = f"{name.replace(' ', '-')}-{plane}-{round_}"
                sink = f"{group}-out"
                admin.create_topics([NewTopic(sink, 1, 1)])[sink].result()
                own = {"BENCH_APPLICATION": group, "BENCH_SOURCE": source, "BENCH_SINK": sink, SETTING: PLANES[plane]}
                with console.status(f"{name}, {plane}"):
                    rate, cpu = measure(offsets, source, [*command, *settings], group, arguments.records, own)
                table.add_row(name, "" if name == BARE else plane, f"{rate:,.0f}", f"{cpu:.2f}")
        console.print(table)


def cases(bootstrap: str, folder: str) -> list[tuple[str, list[str], list[str]]]:
    """Return name, command and flags of each case."""
    run = [sys.executable, "-m", "coopstreams", "run"]
    common = ["--bootstrap-servers", bootstrap, "--state-dir", folder, "--http", ""]
    uncached = ["--set", "statestore.cache.max.bytes=0"]
    exactly = ["--set", "processing.guarantee=exactly_once_v2"]
    return [
        ("stateless", [*run, f"{HERE / 'apps.py'}:stateless"], common),
        ("stateless exactly-once", [*run, f"{HERE / 'apps.py'}:stateless"], common + exactly),
        ("count", [*run, f"{HERE / 'apps.py'}:count"], common),
        ("count exactly-once", [*run, f"{HERE / 'apps.py'}:count"], common + exactly),
        ("count uncached", [*run, f"{HERE / 'apps.py'}:count"], common + uncached),
        (BARE, [sys.executable, str(HERE / "bare_loop.py"), bootstrap, folder], []),
    ]


if __name__ == "__main__":
    main()
