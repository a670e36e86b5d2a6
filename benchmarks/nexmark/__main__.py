"""The queries of Nexmark here and in Kafka Streams: `python -m benchmarks.nexmark
[--records N] [--only QUERY …]`.

Each query is one program of one process that reads one topic with all events, on a
fresh group, against one real broker on this machine. It has done a record when the
record, and what comes of it in repartition topics, are committed. What the runs of a
query have written is compared: where results differ, there are no figures.

Kafka Streams runs if `python -m benchmarks.peers` has installed it. Machines differ,
and are noisy: compare the ratios within one run.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from rich.console import Console

from benchmarks.nexmark.contents import Contents, Kind, contents, difference, read
from benchmarks.nexmark.generator import A_SECOND, events
from benchmarks.peers import JVM
from benchmarks.report import (
    PLANES,
    Results,
    planes,
    print_table,
    replace_between,
    table_of,
)
from benchmarks.running import (
    Case,
    coopstreams_run,
    make_topics,
    measure,
    write_timed,
)
from coopstreams.common.java import find_java
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.native import SETTING

SOURCE = "nexmark"
QUERIES: Mapping[str, Kind] = {
    "q0": Kind.STREAM,
    "q1": Kind.STREAM,
    "q2": Kind.STREAM,
    "q3": Kind.TABLE,
    "q4": Kind.NUMBERS,
    "q5": Kind.TABLE,
    "q7": Kind.TABLE,
    "q8": Kind.STREAM,
    "q11": Kind.NUMBERS,
    "q12": Kind.SUMS,
}
LAMBDAS = Path(__file__).with_name("queries.py")
EXPRESSIONS = Path(__file__).with_name("by_expressions.py")
OURS: Mapping[str, tuple[Path, str]] = {
    **{plane: (LAMBDAS, setting) for plane, setting in PLANES.items()},
    "native expressions": (EXPRESSIONS, PLANES["native"]),
}
"""The programs and the data plane of each of our runs."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"
BEGIN = "<!-- python -m benchmarks.nexmark --write -->"
INTERNAL = ("-repartition", "-topic")
"""The ends of the names of repartition topics, and of those of foreign keys."""


class Progress:
    """How many records a group has done; without those whose results still wait in
    topics of its own. `finished`: whether it had done all at some time; later there are
    time marks to be read.
    """

    def __init__(self, bootstrap: str, group: str, records: int) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        self._group = group
        self._records = records
        self._complete = self.finished = False

    def __call__(self) -> int:
        """Return the number. All are done if two looks say so: within one look, a
        record may go from a topic that comes later to one that was looked at.
        """
        try:
            done = self._done()
        except KafkaException:  # the group has no coordinator yet
            return 0
        complete = done >= self._records
        self.finished = self.finished or (complete and self._complete)
        self._complete = complete
        return self._records if self.finished else min(done, self._records - 1)

    def close(self) -> None:
        """End the connection."""
        self._consumer.close()

    def _done(self) -> int:
        (found,) = self._consumer.committed([TopicPartition(SOURCE, 0)], 30)
        return max(0, found.offset - self._left()) if found.offset > 0 else 0

    def _left(self) -> int:
        asked = [
            TopicPartition(topic, partition)
            for topic, found in self._consumer.list_topics(timeout=30).topics.items()
            if topic.startswith(f"{self._group}-") and topic.endswith(INTERNAL)
            for partition in found.partitions
        ]
        left = 0
        for found in self._consumer.committed(asked, 30) if asked else ():
            first, end = self._consumer.get_watermark_offsets(found, timeout=30)
            left += end - max(first, found.offset)
        return left


@dataclass(frozen=True, slots=True)
class Bench:
    """A broker with the events, and a folder for states."""

    bootstrap: str
    folder: Path
    records: int
    limit_s: float

    def cases(self, query: str, wanted: Sequence[str]) -> list[tuple[str, Case]]:
        """Return the runs of a query, by who makes it."""
        environment = {
            "BENCH_BROKERS": self.bootstrap,
            "BENCH_SOURCE": SOURCE,
            "BENCH_STATE": str(self.folder / "state"),
        }
        found = list[tuple[str, Case]]()
        for who, (apps, setting) in OURS.items():
            if who in wanted:
                command = coopstreams_run(
                    query, self.bootstrap, environment["BENCH_STATE"], apps=apps
                )
                found.append(
                    (who, Case(query, command, {**environment, SETTING: setting}))
                )
        if JVM.name in wanted:
            command = [*JVM.start(find_java().executable), f"nexmark {query}"]
            found.append((JVM.name, Case(query, command, environment)))
        return found

    def run(
        self, results: Results, query: str, who: str, case: Case, number: int
    ) -> Contents:
        """Run one case, note its measurement, and return what it has written."""
        group = f"{query}-{who}-{number}".replace(" ", "-").lower()
        sink = f"{group}-out"
        make_topics(self.bootstrap, sink)
        own = Case(
            query,
            case.command,
            {**case.environment, "BENCH_APPLICATION": group, "BENCH_SINK": sink},
        )
        with closing(Progress(self.bootstrap, group, self.records)) as progress:
            measured = measure(own, progress, self.records, self.limit_s)
            finished = progress.finished
        if not finished:
            raise SystemExit(
                f"{query}, {who}: not done after {self.limit_s:.0f} s: use a larger --limit, or fewer --records"
            )
        results.setdefault(query, {}).setdefault(who, []).append(measured)
        return contents(QUERIES[query], read(self.bootstrap, sink))


def runners() -> list[str]:
    """Return who can run the queries here."""
    return [
        *(
            who
            for who, (_, setting) in OURS.items()
            if setting in map(PLANES.get, planes())
        ),
        *([JVM.name] if JVM.installed else []),
    ]


def compared(
    bench: Bench, queries: Sequence[str], wanted: Sequence[str], rounds: int
) -> Results:
    """Run all queries by turns; return the measurements.

    Raises:
        SystemExit: the results of a query differ, or there are none; or a run was not
            done in time.
    """
    console = Console()
    results: Results = {}
    for query in queries:
        first: tuple[str, Contents] | None = None
        for number in range(rounds):
            for who, case in bench.cases(query, wanted):
                with console.status(f"{query}: {who}, {number + 1} of {rounds}"):
                    written = bench.run(results, query, who, case, number)
                if first is None:
                    first = (who, written)
                lines = difference(first[1], written)
                if lines or not written:
                    raise SystemExit(
                        "\n".join(
                            [f"{query}: {first[0]} and {who} differ:", *lines]
                            if lines
                            else [f"{query}: {who} has written nothing"]
                        )
                    )
        assert first is not None
        rates = ", ".join(
            f"{who} {found[-1].rate:,.0f} records/s and {found[-1].cpu:.1f} CPU s a million"
            for who, found in results[query].items()
        )
        console.print(f"{query}: {len(first[1]):,} results are the same; {rates}")
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare and measure every query, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--a-second",
        type=int,
        default=A_SECOND,
        help="events a second of their own time: fewer make more windows",
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="a figure is the median of so many turns"
    )
    parser.add_argument("--only", nargs="+", choices=QUERIES, default=[*QUERIES])
    parser.add_argument(
        "--by",
        nargs="+",
        choices=[*OURS, JVM.name],
        default=runners(),
        help="who runs them, by turns",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=300.0,
        metavar="S",
        help="so long at most each time",
    )
    parser.add_argument(
        "--write", action="store_true", help="write the table into docs/performance.md"
    )
    asked = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        make_topics(broker.bootstrap, SOURCE)
        with Console().status(f"writing {asked.records:,} records"):
            write_timed(
                broker.bootstrap,
                ((SOURCE, *event) for event in events(asked.records, asked.a_second)),
            )
        bench = Bench(broker.bootstrap, Path(folder), asked.records, asked.limit)
        results = compared(bench, asked.only, asked.by, asked.rounds)
    print_table(results, f"Nexmark, {asked.records:,} records, one process", Console())
    if asked.write:
        replace_between(DOCUMENT, BEGIN, table_of(results, asked.records, asked.rounds))


if __name__ == "__main__":
    main()
