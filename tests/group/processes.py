"""Only the decisions of a group: joins, crashes, zombies, lost answers, late requests,
slow control threads.

No key ever has two owners, and finally nothing moves any more. Assignor, holdings and
the bytes between members are real; the test chooses the joins and the delivered
answers. The simulated group (tests/simulation) has the same with coordinator, threads,
commits and time, in 100 ms a history; this one takes 2 ms, so hypothesis can search for
a counterexample, and shrink it. `Mixed` of `test_versions` and `Obeying` of
tests/instance/test_restrictions.py play it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import strategies as st

from coopstreams.group.assignor import assign
from coopstreams.group.codec import (
    decode_assignment,
    decode_subscription,
    encode_assignments,
    encode_subscription,
)
from coopstreams.group.holdings import Assigned, GroupEvent, Holdings
from coopstreams.group.members import Assignment, MemberInfo, MemberState
from coopstreams.topology.task_id import TaskId


@dataclass
class Process:
    """One instance: `holdings` as known to its I/O thread, `open` the tasks that its
    threads have.
    """

    name: str
    threads: int
    holdings: Holdings = field(init=False)
    inbox: list[GroupEvent] = field(default_factory=list)
    open: set[TaskId] = field(default_factory=set)
    wanted: set[TaskId] = field(default_factory=set)
    owed: set[TaskId] = field(default_factory=set)
    seen: int = 0
    epoch: int = 0
    request: bytes = b""
    """The process's last request to join."""
    answered: bool = True
    """Whether the request was answered: otherwise the group refuses the process's
    commits.
    """

    def __post_init__(self) -> None:
        self.holdings = Holdings(self.name)

    def handle(self) -> None:
        """Handle one event as the control thread does; check that no opened range
        overlaps one that is still to be closed.
        """
        if not self.inbox:
            return
        event = self.inbox.pop(0)
        if isinstance(event, Assigned):
            self.seen, self.epoch = event.serial, event.epoch
            self.owed |= {*event.revoked}
            self.wanted = {*event.tasks}
        else:
            self.open, self.owed, self.wanted = set(), set(), set()
        self._open()

    def release(self) -> None:
        """Release revoked tasks: the stream threads have committed and closed them."""
        self.open -= self.owed
        self.holdings.released(self.owed, self.seen)
        self.owed = set()
        self._open()

    def _open(self) -> None:
        self.open |= {
            task
            for task in self.wanted
            if not any(task.conflicts(other) for other in self.open | self.owed)
        }


@dataclass
class Group:
    """The broker's knowledge: the members and the generation."""

    partitions: dict[int, int]
    ranges: int
    members: dict[str, Process] = field(default_factory=dict)
    zombies: list[Process] = field(default_factory=list)
    generation: int = 0
    _names: int = 0

    def join(self, threads: int) -> None:
        self._names += 1
        self.members[f"member-{self._names}"] = Process(
            f"process-{self._names}", threads
        )

    def crash(self, which: int) -> None:
        if len(self.members) > 1:
            del self.members[sorted(self.members)[which % len(self.members)]]

    def expel(self, which: int) -> None:
        """The session of a member times out; it does not know yet, and continues."""
        if len(self.members) > 1:
            self.zombies.append(
                self.members.pop(sorted(self.members)[which % len(self.members)])
            )

    def wake(self) -> None:
        """A zombie's next heartbeat is refused: it forgets everything and joins under a
        new member id.
        """
        if self.zombies:
            zombie = self.zombies.pop(0)
            zombie.request, zombie.answered = b"", True
            zombie.inbox.append(zombie.holdings.lost())
            self._names += 1
            self.members[f"member-{self._names}"] = zombie

    def info(self, process: Process) -> MemberInfo:
        return MemberInfo(process.name, threads=process.threads)

    def assign(self, states: Mapping[str, MemberState]) -> Mapping[str, Assignment]:
        """The leader's decision."""
        return assign(self.partitions, states, ranges=self.ranges)

    def clash(self, one: Process, a: TaskId, other: Process, b: TaskId) -> bool:
        """Whether some key belongs to both tasks."""
        return a.conflicts(b)

    def rebalance(self, deaf: int = -1, late: int = -1) -> None:
        """All members join; all but these two receive their assignment. For `late`, the
        broker handles an old request after the last one: the group has its old claim,
        and it gets no answer.
        """
        self.generation += 1
        told = {}
        for number, (id_, process) in enumerate(sorted(self.members.items())):
            request = encode_subscription(
                *process.holdings.state(self.info(process)), ["t"], {0: ["t"]}
            )
            process.answered = number != late or not process.request
            told[id_] = request if process.answered else process.request
            process.request = request
        states = {id_: decode_subscription(data, id_) for id_, data in told.items()}
        given_ = encode_assignments(self.assign(states), {0: ["t"]})
        for number, (id_, process) in enumerate(sorted(self.members.items())):
            if (
                process.answered
                and (void := process.holdings.answered(self.generation)) is not None
            ):
                process.inbox.append(void)
            if process.answered and number != deaf:
                process.inbox.append(
                    process.holdings.assigned(
                        self.generation, decode_assignment(given_[id_], "leader")
                    )
                )

    def check(self) -> None:
        """Check that no key has two owners among the members of the current generation."""
        aware = [
            p
            for p in self.members.values()
            if p.answered and all(isinstance(event, Assigned) for event in p.inbox)
        ]
        for one, other in combinations(aware, 2):
            clashes = [
                (str(a), str(b))
                for a in one.open
                for b in other.open
                if self.clash(one, a, other, b)
            ]
            assert not clashes, (one.name, other.name, clashes)
        for process in aware:
            assert process.open <= {*process.holdings.held}

    def play(self, history: Iterable[tuple[str, int]]) -> None:
        """Apply these events in order; the number is a member's, or a count. Check
        after each that no key has two owners.
        """
        for what, number in history:
            everybody = [self.members[id_] for id_ in sorted(self.members)]
            match what:
                case "handle" | "release":
                    getattr(everybody[number % len(everybody)], what)()
                case "all handle" | "all release":
                    for process in everybody:
                        getattr(process, what.removeprefix("all "))()
                case "deaf" | "late":
                    self.rebalance(**{what: number % len(everybody)})
                case "wake" | "rebalance":
                    getattr(self, what)()
                case _:
                    getattr(self, what)(number)
            self.check()

    def rest(self) -> int:
        """Have all members handle, release and join until none requests a rebalance;
        return the number of them.
        """
        for rounds in range(10):
            for process in self.members.values():
                while process.inbox:
                    process.handle()
                    self.check()
                process.release()
                self.check()
            if rounds and not any(
                p.holdings.wants_rebalance for p in self.members.values()
            ):
                self.check_rest()
                return rounds
            self.rebalance()
            self.check()
        raise AssertionError("the group does not come to rest")

    def check_rest(self) -> None:
        """Check that another rebalance moves nothing."""
        before = {id_: {*process.open} for id_, process in self.members.items()}
        self.rebalance()
        for id_, process in self.members.items():
            event = process.inbox.pop()
            assert isinstance(event, Assigned)
            assert (event.added, event.revoked) == ((), ())
            assert before[id_] == {*event.tasks}


EVENTS = (
    st.tuples(
        st.sampled_from(["crash", "expel", "deaf", "late", "handle", "release"]),
        st.integers(0, 9),
    ),
    st.tuples(
        st.sampled_from(
            ["wake", "rebalance", "rebalance", "all handle", "all release"]
        ),
        st.just(0),
    ),
)
"""Events of the members of a group."""
