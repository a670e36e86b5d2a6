"""A whole group without a broker: real instances on simulated machines, a cluster in memory, and what goes wrong, all by one seed.

    processes   each a real `Instance` with its threads; killed, stopped and woken, started anew on the same disk
    network     requests and answers that are late or lost
    oracles     what must hold after each step, and at the end, when nothing goes wrong any more

Invariant: the same seed, the same history.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

from coopstreams import serdes
from coopstreams.config import Config
from coopstreams.group.joining import Connector, Hooks, Timings
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory_reader import MemoryReader
from coopstreams.log.memory_writer import MemoryWriter
from coopstreams.state.views import StoreView
from coopstreams.tasks.instance import Instance
from coopstreams.tasks.lifecycle import Lifecycle
from coopstreams.tasks.parts import Parts
from coopstreams.tasks.wiring import Wiring
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import KeyRange, key_group, key_hash
from tests.simulation import disk
from tests.simulation.cluster import MachineClient, MachineCluster, MachineLog, decided
from tests.simulation.fibers import Machine, Scheduler
from tests.simulation.group import Group, SimCoordinator
from tests.simulation.kafka.plan import Chance, Crash, Early, Fault, Kind, Late, Lost, NoFaults, Plan, Torn
from tests.simulation.programs import APPLICATION, Counts, Program, Rows, written

MOST_PROCESSES = 4
OUT = TopicPartition("out", 0)
CALM_S = 400.0
"""How long everything may take to be done once nothing goes wrong any more."""
LOOK_S = 0.25
STATES = 8
"""Databases are looked at each so many times."""
LOSSES: list[tuple[float, Fault]] = [(0.004, Lost()), (0.004, Lost(answer=True)), (0.002, Late(7.0)), (0.001, Crash()), (0.001, Crash(after=True))]
ASKED: tuple[Kind, ...] = (
    "produce", "take over", "send offsets", "commit", "abort", "end transaction", "commit offsets", "fetch offsets",
    "end offset", "start offset", "list transactions", "join", "sync",
)  # fmt: skip
RATES: dict[Kind, list[tuple[float, Fault]]] = {
    **dict.fromkeys(ASKED, LOSSES),
    "heartbeat": [(0.01, Lost()), (0.01, Lost(answer=True))],
    "append": [(0.3, Early())],
    "marker": [(0.03, Late(0.5)), (0.01, Late(10.0))],
    "fetch": [(0.02, Lost()), (0.05, Torn(1)), (0.05, Torn(3))],
}
"""The usual faults: how likely each is for a request of a kind."""


class ViolationError(AssertionError):
    """An oracle does not hold."""


class Process:
    """One life of one process."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world = world
        self.number = number
        self.machine = Machine(world.scheduler, f"p{number}.{life}")
        self.client = MachineClient(world.cluster, self.machine, world.network, world.latency_s, world.killed)
        self.instance: Instance | None = None
        self.parts: Parts | None = None
        self.ended = False
        self.stopping = False
        self.machine.thread(self._run, "main").start()

    def stop(self) -> None:
        """Ask it to drain and end."""
        self.stopping = True
        if self.instance is not None:
            self.instance.stop()

    def kill(self) -> None:
        """End it at once; its disk stays."""
        self.machine.kill()
        self.ended = True
        if self.parts is not None:
            self.parts.directory.close()
        (self.world.folder / APPLICATION / f"instance-{self.number}" / "lock").unlink(missing_ok=True)  # as the system does it

    def _run(self) -> None:
        world = self.world
        wiring = Wiring(self.machine, lambda *_: MachineLog(self.client), self._coordinator)
        try:
            with Parts.build(world.program.build(), world.config(self.number), wiring) as self.parts:
                self.instance = Instance(self.parts, Lifecycle())
                if not self.stopping:
                    self.instance.run()
        except LogError as error:
            if not error.retryable or (self.instance is not None and self.instance.begun):
                raise
            world.say(f"{self.machine.name} has not started: {error}")
        self.ended = True

    def _coordinator(self, _: object) -> Connector:
        def make(name: str, _: str | None, timings: Timings, hooks: Hooks, predecessor: str) -> SimCoordinator:
            if predecessor:
                self.world.group.leave(predecessor)
            return SimCoordinator(self.client, self.world.group, name, timings, hooks)

        return make


class World:
    """Everything there is."""

    def __init__(self, seed: int, program: Program, *, exactly_once: bool) -> None:
        self.random = Random(seed)
        self.program, self.exactly_once = program, exactly_once
        self.events: list[str] = []
        self.scheduler = Scheduler(Random(self.random.getrandbits(64)))
        self.group = Group(self.scheduler)
        self.latency_s = self.random.choice((0.001, 0.005, 0.02))
        self.network = Random(self.random.getrandbits(64))
        self.cluster = MachineCluster(self.scheduler, self._plan(), self.group.check, transaction_timeout_s=15.0)
        self.folder = Path(tempfile.mkdtemp(prefix="coopstreams-simulation-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self._name_processes()
        self.written = 0
        self.counts = Counts(program, exactly_once)
        self.looks = 0
        self.processes: list[Process] = []
        self.lives: dict[int, int] = {}
        self.partitions = self.random.choice((1, 1, 2))
        self.threads = self.random.choice((1, 1, 2))
        self.ranges = self.random.choice((1, 2, 4))
        for spec in (TopicSpec("in", self.partitions), TopicSpec("out", 1)):
            self.cluster.state.create_topic(spec)
        self._reader = MemoryReader(self.cluster.state, committed_only=True)
        self._reader.assign({OUT: Position(0)})
        self._writer = MemoryWriter(self.cluster.state, None)

    def config(self, number: int) -> Config:
        """Return the configuration of a process."""
        return Config.of(
            {
                "bootstrap.servers": "nowhere:1",
                "state.dir": str(self.folder),
                "instance": number,
                "default.dsl.store": "tests.simulation.disk:Disk",
                "num.stream.threads": self.threads,
                "ranges.per.partition": self.ranges,
                "processing.guarantee": "exactly_once_v2" if self.exactly_once else "at_least_once",
                "statestore.cache.max.bytes": 0,
                "http.listen": "",
                "transaction.timeout.ms": 15_000,
            },
            APPLICATION,
        )

    def run(self, steps: int) -> None:
        """Let so many things happen, then let everything come to an end.

        Raises:
            ViolationError: an oracle does not hold.
        """
        try:
            self._run(steps)
        except AssertionError as wrong:
            if isinstance(wrong, ViolationError):
                raise
            raise ViolationError(f"{type(wrong).__name__}: {wrong}") from wrong

    def _run(self, steps: int) -> None:
        for number in range(self.random.choice((1, 2, 3))):
            self.start(number)
        for _ in range(steps):
            self._let(self.random.expovariate(1.0))
            self._happen()
        self._calm_down()

    def close(self) -> None:
        """Forget everything."""
        self.scheduler.close([process.machine for process in self.processes])
        for process in self.processes:
            with suppress(Exception):
                if process.parts is not None:
                    process.parts.directory.close()
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
        records = [written(self.random, self.written + at) for at in range(count)]
        keys, values = [key for key, _ in records], [value for _, value in records]
        self._writer.append("in", keys, values, [int(self.scheduler.now * 1000) + 1] * count)
        self.written += count
        self.counts.write(keys)

    @property
    def living(self) -> list[Process]:
        """The processes that have not ended."""
        return [process for process in self.processes if not process.ended]

    def _happen(self) -> None:
        event = self.random.choice(("produce", "produce", "produce", "start", "kill", "stop", "pause", "resume", "rest", "rest", "plan"))
        living = self.living
        awake = [process for process in living if not process.machine.paused]
        asleep = [process for process in living if process.machine.paused]
        match event:
            case "produce":
                self.produce(self.random.randint(1, 20))
            case "start" if len(living) < MOST_PROCESSES:
                free = [number for number in range(MOST_PROCESSES) if all(process.number != number for process in living)]
                self.start(self.random.choice(free))
            case "kill" if awake:
                self._strike("is killed", self.random.choice(living), Process.kill)
            case "stop" if awake:
                self._strike("is asked to stop", self.random.choice(awake), Process.stop)
            case "pause" if awake:
                self._strike("stands still", self.random.choice(awake), lambda process: process.machine.pause())
            case "resume" if asleep:
                self._strike("goes on", self.random.choice(asleep), lambda process: process.machine.resume())
            case "rest":
                self._let(self.random.choice((0.01, 3.0, 15.0)))
            case "plan":
                self.cluster.plan = self._plan()
            case _:
                pass

    def _strike(self, what: str, process: Process, how: Callable[[Process], object]) -> None:
        self.say(f"{process.machine.name} {what}")
        how(process)

    def _calm_down(self) -> None:
        """Nothing goes wrong any more: everything must be done, and be right, after a while."""
        self.say("nothing goes wrong any more")
        self.cluster.plan = NoFaults()
        for process in self.living:
            if process.machine.paused:
                process.machine.resume()
        self._let(20.0)
        if not self.living:
            self.start(0)
        self.produce(5)
        give_up = self.scheduler.now + CALM_S
        while wrong := self._wrong(whole=True):
            if self.scheduler.now > give_up:
                raise ViolationError(f"after {CALM_S:.0f} s of calm: {'; '.join(wrong)}. {self._reasons()}")
            self._let(2.0)
            if not self.living:
                self.start(0)

    def _let(self, seconds: float) -> None:
        """Let time pass, and look now and then whether everything holds."""
        until = self.scheduler.now + seconds
        while self.scheduler.now < until:
            self.scheduler.run(min(until, self.scheduler.now + LOOK_S))
            for fiber, error in self.scheduler.errors:
                raise ViolationError(f"{fiber.machine.name} {fiber.name} ended: {type(error).__name__}: {error}") from error
            if wrong := self._wrong(whole=False):
                raise ViolationError("; ".join(wrong))

    def _plan(self) -> Plan:
        """What requests meet from now on."""
        scale = self.random.choice((0.0, 0.3, 1.0, 3.0))
        self.say(f"{scale:g} times the usual faults of requests")
        rates: dict[Kind, list[tuple[float, Fault]]] = {kind: [(rate * scale, fault) for rate, fault in faults] for kind, faults in RATES.items()}
        return Chance(Random(self.random.getrandbits(64)), rates)

    def killed(self, machine: Machine, request: str) -> None:
        """A process has ended at one of its requests."""
        process = next(process for process in self.processes if process.machine is machine)
        self._strike(f"ends at a request ({request})", process, Process.kill)

    def _name_processes(self) -> None:
        """Transactional ids are made of what is in this file; by itself it would be another one each time."""
        for number in range(MOST_PROCESSES):
            folder = self.folder / APPLICATION / f"instance-{number}"
            folder.mkdir(parents=True)
            (folder / "process-id").write_text(str(UUID(int=self.random.getrandbits(128))))

    # --- oracles ---

    def _wrong(self, *, whole: bool) -> list[str]:
        self.looks += 1
        wrong = self.counts.tell(self._told()) or (self.counts.lacking() if whole else [])
        if wrong or not self.exactly_once or not (whole or self.looks % STATES == 0) or not decided(self.cluster, OUT):
            return wrong
        return self.counts.wrong_states(self._states(running=whole), whole=whole)

    def _states(self, *, running: bool) -> Iterator[tuple[str, bytes, int]]:
        """Yield each count in a database: whose, the key, the count. `running`: of tasks that run."""
        for process in self.living:
            if process.parts is None or process.instance is None:
                continue
            for (subtopology, partition), opened in list(process.parts.directory._open.items()):
                for spec in process.parts.subtopology(subtopology).stores:
                    tasks = [task for task in process.instance.tasks if (task.subtopology, task.partition) == (subtopology, partition)]
                    for row in StoreView(opened.database, spec, [task.range for task in tasks] if running else self._written_to()).all():
                        yield f"{process.machine.name} {subtopology}_{partition}", row.key, serdes.int64.decode(row.value)

    def _written_to(self) -> list[KeyRange]:
        """Return the parts of the hash space in which there can be anything."""
        groups = {key_group(key_hash(key)) for key in self.counts.written}
        return [KeyRange.of_groups(group, group) for group in sorted(groups)]

    def _told(self) -> Rows:
        return [row for run in self._reader.fetch(1 << 20, 0) for row in zip(run.columns.keys, run.columns.values, strict=True)]

    def _reasons(self) -> str:
        said = []
        for process in self.living:
            if process.instance is None:
                said.append(f"{process.machine.name} has not started")
                continue
            states = {str(task): state.value for task, state in process.instance.roster.states.items()}
            waits = {str(task): process.instance.opener.waits_for(task).why for task in process.instance.roster.states}
            said.append(f"{process.machine.name}: {states} {waits} {process.instance.member.problem}")
        return "; ".join(said)

    def say(self, event: str) -> None:
        """Take note of what happens."""
        self.events.append(f"{self.scheduler.now:9.3f}  {event}")
