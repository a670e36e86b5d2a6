"""What a fork costs: `python -m benchmarks.fork [--megabytes N]`.

An application with so much state, in three partitions, keeps the latest value of each
key, exactly-once, while 300 records a second are written. A savepoint of it is taken,
and a second application begins with that:

    savepoint  how long the command takes
    running    from the beginning of that command until all tasks of the second application run
    p99        of the delays of the first application: in the 5 s before, during the savepoint, and until the second runs
    outputs    the results of both for what was written since: none may be missing or different
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import quantiles

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.running import APPS, make_topics, write
from benchmarks.standbys import PARTITIONS, SOURCE, VALUE, Group, Load, rows
from coopstreams.dev.broker import KafkaBroker

BEFORE_S = 5.0
AFTER_S = 10.0
"""How long both run beside each other before their results are compared."""
NAME = "before"
EXACTLY_ONCE = "processing.guarantee=exactly_once_v2"


def take(group: Group, bootstrap: str) -> None:
    """Have an application write a savepoint.

    Raises:
        CalledProcessError: it does not.
    """
    command = [sys.executable, "-m", "coopstreams", "savepoint", f"{APPS}:latest"]
    named = [f"bootstrap.servers={bootstrap}", *group.settings]
    flags = [word for each in named for word in ("--set", each)]
    subprocess.run(
        [*command, NAME, *flags],
        env=group.environment,
        check=True,
    )


def results(bootstrap: str, topic: str) -> Iterator[tuple[bytes, int]]:
    """Yield key and time (ns) of each committed result in a topic."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "compares"}
    at = TopicPartition(topic, 0, OFFSET_BEGINNING)
    with closing(Consumer(settings | {"enable.partition.eof": True})) as consumer:
        consumer.assign([at])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            key = message.key()
            value = message.value()
            assert key is not None
            assert value is not None
            yield key, int(value)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=300)
    megabytes = parser.parse_args().megabytes
    keys = megabytes * 1_000_000 // VALUE
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        bootstrap = broker.bootstrap
        make_topics(bootstrap, SOURCE, partitions=PARTITIONS)
        write(bootstrap, SOURCE, rows(keys))
        settings = [EXACTLY_ONCE, f"snapshots.dir={folder}/snapshots"]
        first, second = (
            Group(bootstrap, Path(folder), name, *settings)
            for name in ("first", "second")
        )
        first.start(0)
        first.until_done()
        first.until_settled(0, [PARTITIONS])
        with Load(first, keys) as load:
            time.sleep(BEFORE_S)
            began = time.time()
            take(first, bootstrap)
            saved = time.time()
            second.start(1, savepoint=f"first/{NAME}")
            second.until_settled(0, [PARTITIONS])
            running = time.time()
            time.sleep(AFTER_S)
        for group in (first, second):
            group.until_done(0)
            group.stop()
        since = [one for one in results(bootstrap, first.sink) if one[1] >= saved * 1e9]
        forked = list(results(bootstrap, second.sink))
        both = Counter(forked)
        times = began - BEFORE_S, began, saved, running
        percentiles = [
            1000 * quantiles(delays, n=100)[98]
            for start, end in pairwise(times)
            if (delays := [one.delay for one in load.results if start <= one.at < end])
        ]
    missing = (Counter(since) - both).total()
    doubled = (both - Counter(set(forked))).total()
    table = Table(title=f"a fork of {megabytes} MB")
    columns = "savepoint s", "running s", "p99 before ms", "during it ms", "then ms"
    for column in columns:
        table.add_column(column, justify="right")
    table.add_row(
        f"{saved - began:.1f}",
        f"{running - began:.1f}",
        *(f"{one:.0f}" for one in percentiles),
    )
    console = Console()
    console.print(table)
    console.print(
        f"{len(since):,} results of the first since then, {missing} of them missing in the second, {doubled} doubled; "
        f"the second has {len(forked):,}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
