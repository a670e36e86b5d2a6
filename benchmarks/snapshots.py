"""How long a task waits for its state: snapshot against changelog, in one run: `python
-m benchmarks.snapshots [--keys N] [--rounds N]`.

One partition of a real broker on this machine; each key is written twice, one in a
hundred is deleted in the end. What is timed is what an instance does between the
barrier and the first record, with its own parts; after each round all rows are
compared.

    replay      the whole changelog into an empty database
    restore     the published snapshot into an empty database, local disk, checked and with nothing behind it
    one of 8    the same for one of eight key ranges
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.running import write
from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.admin.rebuild import Rebuilder, RebuildScope
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.opening.restores import Restores
from coopstreams.state.database import Database
from coopstreams.state.published_snapshot import Snapshots
from coopstreams.state.rocks import Rocks
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

CHANGELOG = "bench-counts-changelog"
EIGHTH = KeyRange.split(8)[3]


def program() -> Topology:
    """Return a keyed count."""
    builder = StreamsBuilder("bench")
    builder.stream("events", key=serdes.text, value=serdes.raw).group_by_key().count(
        store="counts"
    )
    return builder.build()


def fill(bootstrap: str, keys: int) -> int:
    """Write the changelog; return the final number of keys."""
    first = (
        (b"user-%07d" % number, number.to_bytes(8, "big")) for number in range(keys)
    )
    then = (
        (
            b"user-%07d" % number,
            None if number % 100 == 0 else (2 * number).to_bytes(8, "big"),
        )
        for number in range(keys)
    )
    write(bootstrap, CHANGELOG, chain(first, then), int(time.time() * 1000))
    return keys - (keys + 99) // 100


def opened(
    cluster: KafkaLog,
    topology: Topology,
    folder: Path,
    key_range: KeyRange,
    url: str | None,
) -> tuple[float, int, str]:
    """Restore into an empty database; return the seconds, the number of rows, and a
    digest of all of them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "database").mkdir(parents=True)
    subtopology = topology.subtopologies[0]
    snapshots = None if url is None else Snapshots(url, "bench", folder / "snapshots")
    task = TaskId(0, 0, key_range)
    started = time.perf_counter()
    with closing(Database(Rocks(folder / "database"), subtopology.stores)) as database:
        with closing(Restores(cluster, lambda _: CHANGELOG, snapshots)) as restoring:
            restoring.add(task, subtopology.stores, database, {})
            while not restoring.finished():
                restoring.step()
            seconds = time.perf_counter() - started
        digest, rows = hashlib.sha256(), 0
        for key, value in database.scan("counts", range(256), None, None):
            digest.update(key + value)
            rows += 1
    return seconds, rows, digest.hexdigest()


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    topology = program()
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka", console=Console(stderr=True)) as broker,
    ):
        url, cases = f"{folder}/snapshots", {"all ranges": WHOLE, "one of 8": EIGHTH}
        with closing(KafkaLog({"bootstrap.servers": broker.bootstrap})) as cluster:
            cluster.create_topics(
                [
                    TopicSpec("events", 1),
                    TopicSpec(CHANGELOG, 1, {"cleanup.policy": "compact"}),
                ]
            )
            live = fill(broker.bootstrap, options.keys)
            rebuilder = Rebuilder(cluster, topology, "bench", url)
            (partition,) = rebuilder.to_rebuild(RebuildScope())
            rebuilt = timed(lambda: rebuilder.publish(rebuilder.rebuild(partition)))
            seconds: dict[tuple[str, str], list[float]] = {}
            for _ in range(options.rounds):
                for name, key_range in cases.items():
                    found = {
                        way: opened(
                            cluster, topology, Path(folder) / "state", key_range, at
                        )
                        for way, at in (("replay", None), ("restore", url))
                    }
                    assert found["replay"][1:] == found["restore"][1:], (
                        "the rows differ"
                    )
                    assert name != "all ranges" or found["replay"][1] == live
                    for way, result in found.items():
                        seconds.setdefault((name, way), []).append(result[0])
        files = list((Path(folder) / "snapshots").rglob("*.sst"))
        size = sum(file.stat().st_size for file in files) / 1e6
    table = Table(
        title=f"{live:,} keys of {2 * options.keys:,} changelog records; snapshot {size:.0f} MB in {len(files)} files, "
        f"made in {rebuilt:.1f} s"
    )
    for column in ("", "replay s", "snapshot restore s", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for name in cases:
        replay, restored_from_snapshot = (
            statistics.median(seconds[name, way]) for way in ("replay", "restore")
        )
        table.add_row(
            name,
            f"{replay:.2f}",
            f"{restored_from_snapshot:.2f}",
            f"{replay / restored_from_snapshot:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
