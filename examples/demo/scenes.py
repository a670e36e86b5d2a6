"""`make demo`: three processes share the one partition of real flights; one is killed
half-way; answers stay right.

    Kafka -> 336,776 departures into one partition -> three processes, each with a part
    of the key hashes -> SIGKILL one -> the others continue -> every answer over HTTP is
    compared with the same one computed from the CSV files

Invariant: nothing is left running, however it ends; the next run begins with an empty
Kafka and empty state. Turned down: one process with three threads (in production,
processes die), a pause before the kill (half-way is half of the work).
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from coopstreams.common.java import find_java
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.cache import cache_folder
from coopstreams.dev.jars import KAFKA, kafka_jars
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.query.client import QueryClient
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import CoopStreamsError, DevError
from examples.demo.answers import DepartureTally
from examples.demo.data import create_topics, load
from examples.demo.flights import DEPARTURES, FlightsData, flights_data
from examples.demo.pictures import Pictures
from examples.demo.progress import RunningRange, shared
from examples.demo.run import STAGES, Run
from examples.demo.screen import DemoScreen, LiveScreen, bars, owners
from examples.demo.workers import (
    SESSION_MS,
    Workers,
    free_ports,
    interrupt_on_signals,
    interrupts_ignored,
    interrupts_wait,
    wait_for_port,
)

PROCESSES = 3
HALF = 0.5
PICTURE_AT = 0.3
"""When the plots have something to show, and nothing was killed yet."""
LOOK_EVERY_S = 0.25
PROGRAM = Path(__file__).resolve().parents[1] / "flights.py"
"""The topology that the demo runs."""
MARK = ".coopstreams-demo"
"""The file that marks the folder of a demo, whose contents a later demo may delete."""


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
            help=f"Load only the first so many of the {DEPARTURES:,} departures.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder for Kafka's data, state and logs; EMPTIED first. Default: `demo` in the cache folder."
        ),
    ] = None,
    screenshots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Leave pictures of the page in this folder; needs Chromium.",
        ),
    ] = None,
) -> None:
    """Share one partition between three processes, kill one; report whether the answers
    are right.
    """
    console = Console()
    interrupt_on_signals()
    run_alone(
        console,
        data or cache_folder() / "demo",
        lambda folder: Demo(console, folder, departures, Pictures(screenshots)).run(
            once=once
        ),
    )


def run_alone(console: Console, folder: Path, demo: Callable[[Path], bool]) -> NoReturn:
    """Run a demo in a folder, which is emptied first; end the command with status 0 if
    the demo returns True.
    """
    try:
        with alone(folder.expanduser().resolve()) as empty:
            logging.basicConfig(
                filename=empty / "demo.log", level=logging.WARNING
            )  # the screen is for people
            equal = demo(empty)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        raise typer.Exit(130) from None
    except CoopStreamsError as error:
        console.print(
            f"[red]{type(error).__name__}:[/] {escape(str(error))}",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1) from None
    raise typer.Exit(0 if equal else 1)


@dataclass(slots=True)
class Demo:
    """One run."""

    console: Console
    folder: Path
    most: int | None
    pictures: Pictures
    _screen: DemoScreen = field(init=False)

    def __post_init__(self) -> None:
        self._screen = DemoScreen(self.console)

    def run(self, *, once: bool) -> bool:
        """Return whether all answers are right. Without `once`, first serve queries
        until Ctrl-C.
        """
        self._screen.say(
            f"[bold]One partition of flights, {PROCESSES} processes, each with a part of the key hashes[/]\n"
        )
        ports = free_ports(PROCESSES)
        self._screen.say(
            f"The page to watch it on, as soon as the processes run: [bold]http://127.0.0.1:{ports[0]}/[/]\n"
        )
        data = flights_data(self.console)
        find_java()  # fails before the download if there is no Java
        kafka_jars(self.console)
        broker = KafkaBroker(self.folder / "kafka", console=self.console)
        workers: Workers | None = None
        log: KafkaLog | None = None
        try:
            with self._screen.timed("Kafka"), interrupts_wait():
                broker.start()
            self._screen.say(f"Kafka {KAFKA} is up at {broker.bootstrap}")
            log = KafkaLog({"bootstrap.servers": broker.bootstrap})
            with self._screen.timed("loading"):
                tally = self._load(log, data)
            workers = Workers(PROGRAM, broker.bootstrap, self.folder, ports)
            with self.pictures:
                with self._screen.timed("processing"):
                    parts = self._process(log, workers, tally)
                self.pictures.take("stores")
            url = workers.living[0].url
            equal = self._screen.compare(url, tally)
            self._screen.say(
                "\nThe owners of the 256 key groups, which answer queries for them:"
            )
            self.console.print(
                owners(
                    workers.all,
                    parts,
                    STAGES,
                    ascii_only=self.console.options.ascii_only,
                )
            )
            self._screen.say_times()
            if not once:
                self._stay(workers, url)
            return equal
        finally:
            with interrupts_ignored(), self.console.status("stopping"):
                if workers is not None:
                    workers.stop()
                if log is not None:
                    log.close()
                broker.stop()

    def _load(self, log: KafkaLog, data: FlightsData) -> DepartureTally:
        create_topics(log)
        total = min(self.most or DEPARTURES, DEPARTURES)
        with bars(self.console) as progress:
            bar = progress.add_task("loading departures", total=total)
            return load(
                log, data, self.most, lambda count: progress.advance(bar, count)
            )

    def _process(
        self, log: KafkaLog, workers: Workers, tally: DepartureTally
    ) -> dict[str, list[RunningRange]]:
        """Start the processes, kill one half-way; return the ranges of each process
        when every record is processed.
        """
        total = {0: log.end_offset(TopicPartition("flights", 0)), 1: tally.departed}
        for _ in range(PROCESSES):
            workers.start()
        self._screen.say(
            f"{PROCESSES} processes run {PROGRAM.name}, exactly once; their logs: {self.folder}/process-*.log"
        )
        wait_for_port(workers.all[0], workers.check)
        self.pictures.watch(workers.all[0].url)
        run = Run(log, total)
        story = self._story(run, workers)
        with (
            LiveScreen(
                self.console,
                {number: (label, total[number]) for number, label in STAGES.items()},
            ) as screen,
            QueryClient(workers.all[0].url, deadline_s=0.0) as queries,
        ):
            ended = False
            while not ended:
                workers.check()
                run.look(queries, time.monotonic())
                ended = next(story, True)
                screen.show(run.done, workers.all, run.parts)
                time.sleep(LOOK_EVERY_S)
        return run.parts

    def _story(self, run: Run, workers: Workers) -> Iterator[bool]:
        """Run the script of the demo, one step after each refresh; yield whether it is
        over.
        """
        while not shared(run.parts, [worker.url for worker in workers.all], STAGES):
            yield False
        self._screen.say("the partition is shared: " + _shares(run, workers))
        while run.fraction < PICTURE_AT:
            yield False
        self.pictures.take("shared")
        self.pictures.take("topology")
        while run.fraction < HALF:
            yield False
        victim = workers.all[-1]
        lost = (
            ", ".join(sorted({str(part) for part in run.parts.get(victim.url, ())}))
            or "nothing"
        )
        at, killed_at = run.fraction, time.monotonic()
        workers.kill(victim)
        self._screen.say(
            f"[red]{at:.0%} done: {victim.name} is killed (SIGKILL)[/]; no process has {lost} until its session ends "
            f"({SESSION_MS / 1000:g} s)"
        )
        yield False
        self.pictures.take("killed")
        while not shared(run.parts, [worker.url for worker in workers.living], STAGES):
            yield False
        self._screen.say(
            f"[green]{time.monotonic() - killed_at:.1f} s later the others have taken over[/]: "
            + _shares(run, workers)
        )
        while len(run.finished) < len(STAGES):
            yield False
        self._screen.say("every record is processed and committed")
        yield True

    def _stay(self, workers: Workers, url: str) -> None:
        command = Path(sys.executable).with_name("coopstreams")
        self._screen.say(
            f"\nThe application answers at [bold]{url}[/]; try, in another terminal:"
        )
        for line in (
            f"curl '{url}/v1/stores/delays-by-aircraft/keys/N14228'",
            f"curl '{url}/v1/stores/delays-by-carrier/windows/UA?limit=3'",
            f"{command} status {url}",
            f"{command} query {url} delays-by-aircraft N14228",
        ):
            self.console.print(
                f"  {line}", highlight=False, markup=False, soft_wrap=True
            )
        self._screen.say("Ctrl-C ends everything.")
        with suppress(KeyboardInterrupt):
            while True:
                workers.check()
                time.sleep(LOOK_EVERY_S)


def _shares(run: Run, workers: Workers) -> str:
    """Return the key groups of each process, in words."""
    words = []
    for worker in workers.living:
        parts = sorted({str(part) for part in run.parts[worker.url]})
        words.append(f"{worker.name} has {', '.join(parts)}")
    return "; ".join(words)


@contextmanager
def alone(folder: Path) -> Iterator[Path]:
    """Yield the folder, empty except for the mark; a lock keeps other demos out.

    Raises:
        DevError: another demo runs on it, or it is not a demo's folder.
    """
    if (
        folder.exists()
        and not (folder / MARK).exists()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise DevError(
            f"{folder} is not a demo's folder and is not empty: the demo would delete what is in it. Name another one "
            "(--data)"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevError(
                f"another demo runs on {folder}. End it first, or use another folder (--data)"
            ) from None
        KafkaBroker(folder / "kafka").stop()  # left by a demo that was killed
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / MARK).touch()
        yield folder


if __name__ == "__main__":
    typer.run(demo)
