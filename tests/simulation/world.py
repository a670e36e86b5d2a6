"""A whole group without a broker: real instances on simulated machines, a cluster in memory, and what goes wrong, all by one seed.

    processes   each a real `Instance` with its threads; killed, stopped and woken, started anew on the same disk or an empty one
    network     requests and answers that are late or lost
    oracles     what must hold after each step, and at the end, when nothing goes wrong any more

Invariant: the same seed, the same history.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

from coopstreams.config import Config
from coopstreams.group.joining import Hooks, Timings
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory import MemoryLog
from coopstreams.tasks.instance import Instance
from coopstreams.tasks.lifecycle import Lifecycle
from coopstreams.tasks.parts import Parts
from coopstreams.tasks.wiring import Wiring
from coopstreams.topology.columns import TopicPartition
from tests.simulation import disk
from tests.simulation.cluster import Cluster, SimLog
from tests.simulation.faults import Network
from tests.simulation.fibers import Machine, Scheduler, Stuck
from tests.simulation.group import Group, SimCoordinator
from tests.simulation.programs import APPLICATION, Program, Rows, written, wrong_counts

MOST_PROCESSES = 4
CALM_S = 400.0
"""How long everything may take to be done once nothing goes wrong any more."""
LOOK_S = 0.25


class Violation(AssertionError):
    """An oracle does not hold."""


class Process:
    """One life of one process."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world = world
        self.number = number
        self.machine = Machine(world.scheduler, f"p{number}.{life}")
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

    def _run(self) -> None:
        world = self.world
        wiring = Wiring(self.machine, lambda *_: SimLog(self.machine, world.cluster, world.network), self._coordinator)
        with Parts.build(world.program.build(), world.config(self.number), wiring) as self.parts:
            self.instance = Instance(self.parts, Lifecycle())
            if not self.stopping:
                self.instance.run()
        self.ended = True

    def _coordinator(self, _: object) -> Callable[[str, str | None, Timings, Hooks], SimCoordinator]:
        def make(name: str, instance: str | None, timings: Timings, hooks: Hooks) -> SimCoordinator:  # noqa: ARG001
            return SimCoordinator(self.machine, self.world.cluster, self.world.network, self.world.group, name, timings, hooks)

        return make


class World:
    """Everything there is."""

    def __init__(self, seed: int, program: Program, *, exactly_once: bool) -> None:
        self.random = Random(seed)
        self.program, self.exactly_once = program, exactly_once
        self.scheduler = Scheduler(Random(self.random.getrandbits(64)))
        self.network = Network(
            Random(self.random.getrandbits(64)),
            latency_s=self.random.choice((0.001, 0.005, 0.02)),
            lost=self.random.choice((0.0, 0.0, 0.005, 0.02)),
            unanswered=self.random.choice((0.0, 0.0, 0.005, 0.02)),
        )
        self.group = Group(self.scheduler)
        self.cluster = Cluster(MemoryLog(self.group.check))
        self.folder = Path(tempfile.mkdtemp(prefix="coopstreams-simulation-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self._name_processes()
        self.events: list[str] = []
        self.written: list[bytes] = []
        self.read: list[tuple[bytes | None, bytes | None]] = []
        self.processes: list[Process] = []
        self.lives: dict[int, int] = {}
        self.partitions = self.random.choice((1, 1, 2))
        self.threads = self.random.choice((1, 1, 2))
        self.ranges = self.random.choice((1, 2, 4))
        self.cluster.log.create_topics([TopicSpec("in", self.partitions), TopicSpec("out", 1)])
        self._reader = self.cluster.log.reader()
        self._reader.assign({TopicPartition("out", 0): Position(0)})
        self._writer = self.cluster.log.writer()

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
            Violation: an oracle does not hold.
        """
        try:
            self._run(steps)
        except Stuck as stuck:
            raise Violation(str(stuck)) from stuck

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
        self._say(f"p{number} begins life {life}")
        self.processes.append(Process(self, number, life))

    def produce(self, count: int) -> None:
        """Write records."""
        records = [written(self.random, len(self.written) + at) for at in range(count)]
        keys, values = [key for key, _ in records], [value for _, value in records]
        self._writer.append("in", keys, values, [int(self.scheduler.now * 1000) + 1] * count)
        self.written += keys
        self.scheduler.wake(self.cluster.waiting)

    @property
    def living(self) -> list[Process]:
        """The processes that have not ended."""
        return [process for process in self.processes if not process.ended]

    def _happen(self) -> None:
        event = self.random.choice(("produce", "produce", "produce", "start", "kill", "stop", "pause", "resume", "rest", "rest", "suspend", "lost"))
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
            case "lost" if self.random.random() < 0.3:
                self.network.lost, self.network.unanswered = self.random.choice(((0.0, 0.0), (0.05, 0.0), (0.0, 0.05), (0.02, 0.02)))
                self._say(f"{self.network.lost} of the requests are lost, {self.network.unanswered} of the answers")
            case _:
                pass

    def _strike(self, what: str, process: Process, how: Callable[[Process], object]) -> None:
        self._say(f"{process.machine.name} {what}")
        how(process)

    def _calm_down(self) -> None:
        """Nothing goes wrong any more: everything must be done, and be right, after a while."""
        self._say("nothing goes wrong any more")
        self.network.calm = True
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
                raise Violation(f"after {CALM_S:.0f} s of calm: {'; '.join(wrong)}. {self._reasons()}")
            self._let(2.0)
            if not self.living:
                self.start(0)

    def _let(self, seconds: float) -> None:
        """Let time pass, and look now and then whether everything holds."""
        until = self.scheduler.now + seconds
        while self.scheduler.now < until:
            self.scheduler.run(min(until, self.scheduler.now + LOOK_S))
            for fiber, error in self.scheduler.errors:
                raise Violation(f"{fiber.machine.name} {fiber.name} ended: {type(error).__name__}: {error}") from error
            if wrong := self._wrong(whole=False):
                raise Violation("; ".join(wrong))

    def _name_processes(self) -> None:
        """Transactional ids are made of what is in this file; by itself it would be another one each time."""
        for number in range(MOST_PROCESSES):
            folder = self.folder / APPLICATION / f"instance-{number}"
            folder.mkdir(parents=True)
            (folder / "process-id").write_text(str(UUID(int=self.random.getrandbits(128))))

    # --- oracles ---

    def _wrong(self, *, whole: bool) -> list[str]:
        return wrong_counts(self.program, self.written, self._told(), exactly_once=self.exactly_once, whole=whole)

    def _told(self) -> Rows:
        for run in self._reader.fetch(1 << 20, 0):
            self.read += zip(run.columns.keys, run.columns.values, strict=True)
        return self.read

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

    def _say(self, event: str) -> None:
        self.events.append(f"{self.scheduler.now:9.3f}  {event}")
