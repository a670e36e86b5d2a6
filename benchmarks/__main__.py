"""Records per second of one process, next to bare loops with the same parts: `python -m
benchmarks [--records N]`.

Each case runs in a process of its own, on a fresh group, against one real broker on
this machine. Compare the ratios within one run: machines differ, and are noisy. Where
the extension `coopstreams-native` is installed, each case runs in pure Python and
natively, by turns; and so do other frameworks that `python -m benchmarks.peers` has
installed.

    stateless        JSON -> filter -> map -> JSON
    stateless typed  the same with classes
    count            a keyed count with changelog, record cache on (updates go out once a commit)
    count uncached   the same, every update an output
    windowed sum     a sum for each key and minute by a function, record cache on
    windowed field   the same sum by what a native plane knows: a field of the value, and operator.add
    windowed turnover
                     the windowed sum, of records with times of their own: a third of them make an output
    session sum      a sum by a function over sessions with a gap of 20 s
    stream join      pairs of one key within 20 s by a function, of two topics
    bare loop        consume -> dict -> changelog and output and RocksDB at each commit, by hand, without a framework
    bare stateless   the first case by hand
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kafka import KafkaAdminClient
from rich.console import Console

from benchmarks.event_time import fill_events, fill_sides
from benchmarks.peers import peer_cases
from benchmarks.report import PLANES, Results, planes, print_table, write_report
from benchmarks.running import (
    Case,
    Measured,
    MeasurementError,
    committed,
    coopstreams_run,
    fill,
    make_topics,
    measure,
    written,
)
from coopstreams.common.java import find_java
from coopstreams.dev.broker import KafkaBroker
from coopstreams.log.kafka.native import SETTING

BARE = {
    "bare loop": "benchmarks.bare_loop",
    "bare stateless": "benchmarks.bare_stateless",
}
"""The loops without a framework."""
HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "performance.md"


@dataclass(frozen=True, slots=True)
class Input:
    """The source topics of cases; `fill(bootstrap, *topics, records)` writes them."""

    topics: Sequence[str]
    fill: Callable[..., None]


NOW = Input(("bench-in",), fill)
"""Records of the time at which they are written."""
EVENTS = Input(("bench-events",), fill_events)
SIDES = Input(("bench-sides", "bench-sides-right"), fill_sides)


@dataclass(frozen=True, slots=True)
class Work:
    """A topology in apps.py, flags, and what it reads."""

    topology: str
    flags: Sequence[str] = ()
    source: Input = NOW


_EXACTLY_ONCE = ("--set", "processing.guarantee=exactly_once_v2")
CASES: Mapping[str, Work] = {
    "stateless": Work("stateless"),
    "stateless typed": Work("typed"),
    "stateless exactly-once": Work("stateless", _EXACTLY_ONCE),
    "count": Work("count"),
    "count exactly-once": Work("count", _EXACTLY_ONCE),
    "count uncached": Work("count", ("--set", "statestore.cache.max.bytes=0")),
    "windowed sum": Work("windowed"),
    "windowed field": Work("windowed_field"),
    "windowed turnover": Work("windowed", source=EVENTS),
    "session sum": Work("session_sum", source=EVENTS),
    "stream join": Work("stream_join", source=SIDES),
}


def input_of(case: str) -> Input:
    """Return what a case reads."""
    return CASES[case].source if case in CASES else NOW


def entries(
    wanted: str,
    wanted_planes: Sequence[str],
    peers: bool,
    environment: Mapping[str, str],
) -> list[tuple[str, Case]]:
    """Return the entries of a case, in their order."""
    found: list[tuple[str, Case]] = []
    names = [name for name in CASES if wanted in name]
    others = (
        list(peer_cases(names, environment, find_java().executable)) if peers else []
    )
    for name in names:
        work = CASES[name]
        command = [
            *coopstreams_run(
                work.topology, environment["BENCH_BROKERS"], environment["BENCH_STATE"]
            ),
            *work.flags,
        ]
        found += [
            (plane, Case(name, command, {**environment, SETTING: PLANES[plane]}))
            for plane in wanted_planes
        ]
        found += [(peer.name, case) for peer, case in others if case.name == name]
    for name, module in BARE.items():
        if wanted in name:
            found.append(
                (name, Case(name, [sys.executable, "-m", module], environment))
            )
    return found


def main() -> None:
    """Measure every case, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--rounds", type=int, default=1, help="a figure is the median of so many turns"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--planes",
        nargs="+",
        choices=PLANES,
        default=planes(),
        help="data planes, by turns",
    )
    parser.add_argument(
        "--no-peers", action="store_true", help="only coopstreams and the bare loops"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=90.0,
        metavar="S",
        help="so long at most each time: slow ones do fewer records",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the table and its plots into docs/performance.md",
    )
    arguments = parser.parse_args()
    console = Console()
    results: Results = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaBroker(Path(folder) / "kafka") as broker,
    ):
        offsets = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        environment = {
            "BENCH_BROKERS": broker.bootstrap,
            "BENCH_STATE": f"{folder}/state",
        }
        sources = {input_of(name) for name in (*CASES, *BARE) if arguments.only in name}
        for source in sources:
            make_topics(broker.bootstrap, *source.topics)
            with console.status(f"writing {arguments.records:,} records"):
                source.fill(broker.bootstrap, *source.topics, arguments.records)
        for round_ in range(arguments.rounds):
            for who, case in entries(
                arguments.only, arguments.planes, not arguments.no_peers, environment
            ):
                with console.status(
                    f"{case.name}: {who}, {round_ + 1} of {arguments.rounds}"
                ):
                    try:
                        found = _measured(
                            offsets, case, f"{case.name}-{who}-{round_}", arguments
                        )
                    except MeasurementError as error:
                        if who in PLANES or who in BARE:
                            raise SystemExit(str(error)) from None
                        console.print(f"{who} is left out: {error}")
                        continue
                results.setdefault(case.name, {}).setdefault(who, []).append(found)
    print_table(results, f"{arguments.records:,} records, one process", console)
    if arguments.write:
        write_report(results, arguments.records, arguments.rounds, DOCUMENT)


def _measured(
    offsets: KafkaAdminClient, case: Case, name: str, arguments: argparse.Namespace
) -> Measured:
    """Run one case with a group and an output topic of its own."""
    group = name.replace(" ", "-").lower()
    sink = f"{group}-out"
    make_topics(case.environment["BENCH_BROKERS"], sink)
    sources = input_of(case.name).topics
    own = Case(
        case.name,
        case.command,
        {
            **case.environment,
            "BENCH_APPLICATION": group,
            "BENCH_SOURCE": sources[0],
            "BENCH_SINK": sink,
        },
        case.outputs,
    )
    if case.outputs is None:
        return measure(
            own,
            partial(committed, offsets, group, *sources),
            arguments.records,
            arguments.limit,
        )
    outputs, done = (
        case.outputs,
        partial(written, case.environment["BENCH_BROKERS"], sink),
    )
    # A thousandth less: how many records pass is known on average only.
    return measure(
        own,
        lambda: round(done() / outputs),
        round(arguments.records * 0.999),
        arguments.limit,
    )


if __name__ == "__main__":
    main()
