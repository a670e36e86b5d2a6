"""The memory of a group's commits in a process that follows them: `python -m
benchmarks.offsets_memory [--entries N]`.

An entry is what one (group, topic, partition, key range) has committed: offset, stream
time, term, generation. The proposal allows 64 bytes for one of group, topic, partition
and offset. No broker: a view is given the records that it would read.

    bytes     of Python's allocator (tracemalloc), and by how much the process grew (resident set), each by the number
              of entries
    us        to take one record that changes an entry, and to ask for the stable offset of a partition
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from multiprocessing import get_context

from rich.console import Console
from rich.table import Table

from benchmarks.running import resident, taken
from coopstreams.commit.record import (
    CommitKey,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
)
from coopstreams.commit.view import CommitView
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange

WRITERS = 32
STRIDE = 611_953
"""A prime: its multiples, modulo the number of entries, are all entries."""
SHAPES = ((1, 1), (100, 1), (10, 4), (1, 256))
"""Topics, and key ranges of each of their partitions."""


def records(entries: int, topics: int, cuts: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield individual commits, with neighbours far apart."""
    generator = random.Random(7)
    ranges = KeyRange.split(cuts)
    for turn in range(entries):
        number = turn * STRIDE % entries
        at, cut = divmod(number, cuts)
        partition, topic = divmod(at, topics)
        key_range = ranges[cut]
        segment = Segment(
            key_range, generator.randrange(10_000_000_000), 1_700_000_000_000 + number
        )
        writer = f"accounting-consumer-{partition % WRITERS:032}-commit"
        yield (
            encode_key(
                CommitKey("accounting", f"orders-{topic}", partition, key_range, 3, 17)
            ),
            encode_value(CommitValue(writer, (segment,))),
        )


def filled(entries: int, topics: int, cuts: int) -> CommitView:
    """Return a view that has read this many entries."""
    view = CommitView("accounting")
    for key, value in records(entries, topics, cuts):
        view.apply(key, value)
    return view


def allocated(entries: int, topics: int, cuts: int) -> float:
    """Return the bytes per entry, by Python's allocator."""
    views: list[CommitView] = []
    return taken(lambda: views.append(filled(entries, topics, cuts))) / entries


def grown(entries: int, topics: int, cuts: int) -> tuple[float, float, float]:
    """Return by how many bytes per entry this process grows, and the microseconds of a
    change and of a look-up.
    """
    before = resident()
    view = filled(entries, topics, cuts)
    size = (resident() - before) / entries
    some = list(records(10_000, topics, cuts))
    start = time.perf_counter()
    for key, value in some:
        view.apply(key, value)
    change = (time.perf_counter() - start) / len(some)
    partitions = [
        TopicPartition(f"orders-{n % topics}", n // topics)
        for n in range(min(1000, entries // cuts))
    ]
    start = time.perf_counter()
    for at in partitions:
        view.stable(at, None)
    return size, 1e6 * change, 1e6 * (time.perf_counter() - start) / len(partitions)


def main() -> None:
    """Measure each shape once and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000)
    arguments = parser.parse_args()
    console = Console()
    table = Table(title=f"{arguments.entries:,} entries")
    for column in (
        "topics",
        "key ranges a partition",
        "bytes allocated",
        "bytes resident",
        "us a change",
        "us a question",
    ):
        table.add_column(column, justify="right")
    for topics, cuts in SHAPES:
        # Processes of their own: memory freed by others would hide the growth.
        with (
            console.status(f"{topics} topics, {cuts} key ranges a partition"),
            get_context("spawn").Pool(2, maxtasksperchild=1) as pool,
        ):
            sizes = pool.apply_async(grown, (arguments.entries, topics, cuts))
            held = pool.apply(allocated, (arguments.entries, topics, cuts))
            size, change, ask = sizes.get()
        table.add_row(
            f"{topics}",
            f"{cuts}",
            f"{held:.1f}",
            f"{size:.1f}",
            f"{change:.1f}",
            f"{ask:.1f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
