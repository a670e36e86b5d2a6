"""The rule of individual commits (`commit.view`), beside a set model of what was done.
Driven by `test_commit_simulation.py`.

The model log has transactions, a last stable offset, compaction, and a fenced plain
offset that is pending while its transaction is open.

Tasks use the real follower, view, progress, plan and codec. The given `Random` chooses
the events. It covers states that the simulated group (tests/simulation) does not reach:
steps of a commit interleave in any way, half of a commit arrives, compaction stops
anywhere and keeps tombstones or not, versions of the format are mixed; and a history
takes 10 ms, not 100. It has no group: owners change at random.

Exactly-once: for each hash, resolve = the last commit of its last owner, and every
record below it is in committed outputs once. At-least-once: complete commits <= resolve
<= what the owner's state holds, and everything below it was processed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise
from random import Random
from typing import cast

from coopstreams.commit.follower import Follower
from coopstreams.commit.progress import Author, CommitPlan, Progress, ask, plan
from coopstreams.commit.record import Committed
from coopstreams.commit.view import CommitView, Hole, combine
from coopstreams.log.log import NO_STREAM_TIME, Log, Position
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.keys import MAX_HASH, WHOLE, KeyRange, key_hash
from tests.commit.model_log import COMMITS, GROUP, Entry, ModelLog, Transaction

SLICES = 8
WIDTH = (MAX_HASH + 1) // SLICES
LENGTH = 64
START = Position(0)


def slice_of(key: bytes) -> int:
    return key_hash(key) // WIDTH


def cut(first: int, stop: int) -> KeyRange:
    """The range of the slices first..stop-1."""
    return KeyRange(first * WIDTH, MAX_HASH if stop == SLICES else stop * WIDTH - 1)


KEYS = [
    next(key for n in count() if slice_of(key := b"%d" % n) == i) for i in range(SLICES)
]
_dice = Random(2013)
OWNERS = [_dice.randrange(SLICES) for _ in range(LENGTH)]
TIMES = [_dice.randrange(100) for _ in range(LENGTH)]
STREAM_TIMES = list(accumulate(TIMES, max))


def stream_time_at(position: int) -> int:
    return STREAM_TIMES[position - 1] if position else NO_STREAM_TIME


def read(start: int, stop: int, owned: range) -> Columns:
    """The records that a reader gives a task for the offsets start..stop-1."""
    offsets = [offset for offset in range(start, stop) if OWNERS[offset] in owned]
    keys = [KEYS[OWNERS[offset]] for offset in offsets]
    return Columns(
        keys,
        keys,
        [TIMES[offset] for offset in offsets],
        offsets,
        [STREAM_TIMES[offset] for offset in offsets],
    )


@dataclass(slots=True, eq=False)
class Task:
    """One owner of some slices. `at` is the set model of its progress, beside the real
    one.
    """

    process: Follower
    owned: range
    generation: int
    stage: str = "closed"
    barrier: int = 0
    progress: Progress | None = None
    commit: CommitPlan | None = None
    transaction: Transaction | None = None
    at: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    flushed: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    done: list[tuple[TopicPartition, int]] = field(default_factory=list)

    @property
    def key_range(self) -> KeyRange:
        return cut(self.owned.start, self.owned.stop)


class World:
    """A group, its log, and the model's record of commits."""

    def __init__(self, exactly_once: bool, topics: int, rng: Random) -> None:
        self.exactly_once = exactly_once
        self.sources = [TopicPartition(f"source-{i}", 0) for i in range(topics)]
        self.log = ModelLog(newer=True)
        self.log_of_today = ModelLog(False, self.log.entries, self.log.open)
        self.upgraded: set[Follower] = set()
        self.spelled: dict[bytes, str] = {}
        self.plain: dict[TopicPartition, Committed] = {}
        self.view = CommitView(GROUP)
        self.truth = {source: [0] * SLICES for source in self.sources}
        self.owner: list[Task | None] = [None] * SLICES
        self.outputs: Counter[tuple[TopicPartition, int]] = Counter()
        self.generation = 0
        self.processes = [self.started(newer=False) for _ in range(3)]
        self.tasks: list[Task] = []
        self.zombies: list[Task] = []
        self.seen: Counter[str] = Counter()
        self.rebalance(rng)

    def started(self, *, newer: bool) -> Follower:
        """Return the follower of a starting process, which has read nothing. `newer`:
        it has a later version.
        """
        process = Follower(cast(Log, self.log if newer else self.log_of_today), GROUP)
        if newer:
            self.upgraded.add(process)
        return process

    # The group.

    def rebalance(self, rng: Random) -> None:
        """Begin the next generation with other cuts; an owner that loses a range stops,
        or becomes a zombie.
        """
        self.generation += 1
        cuts = sorted(
            {
                0,
                SLICES,
                *(
                    rng.sample(range(1, SLICES), rng.randint(0, 3))
                    if rng.random() < 0.65
                    else ()
                ),
            }
        )
        wanted = [range(a, b) for a, b in pairwise(cuts)]
        stay = [
            task for task in self.tasks if task.owned in wanted and rng.random() < 0.5
        ]
        for task in self.tasks:
            if task not in stay:
                if rng.random() < 0.5:
                    self.zombies.append(task)
                else:
                    self.stop(task)
        kept = [task.owned for task in stay]
        self.tasks = stay + [
            Task(rng.choice(self.processes), owned, self.generation)
            for owned in wanted
            if owned not in kept
        ]
        self.seen["whole" if len(wanted) == 1 else "shared"] += 1

    def crash(self, rng: Random) -> None:
        """An owner stops without a word; another takes over its range."""
        i = rng.randrange(len(self.tasks))
        self.generation += 1
        self.zombies.append(self.tasks[i])
        self.tasks[i] = Task(
            rng.choice(self.processes), self.tasks[i].owned, self.generation
        )

    def restart(self, rng: Random) -> None:
        """A process starts to read the compacted commits from the beginning."""
        i = rng.randrange(len(self.processes))
        self.processes[i] = self.started(newer=self.processes[i] in self.upgraded)

    def upgrade(self, rng: Random) -> None:
        """A process restarts with a later version, whose records the others cannot
        read.
        """
        self.processes[rng.randrange(len(self.processes))] = self.started(newer=True)
        self.seen["upgrades"] += 1

    def forget(self, rng: Random) -> None:
        """The group is empty for so long that its plain offsets expire: then only the
        individual commits count.

        If they do not cover all hashes, the next start is refused, and an operator
        restores the offsets. Under at-least-once they may be claims of stalled openers
        beside an owner of all hashes that wrote none: see `view`, "Loss of commits".
        """
        for task in self.tasks:
            self.stop(task)
        self.tasks = []
        self.rebalance(rng)
        kept, self.plain = self.plain, {}
        for source in self.sources:
            pieces = self.view.resolve(source, WHOLE)
            if any(isinstance(piece, Hole) for piece in pieces):
                self.plain |= {source: kept[source]} if source in kept else {}
                self.seen["refused for want of offsets"] += 1
            elif not self.exactly_once and self.behind(source):
                self.plain |= {source: kept[source]} if source in kept else {}
                self.seen["claims of stalled openers"] += 1
            else:
                self.seen["forgotten"] += 1
        self.check()

    def behind(self, source: TopicPartition) -> bool:
        """Whether individual commits alone are behind the progress of some hash."""
        found = combine(self.view.resolve(source, WHOLE), None, START)
        return any(
            segment.position < self.truth[source][i]
            for segment in found
            for i in range(
                segment.key_range.start // WIDTH, segment.key_range.end // WIDTH + 1
            )
        )

    def compact(self, rng: Random) -> None:
        """Keep the last value of each key below some offset; drop aborted records, and
        some tombstones.
        """
        end = rng.randint(0, self.log.stable_end())
        kept: set[bytes] = set()
        for i in range(end - 1, -1, -1):
            entry = self.log.entries[i]
            if entry:
                aborted = (
                    entry.transaction is not None
                    and entry.transaction.state == "aborted"
                )
                if (
                    aborted
                    or entry.key in kept
                    or (entry.value is None and rng.random() < 0.5)
                ):
                    self.log.entries[i] = None
                if not aborted:
                    kept.add(entry.key)
        self.seen["compactions"] += 1

    def wake(self, rng: Random) -> None:
        """A zombie continues, and learns nothing until it is refused. An open
        transaction may also time out.
        """
        if self.zombies:
            task = rng.choice(self.zombies)
            if task.transaction and rng.random() < 0.3:
                self.stop(task)
            else:
                self.step(task, rng)
            if task.stage == "dead":
                self.zombies.remove(task)

    def work(self, rng: Random) -> None:
        task = rng.choice(self.tasks)
        if rng.random() < 0.1 and task.stage != "closed":
            self.stop(task)
            task.stage = "closed"
        else:
            self.step(task, rng)

    # One task.

    def stop(self, task: Task) -> None:
        """Abort the open transaction, commit nothing."""
        if task.transaction:
            self.decide(task.transaction, "aborted")
        task.transaction, task.stage = None, "dead"

    def decide(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        self.log.open.remove(transaction)
        self.seen[state] += 1
        if state == "committed":
            self.keep(transaction.offsets)
            for entry in self.log.entries[transaction.first :]:
                if entry and entry.transaction is transaction:
                    self.view.apply(entry.key, entry.value)

    def keep(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        self.plain.update(
            {
                at: Committed.parse(offset, metadata + "\0")
                for at, (offset, metadata) in offsets.items()
                if at in self.truth
            }
        )

    def step(self, task: Task, rng: Random) -> None:
        if rng.random() < 0.7:
            task.process.poll(0)
        match task.stage:
            case "closed":
                task.generation = (
                    task.generation if task in self.zombies else self.generation
                )
                task.barrier = task.process.barrier()
                task.stage = "barrier"
            case "barrier":
                self.pass_barrier(task)
            case "asking":
                self.ask(task)
            case "running" if rng.random() < 0.55:
                self.process(task, rng)
            case "running" | "claiming":
                self.write(task, rng)
            case "written":
                self.fence(task)
            case "fenced":
                self.complete(task)
        self.check()

    def pass_barrier(self, task: Task) -> None:
        pending = any(
            source in transaction.offsets
            for transaction in self.log.open
            for source in self.sources
        )
        if not task.process.passed(task.barrier) or pending:
            self.seen["kept from opening by what cannot be read"] += bool(
                task.process.trouble
            )
            return
        openings = {
            source: task.process.open(
                source, task.key_range, self.plain.get(source), START
            )
            for source in self.sources
        }
        task.progress = Progress(
            task.key_range, openings, Author(GROUP, task.generation, f"t-{id(task)}")
        )
        for source, opening in openings.items():
            task.at[source] = {}
            for i in task.owned:
                segment = next(s for s in opening.segments if i * WIDTH in s.key_range)
                task.at[source][i] = segment.position
                if task not in self.zombies:
                    self.assert_right(source, i, segment.position, segment.stream_time)
        task.flushed = {source: dict(at) for source, at in task.at.items()}
        task.done.clear()
        task.stage = "running" if self.exactly_once else "asking"

    def ask(self, task: Task) -> None:
        """Fence between the reads and the claim derived from them: a zombie that saw
        its successor's commits is refused here.
        """
        assert ask(task.process) == {COMMITS: (task.process.tail, "")}
        task.stage = "dead" if task in self.zombies else "claiming"

    def process(self, task: Task, rng: Random) -> None:
        assert task.progress
        source = rng.choice(self.sources)
        start = task.progress.position(source).offset
        assert start == min(task.at[source].values())
        if rng.random() < 0.2:
            start = rng.randint(0, start)  # the reader went back for a sibling
        stop = min(LENGTH, start + rng.randint(1, 12))
        todo = task.progress.unseen(source, read(start, stop, task.owned))
        at = task.at[source]
        assert list(todo.offsets) == [
            offset
            for offset in range(start, stop)
            if OWNERS[offset] in at and offset >= at[OWNERS[offset]]
        ]
        task.done += [(source, offset) for offset in todo.offsets]
        task.progress.advance(source, stop, stream_time_at(stop))
        task.at[source] = {i: max(position, stop) for i, position in at.items()}

    def write(self, task: Task, rng: Random) -> None:
        """Flush outputs and changelog, then append the records of a commit (or claim)."""
        assert task.progress
        task.commit = plan(
            [task.progress], task.process, claim=task.stage == "claiming"
        )
        if self.exactly_once:
            task.transaction = Transaction(len(self.log.entries))
            self.log.open.append(task.transaction)
        else:
            self.outputs.update(task.done)
            task.done.clear()
            task.flushed = {source: dict(at) for source, at in task.at.items()}
        torn = not self.exactly_once and rng.random() < 0.15
        for key, value in task.commit.records:
            if torn and rng.random() < 0.5:
                continue
            spelled = self.spelled.setdefault(
                key,
                rng.choice(("key", "value")) if task.process in self.upgraded else "",
            )
            self.log.entries.append(Entry(key, value, task.transaction, spelled))
            if not self.exactly_once:
                self.view.apply(key, value)
        self.seen["torn" if torn else "written"] += 1
        task.stage = "closed" if torn else "written"
        if task.stage == "closed" and task in self.zombies:
            task.stage = "dead"

    def fence(self, task: Task) -> None:
        assert task.commit
        assert task.commit.offsets
        if task in self.zombies:
            self.seen["refused"] += 1
            self.stop(task)
        elif task.transaction:
            task.transaction.offsets = task.commit.offsets
            task.stage = "fenced"
        else:
            self.keep(task.commit.offsets)
            self.complete(task)

    def complete(self, task: Task) -> None:
        assert task.progress
        if task.transaction:
            self.decide(task.transaction, "committed")
            self.outputs.update(task.done)
            task.done.clear()
            task.transaction = None
        task.progress.committed()
        for source in self.sources:
            for i in task.owned:
                # An exactly-once commit without news may come late: its author lost
                # nothing, and no task waited for it.
                if (
                    not self.exactly_once
                    or task.flushed[source][i] != task.at[source][i]
                ):
                    self.truth[source][i] = (
                        task.at if self.exactly_once else task.flushed
                    )[source][i]
                self.owner[i] = task
            if self.exactly_once:
                task.flushed[source] = dict(task.at[source])
        task.stage = "running"

    # The expected state.

    def check(self) -> None:
        for source in self.sources:
            segments = combine(
                self.view.resolve(source, WHOLE), self.plain.get(source), START
            )
            assert [segments[0].key_range.start, segments[-1].key_range.end] == [
                0,
                MAX_HASH,
            ]
            for segment in segments:
                for i in range(
                    -(-segment.key_range.start // WIDTH),
                    segment.key_range.end // WIDTH
                    + (segment.key_range.end % WIDTH == WIDTH - 1),
                ):
                    self.assert_right(source, i, segment.position, segment.stream_time)
            plain = self.plain.get(source)
            if self.exactly_once and plain:
                assert plain.offset <= min(self.truth[source])

    def assert_right(
        self, source: TopicPartition, i: int, position: int, stream_time: int
    ) -> None:
        """Check a position that the rule gives for slice i."""
        done, owner = self.truth[source][i], self.owner[i]
        assert stream_time == stream_time_at(position)
        if self.exactly_once:
            assert position == done
        else:
            assert done <= position <= (owner.flushed[source][i] if owner else 0)

    def finish(self) -> None:
        """Check the outputs: every record below the position, and none above it
        (exactly-once).
        """
        for source in self.sources:
            for offset, i in enumerate(OWNERS):
                times = self.outputs[source, offset]
                if offset < self.truth[source][i]:
                    assert times == 1 if self.exactly_once else times >= 1
                else:
                    assert times == 0 or not self.exactly_once
        self.seen["live"] = max(len(self.view.live(source)) for source in self.sources)
