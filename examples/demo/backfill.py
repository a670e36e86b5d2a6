"""`make demo-backfill`: Spark processes the first half of the flights from CSV files,
the application the rest live.

    CSV files -> Spark -> backfill up to the middle of the year -> publish -> Kafka gets
    the rest -> the application continues live -> every answer over HTTP is compared
    with the same one computed from all rows by plain loops

Invariant: nothing is left running, however it ends; the next run begins with an empty
Kafka and empty state.
"""

from __future__ import annotations

import time
import zipfile
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coopstreams.commands.topology_target import load_topology
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.cache import cache_folder
from coopstreams.instance.coop_streams import CoopStreams
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.query.client import QueryClient
from coopstreams.topology.columns import TopicPartition
from examples.demo.answers import DepartureTally
from examples.demo.data import create_topics, write_departures
from examples.demo.flights import DEPARTURES, Departure, FlightsData, flights_data
from examples.demo.run import Run
from examples.demo.scenes import PROGRAM, run_alone
from examples.demo.screen import DemoScreen

if TYPE_CHECKING:
    from coopstreams.spark import Backfilled, TableHistory

LOOK_EVERY_S = 0.25

_TIME = "unix_millis(cast(time_hour as timestamp)) + cast(minute as bigint) * 60000"
_FLIGHT = (
    "named_struct('carrier', carrier, 'flight', cast(flight as int), 'tail_number', tailnum, 'origin', origin, "
    f"'dest', dest, 'dep_delay', cast(dep_delay as double), 'time_ms', {_TIME})"
)
_PLANE = "named_struct('manufacturer', manufacturer, 'model', model, 'seats', cast(seats as int))"


def demo(
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="End when the answers are compared, with status 1 if they differ.",
        ),
    ] = False,
    departures: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help=f"Take only the first so many of the {DEPARTURES:,} departures.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder for Kafka's data, state and Spark's work; EMPTIED first. Default: `demo-backfill` in the "
            "cache folder."
        ),
    ] = None,
) -> None:
    """Process half of the flights by Spark, the other half live; report whether the
    answers are right.
    """
    console = Console()
    folder = data or cache_folder() / "demo-backfill"
    run_alone(
        console,
        folder,
        lambda empty: BackfillDemo(console, empty, departures).run(once=once),
    )


class BackfillDemo:
    """One run."""

    def __init__(self, console: Console, folder: Path, most: int | None) -> None:
        self._console = console
        self._folder = folder
        self._most = most
        self._topology = load_topology(str(PROGRAM))
        self._screen = DemoScreen(console)

    def run(self, *, once: bool) -> bool:
        """Return whether all answers are right. Without `once`, first serve queries
        until Ctrl-C.
        """
        self._screen.say(
            "[bold]The first half of the flights by Spark, the second half live[/]\n"
        )
        data = flights_data(self._console)
        rows = list(data.departures())[: self._most]
        middle = sorted(row.time_ms for row in rows)[len(rows) // 2]
        with ExitStack() as closing:
            broker = KafkaBroker(self._folder / "kafka", console=self._console)
            closing.callback(broker.stop)
            with self._screen.timed("Kafka"):
                broker.start()
            log = KafkaLog({"bootstrap.servers": broker.bootstrap})
            closing.callback(log.close)
            create_topics(log)
            settings = {
                "bootstrap.servers": broker.bootstrap,
                "statestore.cache.max.bytes": 0,
            }
            with self._screen.timed("Spark"):
                done = self._backfill(data, settings, middle)
            self._screen.say(
                f"Spark took {done.records:,} records from the CSV files, up to "
                f"{time.strftime('%d %B %Y', time.gmtime(middle / 1000))}"
            )
            rest = [row for row in rows if row.time_ms >= middle]
            write_departures(log, rest)
            self._screen.say(
                f"{len(rest):,} departures are in Kafka for the application, which goes on"
            )
            live = {
                **settings,
                "state.dir": str(self._folder / "state"),
                "commit.interval.ms": 200,
                "ranges.per.partition": 4,
                "ranges.before.windows": True,
            }
            app = closing.enter_context(CoopStreams(self._topology, live))
            url = str(app.url)
            with self._screen.timed("live"):
                self._wait(log, url, rest)
            equal = self._compare(url, data, rows)
            self._screen.say_times()
            if not once:
                self._screen.say(
                    f"\nThe application answers at [bold]{url}[/]. Ctrl-C ends everything."
                )
                while True:
                    time.sleep(LOOK_EVERY_S)
        return equal

    def _backfill(
        self, data: FlightsData, settings: dict[str, object], middle: int
    ) -> Backfilled:
        from coopstreams.spark import Options, backfill, local_session, publish

        with (
            zipfile.ZipFile(data.folder / "flights.csv.zip") as archive,
            archive.open("flights.csv") as lines,
        ):
            (self._folder / "flights.csv").write_bytes(
                b"".join(islice(lines, None if self._most is None else self._most + 1))
            )
        spark = local_session("demo", {"spark.ui.showConsoleProgress": "true"})
        try:
            options = Options(
                ranges=4, outputs="topic", work=str(self._folder / "work")
            )
            done = backfill(
                self._topology,
                settings,
                spark=spark,
                sources=self._histories(spark, data, middle),
                options=options,
            )
        finally:
            spark.stop()
        publish(done, self._topology, settings)
        return done

    def _histories(
        self, spark: object, data: FlightsData, middle: int
    ) -> dict[str, TableHistory]:
        """Return the three files as histories of topics, with the keys, values and
        times of `data`'s records.
        """
        from coopstreams.spark import TableHistory

        def history(
            file: Path, key: str, value: str, timestamp: str, below: int
        ) -> TableHistory:
            rows = spark.read.csv(str(file), header=True, nullValue="NA")  # type: ignore[attr-defined]
            json = f"cast(to_json({value}, map('ignoreNullFields', 'false')) as binary) as value"
            records = rows.selectExpr(
                f"cast({key} as binary) as key",
                json,
                f"cast({timestamp} as bigint) as timestamp",
            )
            return TableHistory(
                records.where(f"timestamp < {below}"),
                order_by=["timestamp", "key", "value"],
            )

        return {
            "flights": history(
                self._folder / "flights.csv", "tailnum", _FLIGHT, _TIME, middle
            ),
            "airlines": history(
                data.folder / "airlines.csv",
                "carrier",
                "named_struct('name', name)",
                "1",
                middle,
            ),
            "planes": history(
                data.folder / "planes.csv", "tailnum", _PLANE, "1", middle
            ),
        }

    def _wait(self, log: KafkaLog, url: str, rest: list[Departure]) -> None:
        departed = sum(row.dep_delay is not None for row in rest)
        run = Run(log, {0: log.end_offset(TopicPartition("flights", 0)), 1: departed})
        with (
            QueryClient(url, deadline_s=0.0) as queries,
            self._console.status("the application takes the rest"),
        ):
            while len(run.finished) < len(run.total):
                run.look(queries, time.monotonic())
                time.sleep(LOOK_EVERY_S)

    def _compare(self, url: str, data: FlightsData, rows: list[Departure]) -> bool:
        tally = DepartureTally(data.airlines(), data.planes())
        for row in rows:
            tally.add(row)
        return self._screen.compare(url, tally)


if __name__ == "__main__":
    typer.run(demo)
