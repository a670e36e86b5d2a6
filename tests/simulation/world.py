"""A whole group without a broker: real instances on simulated machines, a cluster in memory, and what goes wrong, all
by one seed.

    processes   each a real `Instance` with its threads; killed, stopped and woken, started anew on the same disk
    network     requests and answers that are late or lost
    hosts       disks that are lost, full or from an earlier time, clocks that jump, settings that change
    brokers     end, stand still and wake, lead and coordinate in turn
    threads     of a process stand still, one by one
    snapshots   are rebuilt, damaged, deleted and published again
    queries     by key, to anybody, through the router
    oracles     what must hold after each step, and at the end, when nothing goes wrong any more

Invariant: the same seed, the same history.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

from coopstreams import Topology
from coopstreams.common.config import Config
from coopstreams.instance.serving import Serving
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.state.views import StoredRow
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE
from tests.simulation import disk
from tests.simulation.answers import Rows
from tests.simulation.cluster import MachineClient, MachineCluster, MachineLog
from tests.simulation.fibers import EPOCH_MS, Machine, Scheduler, StuckError
from tests.simulation.group import Group
from tests.simulation.hosts import Hosts
from tests.simulation.kafka.plan import Chance, Crash, Early, Fault, Kind, Late, Lost, NoFaults, Plan, Slow, Torn
from tests.simulation.oracles import Changelogs, Part, ViolationError
from tests.simulation.outages import Outages
from tests.simulation.process import Process
from tests.simulation.programs import APPLICATION, Program
from tests.simulation.queries import Queries
from tests.simulation.service import service
from tests.simulation.shelf import Shelf
from tests.simulation.stalls import Stalls
from tests.simulation.upkeep import Upkeep

MOST_PROCESSES = 4
OUT = TopicPartition("out", 0)
CALM_S = 400.0
"""How long everything may take to be done once nothing goes wrong any more."""
LOOK_S = 0.25
SHELVES = 0.25
"""The part of histories with snapshots."""
STALLS = 0.25
"""The part of histories in which threads stand still."""
TRANSACTION_S = 15.0
DECIDED_S = 16.0
"""After so long without a process, requests of it that are late have arrived, and its transactions have timed out."""
EVENTS = (
    "produce",
    "produce",
    "produce",
    "start",
    "kill",
    "stop",
    "pause",
    "resume",
    "rest",
    "rest",
    "plan",
    "broker",
    "broker",
    "host",
    "upkeep",
    "outage",
    "change",
)
"""What happens, each as often as it is named."""
STATES = 8
"""Databases are looked at each so many times."""
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
"""The usual faults: how likely each is for a request of a kind."""


@cache
def built(build: Callable[..., Topology], **version: bool) -> Topology:
    """Return what it builds, once: all processes of a version run the same."""
    return build(**version)


class World:
    """Everything there is."""

    def __init__(self, seed: int, program: Program, *, exactly_once: bool) -> None:
        self.random = Random(seed)
        self.program, self.exactly_once = program, exactly_once
        self.events: list[str] = []
        self.scheduler = Scheduler(Random(self.random.getrandbits(64)))
        self.group = Group(self.scheduler, lambda: self.cluster.brokers.answers(APPLICATION))
        self.latency_s = self.random.choice((0.001, 0.005, 0.02))
        self.network = Random(self.random.getrandbits(64))
        service.begin(Random(seed))  # not drawn: histories without calls would change
        self.cluster = MachineCluster(
            self.scheduler, self._plan(), self.group.check, transaction_timeout_s=TRANSACTION_S
        )
        self.outages = Outages(
            self.cluster,
            self.group,
            APPLICATION,
            self.scheduler,
            Random(self.random.getrandbits(64)),
            self.say,
            self._stir,
        )
        self.folder = Path(
            tempfile.mkdtemp(prefix="coopstreams-simulation-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self.hosts = Hosts(MOST_PROCESSES, self.folder_of, Random(self.random.getrandbits(64)), self.say)
        self.written = 0
        self.looks = 0
        self.processes: list[Process] = []
        self.lives: dict[int, int] = {}
        self.partitions = self.random.choice((1, 1, 2))
        self.topologies = {newer: built(program.topology, newer=newer) for newer in (False, True)}
        for topic in (*self.topologies[True].source_topics, "out", "elsewhere"):
            self.cluster.state.create_topic(TopicSpec(topic, 1 if topic == "out" else self.partitions))
        self.answer = program.answer(
            built(program.answering), program.driven, self.partitions, exactly_once=exactly_once
        )
        self.changelogs = Changelogs(self.cluster.state, APPLICATION)
        self.upkeep = Upkeep(
            self.cluster,
            APPLICATION,
            self.scheduler,
            Random(self.random.getrandbits(64)),
            self.say,
            self.changelogs,
        )
        self.queries: Queries | None = None
        self.shelf: Shelf | None = None
        if exactly_once and (drawn := Random(f"{seed} queries")).random() < 0.5:
            self.queries = Queries(
                self.scheduler, drawn, self.latency_s, APPLICATION, self.changelogs, lambda: self.living
            )
        if (drawn := Random(f"{seed} snapshots")).random() < SHELVES:
            self.shelf = Shelf(
                self.scheduler,
                drawn,
                self.folder / "shelf",
                self.topologies,
                lambda machine: MachineLog(
                    MachineClient(self.cluster, machine, self.network, self.latency_s, lambda *_: machine.kill())
                ),
                self.say,
            )
        self.stalls: Stalls | None = None
        if (drawn := Random(f"{seed} stalls")).random() < STALLS:
            self.stalls = Stalls(self.scheduler, drawn, lambda: [process.machine for process in self.living], self.say)
        self._reader = MemoryReader(self.cluster.state, committed_only=True)
        self._reader.assign({OUT: Position(0)})
        self._told_to = 0
        """How far results have been looked at."""
        self._writer = MemoryWriter(self.cluster.state, None)

    def config(self, number: int) -> Config:
        """Return the configuration of a process."""
        return Config.of(
            {
                "statestore.cache.max.bytes": 0,
                **self.program.settings,
                "bootstrap.servers": "nowhere:1",
                "state.dir": str(self.folder),
                "instance": number,
                "default.dsl.store": "tests.simulation.disk:Disk",
                "num.stream.threads": self.hosts.threads,
                "ranges.per.partition": self.hosts.ranges,
                "processing.guarantee": "exactly_once_v2" if self.exactly_once else "at_least_once",
                "http.listen": "",
                **({} if self.shelf is None else {"snapshots.dir": self.shelf.url}),
                "transaction.timeout.ms": int(1000 * TRANSACTION_S),
            },
            APPLICATION,
        )

    def run(self, steps: int, only: Collection[int] | None = None) -> None:
        """Let so many things happen, then let everything come to an end.

        Each step draws from a generator of its own, so that others can be left out. `only`: the steps that are taken,
        by number from 1 on; 0: requests meet faults from the beginning. None: all.

        Raises:
            ViolationError: an oracle does not hold.
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
            (self.random.expovariate(1.0), self.random.choice(EVENTS), Random(self.random.getrandbits(64)))
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
        """Forget everything."""
        self.answer.close()
        operators = [] if self.shelf is None else self.shelf.machines
        self.scheduler.close([*(process.machine for process in self.processes), *operators])
        for process in self.processes:
            with suppress(Exception):
                if process.components is not None:
                    process.components.directory.close()
        disk.wipe()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what happens ---

    def start(self, number: int) -> None:
        """Begin a new life of a process."""
        self.lives[number] = life = self.lives.get(number, 0) + 1
        self.say(f"p{number} begins life {life}")
        self.processes.append(Process(self, number, life))

    def produce(self, count: int) -> None:
        """Write records."""
        now_ms = EPOCH_MS + int(self.scheduler.now * 1000)
        records = [self.program.write(self.random, self.written + at, now_ms) for at in range(count)]
        for topic, key, value, timestamp in records:
            self._writer.append(topic, [key], [value], [timestamp])
        self.written += count
        self.answer.write(records)
        service.written(records)

    @property
    def living(self) -> list[Process]:
        """The processes that have not ended."""
        return [process for process in self.processes if not process.ended]

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
                self._strike("is killed", self.random.choice(living), Process.kill)
            case "stop" if awake:
                self._strike("is asked to stop", self.random.choice(awake), Process.stop)
            case "pause" if awake:
                self._strike(
                    "stands still",
                    self.random.choice(awake),
                    # a suspended client sends when it wakes what was under way: only transactions refuse that
                    lambda process: process.machine.pause(suspended=self.random.random() < 0.5 and self.exactly_once),
                )
            case "resume" if asleep:
                self._strike("goes on", self.random.choice(asleep), lambda process: process.machine.resume())
                self._check("answers", self._wrong_answers())
            case "rest":
                self._let(self.random.choice((0.01, 3.0, 15.0)))
            case "plan":
                self.cluster.plan = self._plan()
            case "broker":
                self.outages.happen()
            case "upkeep":
                self.upkeep.happen()
            case "outage" if living:
                self._have_nobody()
            case "change" if awake:
                change = self.random.choice((Process.add_thread, Process.remove_thread, Process.hold, Process.go_on))
                self._strike(f"is told: {change.__name__}", self.random.choice(awake), change)
            case "host":
                self.hosts.happen({process.number: process.machine for process in living}, self._down())

    def restore_positions(self, told: Process) -> bool:
        """Have an operator end all but who told him, and restore the offsets: brokers refuse it beside members."""
        for process in self.living if self.upkeep.missing else ():
            if process is not told:
                self._strike("is killed", process, Process.kill)
        return self.upkeep.give_back()

    def _have_nobody(self) -> None:
        """Have all processes end, something befall topics while none runs, and one begin."""
        for process in self.living:
            if process.machine.paused or self.random.random() < 0.5:
                self._strike("is killed", process, Process.kill)
            else:
                self._strike("is asked to stop", process, Process.stop)
        self._let(DECIDED_S)
        for process in self.living:
            self._strike("is killed", process, Process.kill)
        self._let(DECIDED_S)
        self.upkeep.happen_alone()
        self.start(self.random.choice(self._down()))

    def _down(self) -> list[int]:
        return [number for number in range(MOST_PROCESSES) if all(process.number != number for process in self.living)]

    def _strike(self, what: str, process: Process, how: Callable[[Process], object]) -> None:
        self.say(f"{process.machine.name} {what}")
        how(process)

    def _calm_down(self) -> None:
        """Nothing goes wrong any more: everything must be done, and be right, after a while."""
        self.say("nothing goes wrong any more")
        self.cluster.plan = NoFaults()
        self.outages.end()
        self.upkeep.end()
        self.hosts.end()
        for each in (self.shelf, self.stalls):
            if each is not None:
                each.end()
        for process in self.living:
            if process.machine.paused:
                process.machine.resume()
            process.go_on()
        if not self.living:
            self.start(0)
        # the last records come when others are done: joins say once a second who met none
        self._let(20.0 if self.stalls is None else 20.0 + self.stalls.left_s)
        self.produce(5)
        give_up = self.scheduler.now + CALM_S
        while found := self._wrong(whole=True):
            if self.scheduler.now > give_up:
                raise ViolationError(
                    found[0], f"after {CALM_S:.0f} s of calm: {'; '.join(found[1])}. {self._reasons()}"
                )
            self._let(2.0)
            if not self.living:
                self.start(0)

    def _let(self, seconds: float) -> None:
        """Let time pass, and look now and then whether everything holds."""
        until = self.scheduler.now + seconds
        while self.scheduler.now < until:
            self.scheduler.run(min(until, self.scheduler.now + LOOK_S))
            for fiber, error in self.scheduler.errors:
                raise ViolationError(
                    "errors", f"{fiber.machine.name} {fiber.name} ended: {type(error).__name__}: {error}"
                ) from error
            if found := self._wrong(whole=False):
                self._check(*found)

    def _plan(self) -> Plan:
        """What requests meet from now on."""
        scale = self.random.choice((0.0, 0.3, 1.0, 3.0))
        self.say(f"{scale:g} times the usual faults of requests")
        rates: dict[Kind, list[tuple[float, Fault]]] = {
            kind: [(rate * scale, fault) for rate, fault in faults] for kind, faults in RATES.items()
        }
        if not self.exactly_once:  # what arrives when its writer has given up would cover what a later one has written
            rates["produce"] = [(rate, Lost() if isinstance(of, Late) else of) for rate, of in rates["produce"]]
        return Chance(Random(self.random.getrandbits(64)), rates)

    def killed(self, machine: Machine, request: str) -> None:
        """A process has ended at one of its requests."""
        process = next(process for process in self.processes if process.machine is machine)
        self._strike(f"ends at a request ({request})", process, Process.kill)

    def folder_of(self, number: int) -> Path:
        return self.folder / APPLICATION / f"instance-{number}"

    # --- oracles ---

    def _wrong(self, *, whole: bool) -> tuple[str, list[str]] | None:
        """Return the first oracle that does not hold, and why; those of the end are asked if `whole`."""
        self.looks += 1
        return next(((oracle, wrong) for oracle, wrong in self._told_by_oracles(whole=whole) if wrong), None)

    def _told_by_oracles(self, *, whole: bool) -> Iterator[tuple[str, list[str]]]:
        yield "members", self.group.wrong
        yield "calls", service.wrong
        yield "results", self.answer.tell(self._told())
        if self.queries is not None:
            yield "queries", self.queries.wrong
        if whole:
            yield "progress", self.answer.lacking()
        if not self.exactly_once or not (whole or self.looks % STATES == 0):
            return
        parts = self._components(running=False)
        yield "rows", [problem for part in parts for problem in self.changelogs.wrong(part)]
        if whole:
            yield "stores", self._wrong_rows()
        yield "answers", self._wrong_answers()

    def _wrong_answers(self) -> list[str]:
        """Ask everybody who answers; return what is wrong."""
        components = self._components(running=True, owned=True) if self.exactly_once else ()
        return [problem for part in components for problem in self.changelogs.wrong_answers(part)]

    @staticmethod
    def _check(oracle: str, wrong: list[str]) -> None:
        if wrong:
            raise ViolationError(oracle, "; ".join(wrong))

    def _wrong_rows(self) -> list[str]:
        """Return what is wrong with what running tasks have in their stores: at the end it is what one task has."""
        kept: dict[str, list[StoredRow]] = {store: [] for store in self.program.stores}
        for part in self._components(running=True):
            if part.spec.name in kept:
                kept[part.spec.name] += part.rows()
        return [
            f"store {store} has {sorted(set(rows) - set(expected))}, and not {sorted(set(expected) - set(rows))}"
            for store, rows in kept.items()
            if sorted(rows) != (expected := self.answer.rows(store))
        ]

    def _components(self, *, running: bool, owned: bool = False) -> Iterator[Part]:
        """Yield each store in a database. `running`: of tasks that run; `owned`: of which queries are answered."""
        for process in self.living:
            if process.components is None or process.instance is None or (owned and process.machine.paused):
                continue
            serving = process.serving or Serving(process.instance, {})
            for (subtopology, partition), opened in list(process.components.directory._open.items()):
                ranges = [
                    id_.key_range
                    for id_, task in process.instance.tasks.items()
                    if (id_.subtopology, id_.partition) == (subtopology, partition)
                    and (not owned or serving.owns(task))
                ]
                for spec in process.components.subtopology(subtopology).stores:
                    yield Part(
                        f"{process.machine.name} {subtopology}_{partition}",
                        partition,
                        opened.database,
                        spec,
                        ranges if running else [WHOLE],
                    )

    def _told(self) -> Rows:
        """Return the results that are committed since the last time."""
        if (end := self.cluster.state.partition(OUT).stable_end) == self._told_to:
            return ()
        self._told_to = end
        rows = [
            row
            for run in self._reader.fetch(1 << 20, 0)
            for row in zip(run.columns.keys, run.columns.values, strict=True)
        ]
        return [(key, value) for key, value in rows if key is not None]

    def _reasons(self) -> str:
        said = []
        for process in self.living:
            if process.instance is None:
                said.append(f"{process.machine.name} has not started")
                continue
            states = {str(task): state.value for task, state in process.instance.registry.states.items()}
            waits = {
                str(task): process.instance.opener.waits_for(task).why for task in process.instance.registry.states
            }
            said.append(f"{process.machine.name}: {states} {waits} {process.instance.member.problem}")
        return "; ".join(said)

    def say(self, event: str) -> None:
        """Take note of what happens."""
        self.events.append(f"{self.scheduler.now:9.3f}  {event}")
