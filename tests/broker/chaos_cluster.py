"""Chaos on three brokers: an application under supervisors, its workers killed and
stopped, brokers killed, stopped and paused beside them.

    python -m tests.broker.chaos_cluster --minutes 10 --guarantee exactly_once_v2 --seed
    1

With `--calls`, each order is sent to a service that is slow, fails and hangs, with and
without state; the output `told` has the orders, each with the one before it.

With `--standbys N`, each task has so many, and what moves does so by a warm-up. With
`--deploys`, nothing is killed: workers are replaced one after the other, over and over.

At the end everything is compared with the input: under exactly-once nothing is lost,
doubled or out of order, under at-least-once nothing is lost; no supervisor ended by
itself. The exit status is 0 if all this holds. A seed fixes the kinds of fault, not
their order in time.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coopstreams.commit.record import PARTITIONS, partition_of
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.application import Application
from tests.broker.chaos import Feeder, Found, Topics, dead_letters, examine, followed
from tests.broker.cluster import NODES, ThreeBrokers
from tests.broker.reading import counts_of, read_topic
from tests.broker.slow_service import SlowService
from tests.broker.stalls import Faults, Reasons, Stall, stalls, waits

EXACTLY_ONCE = "exactly_once_v2"
SESSION_MS = 10_000
SOURCE_PARTITIONS = 4
A_SECOND = 150
SETTLE_S = 240.0
WARM_S = 15.0
SHOWN = 5
BEFORE_S = 15.0
"""The effect of a fault may come that much later."""


@dataclass(slots=True)
class Run:
    """One run: its topics, its application, and its faults."""

    cluster: ThreeBrokers
    topics: Topics
    application: Application
    seed: int
    faults: Faults = field(default_factory=Faults)
    over: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)

    def break_workers(self) -> None:
        """Kill and stop workers, delete their state, and change their number, until the
        end of the run.
        """
        generator = random.Random(self.seed)
        acts: list[tuple[Callable[[random.Random], None], int]] = [
            (self._kill, 4),
            (self._kill_with_state, 1),
            (self._stop_shortly, 2),
            (self._stop_for_long, 3),
            (self._more_or_fewer, 2),
        ]
        while not self.over.wait(generator.uniform(3, 10)):
            (act,) = generator.choices(
                [act for act, _ in acts], [weight for _, weight in acts]
            )
            act(generator)
            self.application.look()

    def break_brokers(self) -> None:
        """Stop brokers for a while, one after the other, mostly coordinators and
        leaders, until the end of the run.
        """
        generator = random.Random(self.seed + 1)
        while not self.over.wait(generator.uniform(5, 12)):
            what, node = self._important(generator)
            how, seconds = (
                generator.choice(("kill", "stop", "pause")),
                generator.choice((2.0, 8.0, 20.0)),
            )
            self.faults.note(f"{how} broker {node} ({what}) for {seconds:g} s")
            getattr(self.cluster, how)(node)
            self.over.wait(seconds)
            self.cluster.mend()
            self.faults.note(f"broker {node} is back, all replicas in sync")

    def deploy(self) -> None:
        """Replace workers one after the other until the end of the run: each is asked to
        end, and the next one when its successor is ready.
        """
        while not self.over.is_set():
            for number in sorted(self.application.workers()):
                self.faults.note(f"replace worker {number}")
                self.application.replace(number, self.over)
                if self.over.wait(1.0):
                    return

    def _important(self, generator: random.Random) -> tuple[str, int]:
        """Return a broker, and its roles in words."""
        found = {
            "group coordinator": lambda: self.cluster.group_coordinator(
                self.topics.application
            ),
            "transaction coordinator": lambda: self.cluster.transaction_coordinator(
                generator.choice(self.transactional_ids() or ["nobody"])
            ),
            "leader of the commit topic": lambda: self.cluster.leader_of(
                COMMIT_TOPIC, partition_of(self.topics.application, PARTITIONS)
            ),
            "leader of a source": lambda: self.cluster.leader_of(
                self.topics.orders, generator.randrange(SOURCE_PARTITIONS)
            ),
            "leader of an output": lambda: self.cluster.leader_of(
                self.topics.counts, generator.randrange(SOURCE_PARTITIONS)
            ),
        }
        what = generator.choice(sorted(found))
        return what, found[what]() or generator.choice(NODES)

    def transactional_ids(self) -> list[str]:
        """Return the ids of the workers' first threads."""
        places = sorted(
            (self.application.folder / "state" / self.topics.application).glob(
                "instance-*/process-id"
            )
        )
        return [
            f"{self.topics.application}-{place.read_text().strip()}-0"
            for place in places
        ]

    def _victim(self, generator: random.Random) -> int | None:
        """Return a worker to stop; None if no other would be left running."""
        standing = {
            number
            for number, pid in self.application.workers().items()
            if pid not in self.application.stopped
        }
        return generator.choice(sorted(standing)) if len(standing) > 1 else None

    def _kill(self, generator: random.Random, *, with_state: bool = False) -> None:
        if (victim := self._victim(generator)) is not None:
            self.faults.note(
                f"kill worker {victim}" + (", its state deleted" if with_state else "")
            )
            self.application.kill(victim, with_state=with_state)

    def _kill_with_state(self, generator: random.Random) -> None:
        self._kill(generator, with_state=True)

    def _stop_shortly(self, generator: random.Random) -> None:
        self._stop(generator, generator.uniform(0.5, 4))

    def _stop_for_long(self, generator: random.Random) -> None:
        self._stop(generator, SESSION_MS / 1000 + generator.uniform(1, 6))

    def _stop(self, generator: random.Random, seconds: float) -> None:
        if (victim := self._victim(generator)) is not None and (
            pid := self.application.freeze(victim)
        ) is not None:
            self.faults.note(f"stop worker {victim} for {seconds:.1f} s")
            self.over.wait(seconds)
            self.application.thaw(pid)
            self.faults.note(f"worker {victim} wakes")

    def _more_or_fewer(self, _: random.Random) -> None:
        if "second" in self.application.supervisors:
            self.faults.note("the second supervisor is asked to end")
            status = self.application.terminate("second")
            self.faults.note(f"the second supervisor ended with {status}")
            if status != 0:
                self.application.ended[
                    f"second, asked to end at {time.strftime('%H:%M:%S')}"
                ] = -1 if status is None else status
        else:
            self.faults.note("two more processes")
            self.application.start("second", 2)

    @contextmanager
    def chaos(self, *acts: Callable[[], None]) -> Iterator[None]:
        """Do these acts, each on a thread; at the end everything runs again."""
        hands = [
            threading.Thread(target=self._guarded, args=[act], daemon=True)
            for act in acts
        ]
        for hand in hands:
            hand.start()
        try:
            yield
        finally:
            self.over.set()
            for hand in hands:
                hand.join(300)
            for pid in list(self.application.stopped):
                self.application.thaw(pid)
            self.cluster.mend()
            self.faults.note("no more faults")

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 the main thread hears of it
            self.errors.append(error)
            self.faults.note(f"chaos itself failed: {error!r}")


def topics_of(cluster: ThreeBrokers) -> Topics:
    """Make the topics of a run; brokers set the time of each record."""
    kafka, stamped = cluster.kafka, {"message_timestamp_type": "LogAppendTime"}
    orders, customers = (
        kafka.topic("orders", SOURCE_PARTITIONS, **stamped),
        kafka.topic("customers", SOURCE_PARTITIONS),
    )
    outputs = [
        kafka.topic(name, SOURCE_PARTITIONS, **stamped)
        for name in ("counts", "cities", "dead", "told")
    ]
    return Topics(kafka.unique("chaos"), orders, customers, *outputs)


def settings_of(topics: Topics, guarantee: str, standbys: int) -> dict[str, object]:
    """Return the settings of the workers: the defaults, except those that the
    comparison needs, and with `standbys` the number of these.
    """
    of_standbys: dict[str, object] = {
        "num.standby.replicas": standbys,
        "acceptable.recovery.lag": 0,
    }
    return (of_standbys if standbys else {}) | {
        "processing.guarantee": guarantee,
        "session.timeout.ms": SESSION_MS,
        "statestore.cache.max.bytes": 0,  # every update is an output
        "deserialization.exception.handler": "dead-letter",
        "errors.dead.letter.queue.topic.name": topics.dead,
    }


def found_in(
    bootstrap: str, topics: Topics, feeder: Feeder, *, exactly: bool, calls: bool
) -> dict[str, Found]:
    """Compare all outputs with the input. `calls`: some outputs come from calls with
    state.
    """
    found = {
        "counts": examine(bootstrap, topics.counts, feeder.counts, each=exactly),
        "cities": examine(bootstrap, topics.cities, feeder.cities, each=exactly),
        "dead letters": dead_letters(bootstrap, topics, feeder),
    }
    if calls:
        found["told"] = followed(
            bootstrap, topics.told, feeder.numbers, exactly=exactly
        )
    return found


def settle(run: Run, feeder: Feeder, *, exactly: bool, calls: bool) -> dict[str, Found]:
    """Wait until no output is missing, up to a limit; then end the application, and
    return the comparison.
    """
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        found = found_in(
            run.cluster.bootstrap, run.topics, feeder, exactly=exactly, calls=calls
        )
        if not any(one.lost for one in found.values()):
            break
        time.sleep(2)
    run.application.look()
    for name in list(run.application.supervisors):
        status = run.application.terminate(name)
        if status != 0:
            run.application.ended[f"{name}, asked to end"] = (
                -1 if status is None else status
            )
    found = found_in(
        run.cluster.bootstrap, run.topics, feeder, exactly=exactly, calls=calls
    )
    for store, expected in (("counts", feeder.counts), ("cities", feeder.cities)):
        table = counts_of(
            run.cluster.bootstrap, f"{run.topics.application}-{store}-changelog"
        )
        wrong = sum(
            table.get(key, 0) != count if exactly else table.get(key, 0) < count
            for key, count in expected.items()
        )
        found[f"changelog of {store}"] = Found(len(expected), len(table), wrong, 0, 0)
    return found


def longest(run: Run, reasons: Reasons, began: float) -> list[Stall]:
    """Return the stalls, longest first, and print them with the faults and the reported
    reasons.
    """
    bootstrap = run.cluster.bootstrap
    waited = waits(
        read_topic(bootstrap, run.topics.orders),
        read_topic(bootstrap, run.topics.counts),
    )
    found = stalls(wait for wait in waited if wait.start > began)
    ordered = sorted(wait.longest_s for wait in waited)
    if ordered:
        print(
            f"\nfrom order to count: median {1000 * ordered[len(ordered) // 2]:.0f} ms, 99 of 100 within "
            f"{ordered[len(ordered) * 99 // 100]:.1f} s"
        )
    print(f"{len(found)} stalls of more than 3 s; the longest ones:")
    for stall in found[:SHOWN]:
        at = time.strftime("%H:%M:%S", time.localtime(stall.start))
        length, silent = stall.end - stall.start, reasons.silent_s(stall)
        print(
            f"  {stall.longest_s:5.1f} s  partition {stall.partition} from {at} for {length:.1f} s, {silent:.1f} s of "
            "it without a reason"
        )
        print(
            "         faults: "
            + "; ".join(run.faults.between(stall.start - BEFORE_S, stall.end))
        )
        for reason, times in reasons.of(stall).most_common(6):
            print(f"         {times:3} x  {reason[:200]}")
    return found


def report(run: Run, found: dict[str, Found], *, exactly: bool) -> list[str]:
    """Print the comparison; return the differences."""
    wrong = [f"chaos itself failed: {error!r}" for error in run.errors]
    print()
    for what, one in found.items():
        print(
            f"{what:20} expected {one.expected:7}  found {one.outputs:7}  lost {one.lost:4}  doubled {one.doubled:4}  "
            f"out of order {one.disordered:4}"
        )
        if one.lost or (exactly and not one.exactly_once):
            wrong.append(f"{what}: {one}")
    print(f"supervisors that ended by themselves: {run.application.ended or 0}")
    if run.application.ended:
        wrong.append(f"supervisors ended: {run.application.ended}")
    ends = Counter(
        line.partition("worker")[2][2:120]
        for line in run.application.said(
            r"worker \d+ (ended with status|was killed by SIGSEGV|was killed by SIGABRT)"
        )
    )
    print(f"workers that ended by an error: {ends.total()}")
    for end, times in ends.most_common(SHOWN):
        print(f"  {times} x {end}")
    return wrong


def chaos(
    folder: Path,
    minutes: float,
    guarantee: str,
    seed: int,
    *,
    calls: bool = False,
    standbys: int = 0,
    deploys: bool = False,
) -> list[str]:
    """Run the chaos test; return the differences. `calls`: orders go through a slow
    service first. `standbys`: of each task. `deploys`: workers are replaced, and nothing
    is killed.
    """
    with ExitStack() as running:
        cluster = running.enter_context(ThreeBrokers(folder))
        topics = topics_of(cluster)
        app = Path(__file__).with_name("chaos_app.py")
        environment = dict(topics.environment)
        if calls:
            environment["TEST_CALLS"] = running.enter_context(SlowService(seed)).address
        application = Application(
            app,
            cluster.bootstrap,
            folder,
            environment,
            settings_of(topics, guarantee, standbys),
        )
        running.callback(application.clean_up)
        run = Run(cluster, topics, application, seed)
        feeder = Feeder(
            cluster.bootstrap,
            topics,
            seed,
            orders=int((60 * minutes + WARM_S) * A_SECOND),
            a_second=A_SECOND,
        )
        application.start("first", 3)
        with Reasons(application.urls) as reasons:
            time.sleep(WARM_S)
            feeder.start()
            time.sleep(WARM_S)
            began = time.time()
            acts = [run.deploy] if deploys else [run.break_workers, run.break_brokers]
            with run.chaos(*acts):
                feeder.join(60 * minutes + 600)
            found = settle(run, feeder, exactly=guarantee == EXACTLY_ONCE, calls=calls)
        print(
            f"\n{guarantee}, seed {seed}, {minutes:g} minutes, {standbys} standbys, {feeder.orders} orders, "
            f"{len(run.faults.done)} notes of faults"
        )
        longest(run, reasons, began)
        return report(run, found, exactly=guarantee == EXACTLY_ONCE)


def main() -> int:
    """Run the chaos test from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--guarantee", choices=[EXACTLY_ONCE, "at_least_once"], default=EXACTLY_ONCE
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--calls", action="store_true", help="Orders go through a slow service first."
    )
    parser.add_argument(
        "--standbys", type=int, default=0, metavar="N", help="Standbys of each task."
    )
    parser.add_argument(
        "--deploys",
        action="store_true",
        help="Workers are replaced, nothing is killed.",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="Where logs and data are kept; default: a new one, which stays when something is wrong.",
    )
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs and data: {folder}", flush=True)
    wrong = chaos(
        folder,
        arguments.minutes,
        arguments.guarantee,
        arguments.seed,
        calls=arguments.calls,
        standbys=arguments.standbys,
        deploys=arguments.deploys,
    )
    print("\n" + ("\n".join(["WRONG:", *wrong]) if wrong else "all is well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
