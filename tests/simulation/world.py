"""A whole group of instances without a broker: real instances on simulated machines,
with faults of their own besides those of `stage`.

    processes   each a real `Instance` with its threads; started again on the same disk
    hosts       disks that are lost, full or from an earlier time, clocks that jump, settings that change
    snapshots   are rebuilt, damaged, deleted and published again
    queries     by key, to any instance, through the router
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from pathlib import Path
from random import Random
from typing import Any

from coopstreams import Topology
from coopstreams.common.config import SETTINGS, Config
from coopstreams.instance.instance import Instance
from coopstreams.instance.serving import Serving
from coopstreams.instance.task_registry import State
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.state.views import StoredRow
from coopstreams.tasks import queues
from coopstreams.tasks import task as steps
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId
from tests.simulation import disk
from tests.simulation.answers import Answer, Rows, Written
from tests.simulation.born import TimedTopics
from tests.simulation.cluster import MachineClient, MachineLog
from tests.simulation.fibers import EPOCH_MS
from tests.simulation.hosts import Hosts
from tests.simulation.moves import Moves
from tests.simulation.neighbour import Neighbour
from tests.simulation.one_partition import OnePartition
from tests.simulation.oracles import Changelogs, Part
from tests.simulation.process import Process
from tests.simulation.programs import APPLICATION, CACHE, Program
from tests.simulation.queries import Queries
from tests.simulation.resets import reset
from tests.simulation.service import service
from tests.simulation.settings import (
    AHEAD,
    CALLS,
    KEPT,
    NEIGHBOUR,
    NO_OTHER,
    OPEN,
    OPTIMIZATION,
    PLAIN,
    RECORDS,
    RESET,
    SNAPSHOTS,
    TABLES,
    WHILE_SUSPENDED,
    drawn_settings,
)
from tests.simulation.shelf import IN_PLACE, Shelf
from tests.simulation.stage import MOST_PROCESSES, TRANSACTION_S, Stage
from tests.simulation.topologies import PARTITIONS
from tests.simulation.upkeep import Upkeep

OUT = TopicPartition("out", 0)
SHELVES = 0.25
"""The share of histories with snapshots."""
SMALL_STEPS = 0.25
"""The share of histories whose tasks take `SMALL` records at a time: only then there
are more, and they take turns.
"""
SMALL = 2
ABORTED = 0.3
"""The share of transactions of records with an aborted one in front."""
NEVER = b"999999999"
"""The value of records that are aborted."""
OPEN_S = (0.0, 0.0, 0.5, 5.0)
"""How long a transaction of records stays open."""
COMPACTED_S = 6.0
"""Mean time between two compactions of the topics of tables."""
AWAKE_S = (0.5, 3.0, 10.0)
"""How long an application runs, after a reset, before the suspended machine wakes."""
REMOVED_S = 60.0
"""After this long a suspended process is in the group no more."""
LAG_MS = 10 * 365 * 86_400_000
"""`min.compaction.lag.ms` where it keeps what the group has not processed: no clock
jumps that far.
"""
DECIDED_S = 16.0
"""After this long without a process, its late requests have arrived, and its
transactions have timed out.
"""
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
"""Events, each as often as its weight."""
STATES = 8
"""Steps between two checks of the databases."""


@cache
def built(program: Program, calls: str, *, newer: bool) -> Topology:
    """Return the topology of a program, once: all processes of a version run the same."""
    return program.topology(calls, newer=newer)


@cache
def answering(program: Program) -> Topology:
    """Return the topology that gives the expected results, once."""
    return program.answering()


class World(Stage[Process]):
    """One history of instances."""

    events_that_happen = EVENTS

    def __init__(self, seed: int, program: Program, *, exactly_once: bool) -> None:
        super().__init__(seed, APPLICATION, exactly_once=exactly_once)
        self.program = program
        self.drawn = drawn_settings(seed, program)
        service.begin(
            Random(seed)
        )  # a separate generator: histories without calls would change otherwise
        self.folder = Path(
            tempfile.mkdtemp(
                prefix="coopstreams-simulation-",
                dir="/dev/shm" if Path("/dev/shm").is_dir() else None,
            )
        )
        self.hosts = Hosts(
            MOST_PROCESSES,
            self.folder_of,
            Random(self.random.getrandbits(64)),
            self.say,
        )
        self.written = 0
        self.looks = 0
        self.partitions = max(self.random.choice((1, 1, 2)), program.partitions)
        self.topologies = {
            newer: built(program, self.drawn.get(CALLS, ""), newer=newer)
            for newer in (False, True)
        }
        compacted = () if self.drawn.get(TABLES, KEPT) == KEPT else program.tables
        for topic in (*self.topologies[True].source_topics, "out", "elsewhere"):
            self.cluster.state.create_topic(
                TopicSpec(
                    topic,
                    1 if topic == "out" else self.partitions,
                    config=self._table_config() if topic in compacted else {},
                )
            )
        self.answer = self._new_answer()
        self._records: list[Written] = []
        """Everything that was written."""
        self.is_reset = exactly_once and self.drawn.get(RESET) == WHILE_SUSPENDED
        self.changelogs = Changelogs(self.cluster.state, APPLICATION)
        self.cluster.before_deletion = self.changelogs.before_deletion
        self.upkeep = Upkeep(
            self.cluster,
            APPLICATION,
            self.scheduler,
            Random(self.random.getrandbits(64)),
            self.say,
            self.changelogs,
        )
        self.moves = Moves()
        self.group.decided = self.moves.decided
        self.timed = TimedTopics(self.cluster.state, self.topologies[False])
        self.queries: Queries | None = None
        self.shelf: Shelf | None = None
        asked = exactly_once and not self.is_reset
        if asked and (drawn := Random(f"{seed} queries")).random() < 0.5:
            self.queries = Queries(
                self.scheduler,
                drawn,
                self.latency_s,
                APPLICATION,
                self.changelogs,
                lambda: self.living,
            )
        kept = not self.is_reset
        if kept and (drawn := Random(f"{seed} snapshots")).random() < SHELVES:
            self.shelf = Shelf(
                self.scheduler,
                drawn,
                self.folder / "shelf",
                self.topologies,
                lambda machine: MachineLog(
                    MachineClient(
                        self.cluster,
                        machine,
                        self.network,
                        self.latency_s,
                        lambda *_: machine.kill(),
                    )
                ),
                self.say,
            )
        if compacted:
            self._compact_later(Random(f"{seed} compaction"))
        self.neighbour: Neighbour | None = None
        if (other := self.drawn[NEIGHBOUR]) != NO_OTHER:
            self.neighbour = Neighbour(
                self.cluster,
                APPLICATION,
                self.scheduler,
                Random(f"{seed} neighbour"),
                self.say,
                opens=other == OPEN,
            )
        self._transactions = 0
        self.lost_row = False
        """Whether a process was refused because of a row that compaction has taken:
        then nobody may go on.
        """
        self._small_steps = Random(f"{seed} steps").random() < SMALL_STEPS
        self._begin_stalls()
        self._reader = MemoryReader(self.cluster.state, committed_only=True)
        self._reader.assign({OUT: Position(0)})
        self._told_to = 0
        """The position up to which results were checked."""
        self._writer = MemoryWriter(self.cluster.state, None)

    def config(self, number: int) -> Config:
        """Return the configuration of a process."""
        return Config.of(
            {
                **self._settings,
                **self.program.settings,
                "bootstrap.servers": "nowhere:1",
                "state.dir": str(self.folder),
                "instance": number,
                "default.dsl.store": "tests.simulation.disk:Disk",
                "num.stream.threads": self.hosts.threads,
                "ranges.per.partition": self.hosts.ranges,
                "processing.guarantee": "exactly_once_v2"
                if self.exactly_once
                else "at_least_once",
                "http.listen": "",
                **({} if self.shelf is None else {"snapshots.dir": self.shelf.url}),
                "transaction.timeout.ms": int(1000 * TRANSACTION_S),
                # Windows leave their changelogs as soon as they have expired.
                "windowstore.changelog.additional.retention.ms": 0,
            },
            APPLICATION,
        )

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """The drawn values of settings of an instance."""
        return {
            name: value
            for name, value in self.drawn.items()
            if name in SETTINGS
            and value is not None
            and (name != SNAPSHOTS or self.shelf is not None)
        }

    @property
    def _is_loose(self) -> bool:
        """Whether some updates of rows are not forwarded."""
        return bool(self.drawn.get(CACHE)) or self.compacts_ahead

    @property
    def compacts_ahead(self) -> bool:
        """Whether the topics of tables are compacted ahead of the group."""
        return self.drawn.get(TABLES) == AHEAD

    def _table_config(self) -> dict[str, str]:
        lag_ms = 0 if self.compacts_ahead else LAG_MS
        return {"cleanup.policy": "compact", "min.compaction.lag.ms": str(lag_ms)}

    def _compact_later(self, random: Random) -> None:
        """Compact the topics of tables from time to time."""

        def compact() -> None:
            self._compact_later(random)
            self.upkeep.compact_sources(self.program.tables, ahead=self.compacts_ahead)

        after_s = random.expovariate(1 / COMPACTED_S)
        self.scheduler.at(self.scheduler.now + after_s, compact)

    def stand_ins(self) -> list[tuple[Any, str, object]]:
        small = (
            [(module, "MOST_AT_ONCE", SMALL) for module in (queues, steps)]
            if self._small_steps
            else []
        )
        # temporary folders are in memory, too: a history makes a dozen of them
        return [*IN_PLACE, *small, (tempfile, "tempdir", str(self.folder))]

    def close(self) -> None:
        """Release everything."""
        self.answer.close()
        self.scheduler.close([] if self.shelf is None else self.shelf.machines)
        super().close()
        if self.shelf is not None:
            self.shelf.close()
        for process in self.processes:
            with suppress(Exception):
                if process.components is not None:
                    process.components.directory.close()
        disk.wipe()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what happens ---

    def _born(self, number: int, life: int) -> Process:
        return Process(self, number, life)

    def produce(self, count: int) -> None:
        """Write records."""
        now_ms = EPOCH_MS + int(self.scheduler.now * 1000)
        records = [
            self.program.write(self.random, self.written + at, now_ms)
            for at in range(count)
        ]
        if self.drawn[RECORDS] == PLAIN:
            self._append(self._writer, records)
        else:
            self._append_in_transactions(records)
        self.written += count
        self._records += records
        self.answer.write(records)
        service.written(records)

    def _append(self, writer: MemoryWriter, records: Iterable[Written]) -> None:
        for topic, key, value, timestamp in records:
            writer.append(topic, [key], [value], [timestamp])

    def _append_in_transactions(self, records: Sequence[Written]) -> None:
        """Append them in a transaction, maybe behind some that an aborted one has; it
        may stay open for a while.
        """
        if self.random.random() < ABORTED:
            writer = self._transaction()
            never = [one._replace(value=NEVER) for one in records[:3]]
            self._append(writer, never)
            writer.abort()
        writer = self._transaction()
        self._append(writer, records)
        open_s = self.random.choice(OPEN_S)
        if open_s:
            self.scheduler.at(
                self.scheduler.now + open_s, partial(writer.commit, timeout_s=0.0)
            )
        else:
            writer.commit(0.0)

    def _transaction(self) -> MemoryWriter:
        """Return a writer of its own, whose transaction has begun: it waits for no
        marker of another one.
        """
        self._transactions += 1
        writer = MemoryWriter(self.cluster.state, f"writer-{self._transactions}")
        writer.begin()
        return writer

    def _do_more(
        self, event: str, living: Sequence[Process], awake: Sequence[Process]
    ) -> None:
        match event:
            case "upkeep":
                self.upkeep.happen()
            case "outage" if awake and self.is_reset:
                self._reset_while_one_is_suspended(self.random.choice(awake))
            case "outage" if living:
                self._have_nobody()
            case "change" if awake:
                change = self.random.choice(
                    (
                        Process.add_thread,
                        Process.remove_thread,
                        Process.hold,
                        Process.go_on,
                    )
                )
                self._strike(
                    f"is told: {change.__name__}", self.random.choice(awake), change
                )
            case "host":
                self.hosts.happen(
                    {process.number: process.machine for process in living},
                    self._down(),
                )

    def _check_those_who_wake(self) -> None:
        self._check("answers", self._wrong_answers())

    def restore_positions(self, told: Process) -> bool:
        """Have an operator stop all processes but the reporting one, and restore the
        offsets: brokers refuse that while there are members.
        """
        for process in self.living if self.upkeep.missing else ():
            if process is not told:
                self._strike("is killed", process, Process.kill)
        return self.upkeep.give_back()

    def _have_nobody(self) -> None:
        """End all processes, cause an event of topics while none runs, and start one."""
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

    def _reset_while_one_is_suspended(self, asleep: Process) -> None:
        """Suspend a machine, end all other processes, reset the application, start it,
        and have the machine wake.
        """
        self._strike("stands still", asleep, lambda process: process.machine.pause())
        for process in self.living:
            if process is not asleep:
                self._strike("is killed", process, Process.kill)
        self._let(REMOVED_S)
        decided = not any(
            producer.open or self.cluster.owes(producer)
            for producer in self.cluster.state.producers.values()
        )
        if not self.group.members and decided and self.upkeep.is_readable:
            self._reset()
            asleep.outlasts_reset = True
        self.start(self.random.choice(self._down()))
        self._let(self.random.choice(AWAKE_S))
        if not asleep.ended:
            self._strike("goes on", asleep, lambda process: process.machine.resume())

    def _reset(self) -> None:
        """Reset the application: its results are told once more, from the first record
        on.
        """
        self._check("results", self.answer.tell(self._told()))
        self.say("the application is reset")
        self.changelogs.begin_anew()
        self.timed.begin_anew()
        versions = [
            topology.optimized(self.drawn.get(OPTIMIZATION, "none"))
            for topology in self.topologies.values()
        ]
        reset(self.cluster.state, self.group, APPLICATION, versions[::-1])
        self.answer.close()
        self.answer = self._new_answer()
        self.answer.write(self._records)

    def _new_answer(self) -> Answer:
        """Return the oracle of results, before the first record."""
        loose = self.program.loose if self._is_loose else None
        alone = self.program.in_one_partition is not None
        topology = answering(self.program)
        return (loose or self.program.answer)(
            topology,
            self.program.driven,
            1 if alone else self.partitions,
            exactly_once=self.exactly_once,
            orders=self._orders(topology.source_topics) if alone else (),
        )

    def _orders(
        self, topics: Iterable[str]
    ) -> list[Callable[[Sequence[Written]], Sequence[Written]]]:
        """Return what puts the records in the order of births. A topic that is read
        directly has an order for each partition.
        """
        direct = self.program.direct
        return [
            OnePartition(topics, direct, partition).put
            for partition in range(PARTITIONS if direct else 1)
        ]

    def _end_the_rest(self) -> None:
        self.upkeep.end()
        if self.neighbour is not None:
            self.neighbour.end()
        self.hosts.end()
        if self.shelf is not None:
            self.shelf.end()

    def _let_go_on(self, process: Process) -> None:
        process.go_on()

    def folder_of(self, number: int) -> Path:
        return self.folder / APPLICATION / f"instance-{number}"

    # --- oracles ---

    def _told_by_oracles(self, *, whole: bool) -> Iterator[tuple[str, list[str]]]:
        self.looks += 1
        yield "members", self.group.wrong
        yield "moves", self.moves.wrong
        if self.neighbour is not None:
            yield "members", self.neighbour.wrong
        yield "calls", service.wrong
        yield "results", self.answer.tell(self._told())
        if self.exactly_once:
            yield "births", self.timed.wrong()
        if self.queries is not None:
            yield "queries", self.queries.wrong
        if whole and not self.lost_row:
            yield "progress", self.answer.lacking()
        if not self.exactly_once or not (whole or self.looks % STATES == 0):
            return
        parts = self._components(running=False)
        yield (
            "rows",
            [problem for part in parts for problem in self.changelogs.wrong(part)],
        )
        if whole and not self.lost_row:
            yield "stores", self._wrong_rows()
        yield "answers", self._wrong_answers()

    def _wrong_answers(self) -> list[str]:
        """Query every running process; return the violations."""
        components = (
            self._components(running=True, owned=True) if self.exactly_once else ()
        )
        return [
            problem
            for part in components
            for problem in self.changelogs.wrong_answers(part)
        ]

    def _wrong_rows(self) -> list[str]:
        """Return the violations in the stores of running tasks: at the end they have
        the rows of one task.
        """
        known = set(self.program.stores)
        if self._is_loose:
            known.difference_update(self.program.gone)
        kept: dict[str, list[StoredRow]] = {
            store: [] for store in self.program.stores if store in known
        }
        for part in self._components(running=True):
            if part.spec.name in kept:
                kept[part.spec.name] += part.rows()
        if self.program.untimed:
            kept = {store: _untimed(rows) for store, rows in kept.items()}
        wrong = []
        for store, rows in kept.items():
            expected = self.answer.rows(store)
            if self.program.untimed:
                expected = _untimed(expected)
            if sorted(rows) != sorted(expected):
                more, fewer = set(rows) - set(expected), set(expected) - set(rows)
                wrong.append(
                    f"store {store} has {sorted(more)}, and not {sorted(fewer)}"
                )
        return wrong

    def _components(self, *, running: bool, owned: bool = False) -> Iterator[Part]:
        """Yield each store in a database. `running`: only of running tasks; `owned`:
        only of ranges that answer queries.
        """
        for process in self.living:
            if (
                process.components is None
                or process.instance is None
                or (owned and process.machine.paused)
            ):
                continue
            serving = process.serving or Serving(process.instance, {})
            for (subtopology, partition), opened in list(
                process.components.directory._open.items()
            ):
                ranges = [
                    id_.key_range
                    for id_, task in process.instance.standing.tasks.items()
                    if (id_.subtopology, id_.partition) == (subtopology, partition)
                    and (not owned or serving.owns(task))
                ]
                for spec in process.components.plan.subtopology(subtopology).stores:
                    yield Part(
                        f"{process.machine.name} {subtopology}_{partition}",
                        partition,
                        opened.database,
                        spec,
                        ranges if running else [WHOLE],
                    )

    def _told(self) -> Rows:
        """Return the results committed since the last call."""
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
            instance = process.instance
            tasks = [
                f"{task} {state.value}{self._why(instance, task, state)}"
                for task, state in instance.registry.states.items()
            ]
            assigned = instance.standing.assigned
            problem = instance.member.problem or instance.standing.waits
            said.append(
                f"{process.machine.name} in generation {assigned.generation if assigned else 'none'}: "
                f"{', '.join(tasks) or 'no tasks'}{problem and f' ({problem})'}"
            )
        return "; ".join(said)

    def _why(self, instance: Instance, task: TaskId, state: State) -> str:
        """Return what a task waits for, or its progress."""
        if state is State.OPENING:
            return f", waits for {instance.opener.waits_for(task).why}"
        if (running := instance.standing.tasks.get(task)) is None:
            return ""
        at = (
            f" {source} at {running.progress.position(source).offset} of {self.cluster.state.partition(source).end}"
            for source in running.sources
        )
        return "".join(at) + Serving(instance, {}).seen().waiting_for(task)


def _untimed(rows: Iterable[StoredRow]) -> list[StoredRow]:
    return [row._replace(timestamp=0) for row in rows]
