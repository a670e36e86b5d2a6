"""The plan of a backfill, made before anything runs: its sub-topologies, their order,
their tasks, and the offsets.

Pure. `preparation.py` asks Kafka, calls this module and stores the plan; `execution.py`
carries it out. `--resume` loads the stored plan and decides nothing again.

Invariant: a sub-topology comes after all sub-topologies that write to a repartition
topic it reads. Where two wait for each other, `rounds` has the order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import (
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from coopstreams.spark.committed_records import Rebuild
from coopstreams.spark.native.sql_eligibility import translated
from coopstreams.spark.rounds import Round, rounds_of
from coopstreams.state.manifest import shape_of
from coopstreams.topology.compile.coming_advances import foresees
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.graph.timed_topics import timed_topics
from coopstreams.topology.graph.topic_patterns import unmatched
from coopstreams.topology.graph.topology import Topology

Outputs = Literal["none", "topic", "table"]
Connector = Literal["python", "jvm"]

RANGES = 4
"""The key ranges of a partition, if the user gives no number."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A sub-topology, or a round of one, and its tasks.

    Shape: task = partition * ranges + number of the range; `first` is the number of its
    first task within the run. `forwarded` are the repartition topics it writes, with
    their partition counts. Only the last of the `rounds` leaves state and outputs; the
    earlier rounds only forward records.
    """

    subtopology: int
    partitions: int
    ranges: int
    first: int
    topics: tuple[str, ...]
    forwarded: tuple[tuple[str, int], ...]
    stores: tuple[str, ...]
    native: bool = False
    """Whether Spark SQL folds the sub-topology, unless a record is in doubt."""
    why: str = ""
    """Why Python runs the sub-topology although native plans were asked for."""
    round: int = 1
    rounds: int = 1
    only: tuple[int, ...] | None = None
    """The tasks that run; None: all of them."""
    called: bool = False
    """Whether it may have punctuations by stream time, which tasks of several key
    ranges would call late.
    """

    @property
    def name(self) -> str:
        """The stage's name, for people."""
        return f"sub-topology {self.subtopology}" + (
            f", round {self.round} of {self.rounds}" if self.rounds > 1 else ""
        )

    @property
    def is_last(self) -> bool:
        """Whether the stage is its sub-topology's last round, which leaves state and
        outputs.
        """
        return self.round == self.rounds

    @property
    def tasks(self) -> int:
        """The number of the stage's tasks."""
        return self.partitions * self.ranges

    @property
    def running(self) -> Sequence[int]:
        """The numbers of the tasks that run."""
        return range(self.tasks) if self.only is None else self.only

    def lines(self) -> list[str]:
        """Return what `--dry-run` prints of the stage."""
        if self.is_last:
            leaves = f"stores {', '.join(self.stores) or 'none'}"
        else:
            asks = ", ".join(topic for topic, _ in self.forwarded)
            leaves = f"only asks, by {asks}"
        lines = [
            f"  {self.name}: {self.partitions} partitions x {self.ranges} key ranges; {leaves}"
        ]
        if self.called and self.ranges == 1:
            lines.append(
                "    not divided, because its processors may be called by stream time; --ranges N divides it"
            )
        if self.native:
            lines.append("    in Spark SQL, if all its records are understood there")
        elif self.why:
            lines.append(f"    in Python: {self.why}")
        return lines


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run, from its cut to its tasks.

    Shape: `cut` has for each source topic and partition the offsets [start, end); a
    topic that comes from a table has the offsets at which a live application continues.
    `tables` are the topics whose history is not in Kafka.
    """

    run: str
    application: str
    topology: str
    """A digest of everything that must be unchanged when the run is resumed."""
    cut: Mapping[str, Mapping[int, tuple[int, int]]]
    stages: tuple[Stage, ...]
    partitions: Mapping[str, int]
    tables: tuple[str, ...] = ()
    outputs: Outputs = "none"
    seed: bool = False
    snapshots: str | None = None
    table: str | None = None
    """The folder of the outputs, if they go to a table that is kept."""
    global_tables: Mapping[str, Mapping[int, tuple[int, int]]] = field(
        default_factory=dict
    )
    """The offsets [start, end) that every task reads of the topics of global tables."""
    connector: Connector = "python"
    """The reader of Kafka: our own data source, or Spark's connector."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of its topics in Kafka. A topic that was deleted and created again has
    another id.
    """
    rebuild: Rebuild | None = None
    """The scope of a rebuild of an application that has run; None for a backfill."""

    @property
    def tasks(self) -> int:
        """The number of tasks of the run."""
        return sum(stage.tasks for stage in self.stages)

    @property
    def records(self) -> int:
        """The number of offsets that the run reads from Kafka."""
        return sum(
            end - start
            for topic, bounds in self.cut.items()
            if topic not in self.tables
            for start, end in bounds.values()
        )

    def to_json(self) -> bytes:
        """Return the plan as JSON."""
        return msgspec.json.format(
            msgspec.json.encode(msgspec.to_builtins(self, str_keys=True)),
            indent=1,
        )

    @staticmethod
    def from_json(data: bytes) -> Plan:
        """Return the plan of a file."""
        return _PLANS.decode(data)

    def __str__(self) -> str:
        """Return the text that `--dry-run` prints."""
        lines = [
            f"run {self.run} of {self.application}: {self.records} offsets of Kafka, {self.tasks} tasks"
        ]
        for stage in self.stages:
            lines += stage.lines()
            lines += [self._topic_line(topic) for topic in stage.topics]
        lines += [
            f"  global table {topic}: {_spans(bounds)}, for every task"
            for topic, bounds in self.global_tables.items()
        ]
        lines.append(
            self._destination()
            if self.rebuild is None
            else self._scope_line(self.rebuild)
        )
        return "\n".join(lines)

    def _topic_line(self, topic: str) -> str:
        """Return the line that says where a topic's records come from."""
        bounds = self.cut.get(topic)
        if bounds is None:
            return f"    {topic}: from the sub-topologies before it"
        if topic not in self.tables:
            return f"    {topic}: {_spans(bounds)}"
        ends = ", ".join(f"{number}: {end}" for number, (_, end) in bounds.items())
        return f"    {topic}: from a table; a live application goes on at {ends}"

    def _scope_line(self, rebuild: Rebuild) -> str:
        """Return the line that says what a rebuild writes."""
        written = "go to the changelogs" if self.seed else "are counted"
        return (
            f"  stores {', '.join(rebuild.stores)}, key groups {rebuild.key_range}: "
            f"differences {written}"
        )

    def _destination(self) -> str:
        """Return the line that says where a backfill writes state and outputs."""
        state = ["changelogs"] if self.seed else []
        if self.snapshots:
            state.append(self.snapshots)
        outputs: str = self.outputs
        if self.table is not None:
            outputs = f"{outputs} at {self.table}"
        if self.outputs == "none":
            outputs += (
                " (results, late records and dead letters are counted, not written;"
                " --outputs topic or table writes them)"
            )
        return f"  state goes to: {', '.join(state) or 'nowhere'}; outputs: {outputs}"


def _spans(bounds: Mapping[int, tuple[int, int]]) -> str:
    """Return the offsets of partitions, for people."""
    return ", ".join(
        f"{number}: {start}..{end}" for number, (start, end) in bounds.items()
    )


_PLANS = msgspec.json.Decoder(Plan, strict=False)


def check(topology: Topology) -> None:
    """Check that a backfill can run the topology.

    Raises:
        TopologyError: no topic matches its patterns, a topic feeds itself, or records
        are applied outside of Kafka.
    """
    if (
        sink := next(
            (part.applies_to for part in topology.subtopologies if part.applies_to),
            None,
        )
    ) is not None:
        raise TopologyError(
            f'a backfill applies nothing to places outside of Kafka, and "{sink.name}" ({sink.target}) would lack its '
            "history. Backfill the program without to_sink, with its results in a topic or table, and load them there; "
            "or start the application live"
        )
    if topics := topology.unordered_topics:
        raise TopologyError(
            f'a backfill leaves positions behind, and "{topics[0]}" is read with order="none": a share group has none '
            "that could be set to the cut. Start the application live, with auto.offset.reset=earliest: its instances "
            "share the history, too"
        )
    if not sources(topology) and (waiting := unmatched(topology)):
        patterns = " or ".join(f'"{pattern}"' for pattern in waiting)
        raise TopologyError(
            f"no topic matches {patterns}: there is no history. Correct the pattern, or start the application live, "
            "where it waits for one"
        )
    rounds_of(topology)


def stages(
    topology: Topology,
    partitions: Mapping[str, int],
    ranges: int | None,
    *,
    native: bool = False,
    outputs: Outputs = "none",
) -> tuple[Stage, ...]:
    """Return the sub-topologies with their tasks, in the order in which they run.

    `ranges`: key ranges of each partition; None: `RANGES`, or one if several would call
    punctuations late. `native`: whether Spark SQL folds where the result is the same. A
    sub-topology without source topics (no topic matches its pattern yet) has no tasks,
    and is no stage.
    """
    result = list[Stage]()
    timed = timed_topics(topology.subtopologies)
    first = 0
    for round_ in rounds_of(topology):
        part = round_.part
        count = max((partitions[topic] for topic in part.topics), default=0)
        if not count:
            continue
        why = _why_python(round_, outputs, timed) if native else ""
        called = part.divisible and foresees(part)
        stage = Stage(
            part.id,
            count,
            (ranges or (1 if called else RANGES)) if part.divisible else 1,
            first,
            part.topics,
            tuple((topic, partitions[topic]) for topic in round_.forwards),
            tuple(store.name for store in part.stores),
            native=why is None,
            why=why or "",
            round=round_.round,
            rounds=round_.rounds,
            called=called,
        )
        result.append(stage)
        first += stage.tasks
    return tuple(result)


def _why_python(
    round_: Round,
    outputs: Outputs,
    timed: Collection[str],
) -> str | None:
    """Return why Spark SQL cannot fold a round; None if it can."""
    if round_.rounds > 1:
        return "it runs in rounds"
    # SQL takes the newest record's time for that of all.
    clocked = next((topic for topic in round_.part.topics if topic in timed), None)
    if clocked is not None:
        return f'it follows the clock of "{clocked}"'
    found = translated(round_.part, outputs)
    return found if isinstance(found, str) else None


def called_late(stages: Iterable[Stage], cure: str) -> list[str]:
    """Return a warning for each sub-topology whose tasks may call punctuations later
    than a live application.

    `cure`: how to have one key range.
    """
    return [
        f"{stage.name} has {stage.ranges} key ranges a partition: a punctuation by stream time that a record of "
        "another range makes due is called only after the next record of the task's own range. If a processor "
        f"schedules such punctuations, {cure}."
        for stage in stages
        if stage.called and stage.ranges > 1 and stage.is_last
    ]


def leading_to(topology: Topology, stores: Collection[str]) -> dict[int, bool]:
    """Return the sub-topologies that have some of these stores, and all that feed them.

    Shape: by number, whether another sub-topology needs its records.
    """
    found: dict[int, bool] = {}
    wanted: set[str] = set()
    for round_ in reversed(rounds_of(topology)):
        needed = found.get(round_.part.id, False) or bool(
            wanted.intersection(round_.forwards)
        )
        if needed or any(store.name in stores for store in round_.part.stores):
            found[round_.part.id] = needed
            wanted.update(round_.part.topics)
    return found


def digest(topology: Topology) -> str:
    """Return a digest of what a resumed run must share with its first part: nodes,
    topics, shapes of stores.

    Functions are not included. The topology is the resolved one: the topics that match
    its patterns, and its stores after `topology.optimization`.
    """
    shape = [
        [
            part.id,
            [(type(node).__name__, node.name, node.parents) for node in part.nodes],
            part.topics,
            [
                (store.name, shape_of(store), store.logged, store.source)
                for store in part.stores
            ],
        ]
        for part in topology.subtopologies
    ]
    tables = [[table.topic, shape_of(table.store)] for table in topology.global_tables]
    return hashlib.sha256(msgspec.json.encode([shape, tables])).hexdigest()


def sources(topology: Topology) -> tuple[str, ...]:
    """Return the topics whose history is read: all sources except repartition topics."""
    nodes = (
        node
        for part in topology.subtopologies
        for node in part.nodes
        if isinstance(node, Source) and not node.internal
    )
    return tuple(dict.fromkeys(topic for node in nodes for topic in node.topics))


def positions(
    plan: Plan,
    stream_times: Mapping[tuple[str, int], int],
    internal_ends: Mapping[str, Mapping[int, int]],
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the position of each partition that tasks read, at which the live
    application continues.

    Shape: (topic, partition) -> (offset, stream time below it).
    """
    ends = {
        (topic, partition): end
        for topic, bounds in plan.cut.items()
        for partition, (_, end) in bounds.items()
    }
    ends |= {
        (topic, partition): end
        for topic, internal in internal_ends.items()
        for partition, end in internal.items()
    }
    return {place: (end, stream_times.get(place, -1)) for place, end in ends.items()}


def gaps(stage: Stage, results: Sequence[int]) -> list[int]:
    """Return the tasks of a stage that do not have exactly one result. `results`: the
    task of each result.
    """
    counts = Counter(results)
    return sorted(task for task in stage.running if counts[task] != 1)
