"""The common part of all histories: time, randomness, a cluster with its group,
processes, and their faults, all from one seed.

    processes   are killed, stopped, paused and resumed, and started again
    network     requests and answers are late or lost
    brokers     end, pause and resume; leaders and coordinators move
    threads     of a process pause, one by one
    oracles     check the state after each step, and at the end, after the last fault

Invariant: the same seed, the same history.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

from coopstreams.group.coordinator_interface import Connector, Hooks, Identity, Timings
from coopstreams.log.kafka.wiring import Wiring
from tests.simulation.cluster import MachineClient, MachineCluster, MachineLog
from tests.simulation.fibers import Machine, Scheduler, StuckError
from tests.simulation.group import Group, SimCoordinator
from tests.simulation.kafka.plan import (
    Chance,
    Crash,
    Early,
    Fault,
    Kind,
    Late,
    Lost,
    NoFaults,
    Plan,
    Slow,
    Torn,
)
from tests.simulation.oracles import ViolationError
from tests.simulation.outages import Outages
from tests.simulation.stalls import Stalls

MOST_PROCESSES = 4
CALM_S = 400.0
"""The most time until everything is done, after the last fault."""
LOOK_S = 0.25
STALLS = 0.25
"""The share of histories with paused threads."""
TRANSACTION_S = 15.0
LOSSES: list[tuple[float, Fault]] = [
    (0.004, Lost()),
    (0.004, Lost(answer=True)),
    (0.002, Late(7.0)),
    (0.001, Crash()),
    (0.001, Crash(after=True)),
]
ASKED: tuple[Kind, ...] = (
    "produce", "take over", "send offsets", "commit", "abort", "end transaction", "commit offsets", "fetch offsets",
    "end offset", "start offset", "views", "list transactions", "join", "sync",
)  # fmt: skip
RATES: dict[Kind, list[tuple[float, Fault]]] = {
    **dict.fromkeys(ASKED, LOSSES),
    "heartbeat": [(0.01, Lost()), (0.01, Lost(answer=True))],
    "append": [(0.3, Early())],
    "marker": [(0.03, Late(0.5)), (0.01, Late(10.0))],
    "list transactions": [*LOSSES, (0.1, Slow(3.0)), (0.05, Slow(12.0))],
    "fetch": [(0.02, Lost()), (0.05, Torn(1)), (0.05, Torn(3))],
}
"""The usual faults: their probabilities for each kind of request."""


class Life(ABC):
    """One life of one process, on a machine of its own."""

    def __init__(self, stage: Stage[Any], number: int, life: int) -> None:
        self.number = number
        self.machine = Machine(stage.scheduler, f"p{number}.{life}")
        self.client = MachineClient(
            stage.cluster, self.machine, stage.network, stage.latency_s, stage.killed
        )
        self.ended = False
        self._group = stage.group

    @abstractmethod
    def run(self) -> None:
        """Do the work of the process's main thread."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the process to end."""

    def kill(self) -> None:
        """Kill the process."""
        self.machine.kill()
        self.ended = True

    def wiring(self) -> Wiring:
        """Return the process's clients of the cluster and the group."""
        return Wiring(
            self.machine, lambda *_: MachineLog(self.client), self._coordinator
        )

    def _coordinator(self, _: object) -> Connector:
        def make(
            name: str, identity: Identity, timings: Timings, hooks: Hooks
        ) -> SimCoordinator:
            return SimCoordinator(
                self.client, self._group, name, timings, hooks, identity
            )

        return make


P = TypeVar("P", bound=Life)


class Stage(ABC, Generic[P]):
    """A cluster, a group, and processes. `group`: its name."""

    events_that_happen: ClassVar[Sequence[str]]
    """Events, each as often as its weight."""

    def __init__(self, seed: int, group: str, *, exactly_once: bool) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.exactly_once = exactly_once
        self.events: list[str] = []
        self.scheduler = Scheduler(Random(self.random.getrandbits(64)))
        self.group = Group(self.scheduler, lambda: self.cluster.brokers.answers(group))
        self.latency_s = self.random.choice((0.001, 0.005, 0.02))
        self.network = Random(self.random.getrandbits(64))
        self.cluster = MachineCluster(
            self.scheduler,
            self._plan(),
            self.group.check,
            transaction_timeout_s=TRANSACTION_S,
        )
        self.outages = Outages(
            self.cluster,
            self.group,
            group,
            self.scheduler,
            Random(self.random.getrandbits(64)),
            self.say,
            self._stir,
        )
        self.stalls: Stalls | None = None
        self.processes: list[P] = []
        self.lives: dict[int, int] = {}

    def stand_ins(self) -> list[tuple[Any, str, object]]:
        """Return the replacements while it runs: module, name, and replacement."""
        return []

    def run(self, steps: int, only: Collection[int] | None = None) -> None:
        """Cause this many events, then let everything end.

        Each step has a random generator of its own, so that others can be left out.
        `only`: the steps that are taken, by number from 1 on; 0: requests meet faults
        from the beginning. None: all.

        Raises:
            ViolationError: an oracle is violated.
        """
        try:
            self._run(steps, range(steps + 1) if only is None else only)
        except AssertionError as wrong:
            if isinstance(wrong, ViolationError):
                raise
            oracle = "turns" if isinstance(wrong, StuckError) else "errors"
            raise ViolationError(oracle, f"{type(wrong).__name__}: {wrong}") from wrong

    def _run(self, steps: int, only: Collection[int]) -> None:
        planned = [
            (
                self.random.expovariate(1.0),
                self.random.choice(self.events_that_happen),
                Random(self.random.getrandbits(64)),
            )
            for _ in range(steps)
        ]
        if 0 not in only:
            self.cluster.plan = NoFaults()
        for number in range(self.random.choice((1, 2, 3))):
            self.start(number)
        for number, (after_s, event, random) in enumerate(planned, 1):
            self._let(after_s)
            if number in only:
                self.random = random
                self._do(event)
        self._calm_down()

    def close(self) -> None:
        """Release everything."""
        self.scheduler.close([process.machine for process in self.processes])

    # --- what happens ---

    def start(self, number: int) -> None:
        """Start a new life of a process."""
        self.lives[number] = life = self.lives.get(number, 0) + 1
        self.say(f"p{number} begins life {life}")
        process = self._born(number, life)
        self.processes.append(process)
        process.machine.thread(process.run, "main").start()

    @abstractmethod
    def _born(self, number: int, life: int) -> P:
        """Return a new life of a process, which has not started."""

    @abstractmethod
    def produce(self, count: int) -> None:
        """Write records."""

    @property
    def living(self) -> list[P]:
        """The processes that have not ended."""
        return [process for process in self.processes if not process.ended]

    def _down(self) -> list[int]:
        return [
            number
            for number in range(MOST_PROCESSES)
            if all(process.number != number for process in self.living)
        ]

    def _stir(self) -> None:
        self._do(self.random.choice(("start", "stop")))

    def _do(self, event: str) -> None:
        living = self.living
        awake = [process for process in living if not process.machine.paused]
        asleep = [process for process in living if process.machine.paused]
        match event:
            case "produce":
                self.produce(self.random.randint(1, 20))
            case "start" if len(living) < MOST_PROCESSES:
                self.start(self.random.choice(self._down()))
            case "kill" if awake:
                self._strike(
                    "is killed",
                    self.random.choice(living),
                    lambda process: process.kill(),
                )
            case "stop" if awake:
                self._strike(
                    "is asked to stop",
                    self.random.choice(awake),
                    lambda process: process.stop(),
                )
            case "pause" if awake:
                self._strike(
                    "stands still",
                    self.random.choice(awake),
                    # a resumed client sends its pending records: only transactions
                    # refuse them
                    lambda process: process.machine.pause(
                        suspended=self.random.random() < 0.5 and self.exactly_once
                    ),
                )
            case "resume" if asleep:
                self._strike(
                    "goes on",
                    self.random.choice(asleep),
                    lambda process: process.machine.resume(),
                )
                self._check_those_who_wake()
            case "rest":
                self._let(self.random.choice((0.01, 3.0, 15.0)))
            case "plan":
                self.cluster.plan = self._plan()
            case "broker":
                self.outages.happen()
            case _:
                self._do_more(event, living, awake)

    def _do_more(self, event: str, living: Sequence[P], awake: Sequence[P]) -> None:
        """Cause an event of this kind of history."""

    def _check_those_who_wake(self) -> None:
        """Check the processes that resume."""

    def _strike(self, what: str, process: P, how: Callable[[P], object]) -> None:
        self.say(f"{process.machine.name} {what}")
        how(process)

    def _begin_stalls(self) -> None:
        """Pause threads, in some histories."""
        if (drawn := Random(f"{self.seed} stalls")).random() < STALLS:
            self.stalls = Stalls(
                self.scheduler,
                drawn,
                lambda: [process.machine for process in self.living],
                self.say,
            )

    def _calm_down(self) -> None:
        """Cause no further faults: everything must be done, and right, after a while."""
        self.say("nothing goes wrong any more")
        self.cluster.plan = NoFaults()
        self.outages.end()
        if self.stalls is not None:
            self.stalls.end()
        self._end_the_rest()
        for process in self.living:
            if process.machine.paused:
                process.machine.resume()
            self._let_go_on(process)
        if not self.living:
            self.start(0)
        # write the last records after the others are processed: joins emit unmatched
        # ones once a second
        self._let(20.0 if self.stalls is None else 20.0 + self.stalls.left_s)
        self.produce(5)
        give_up = self.scheduler.now + CALM_S
        while found := self._wrong(whole=True):
            if self.scheduler.now > give_up:
                raise ViolationError(
                    found[0],
                    f"after {CALM_S:.0f} s of calm: {'; '.join(found[1])}. {self._reasons()}",
                )
            self._let(2.0)
            if not self.living:
                self.start(0)

    def _end_the_rest(self) -> None:
        """End the other faults."""

    def _let_go_on(self, process: P) -> None:
        """Resume a process that was paused by a user."""

    def _let(self, seconds: float) -> None:
        """Let time pass, and check the oracles from time to time."""
        until = self.scheduler.now + seconds
        while self.scheduler.now < until:
            self.scheduler.run(min(until, self.scheduler.now + LOOK_S))
            for fiber, error in self.scheduler.errors:
                raise ViolationError(
                    "errors",
                    f"{fiber.machine.name} {fiber.name} ended: {type(error).__name__}: {error}",
                ) from error
            if found := self._wrong(whole=False):
                self._check(*found)

    def _plan(self) -> Plan:
        """Set the faults of requests from now on."""
        scale = self.random.choice((0.0, 0.3, 1.0, 3.0))
        self.say(f"{scale:g} times the usual faults of requests")
        rates: dict[Kind, list[tuple[float, Fault]]] = {
            kind: [(rate * scale, fault) for rate, fault in faults]
            for kind, faults in RATES.items()
        }
        if (
            not self.exactly_once
        ):  # a late record of a writer that has given up would overwrite later ones
            rates["produce"] = [
                (rate, Lost() if isinstance(of, Late) else of)
                for rate, of in rates["produce"]
            ]
        return Chance(Random(self.random.getrandbits(64)), rates)

    def killed(self, machine: Machine, request: str) -> None:
        """Note that a process has ended at one of its requests."""
        process = next(
            process for process in self.processes if process.machine is machine
        )
        self._strike(
            f"ends at a request ({request})", process, lambda process: process.kill()
        )

    # --- oracles ---

    def _wrong(self, *, whole: bool) -> tuple[str, list[str]] | None:
        """Return the first violated oracle, and why; `whole`: those of the end, too."""
        return next(
            (
                (oracle, wrong)
                for oracle, wrong in self._told_by_oracles(whole=whole)
                if wrong
            ),
            None,
        )

    @abstractmethod
    def _told_by_oracles(self, *, whole: bool) -> Iterator[tuple[str, list[str]]]:
        """Yield the violations, by oracle."""

    @abstractmethod
    def _reasons(self) -> str:
        """Return what each process waits for."""

    @staticmethod
    def _check(oracle: str, wrong: list[str]) -> None:
        if wrong:
            raise ViolationError(oracle, "; ".join(wrong))

    def say(self, event: str) -> None:
        """Note an event."""
        self.events.append(f"{self.scheduler.now:9.3f}  {event}")
