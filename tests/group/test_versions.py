"""Members that run different topologies: the active version, its assignment, and why
the other members wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from coopstreams.group.active_version import (
    active_version,
    assign_active,
    short,
    version_of,
)
from coopstreams.group.codec import decode_assignment, encode_subscription
from coopstreams.group.coordinator_interface import Hooks, Identity, Timings
from coopstreams.group.members import Assignment, MemberInfo, MemberState, Runs
from coopstreams.group.membership import GroupMember, Participant
from coopstreams.topology.keys import WHOLE, KeyRange, check_tiling
from coopstreams.topology.task_id import TaskId
from tests.group.processes import EVENTS, Group, Process

OLD = (Runs("reads b", 2),)
NEW = (Runs("reads a", 2), Runs("reads b too", 2))


def member(
    topology: Iterable[Runs],
    tasks: Iterable[TaskId] = (),
    generation: int = 1,
    target: Iterable[TaskId] = (),
    threads: int = 1,
) -> MemberState:
    return MemberState(
        MemberInfo("p", topology=tuple(topology), threads=threads),
        tuple(tasks),
        generation,
        tuple(target),
    )


def task(subtopology: int, partition: int, key_range: KeyRange = WHOLE) -> TaskId:
    return TaskId(subtopology, partition, key_range)


def active(**members: MemberState) -> set[str]:
    """Return the names of the members of the active version."""
    version = active_version(members)
    return {
        name for name, state in members.items() if version_of(state.info) == version
    }


# --- which version is active ------------------------------------------------------


def test_the_version_of_most_members_is_active() -> None:
    assert active(a=member(OLD), b=member(NEW), c=member(NEW)) == {"b", "c"}


def test_of_two_that_are_equal_in_number_the_one_that_has_tasks_stays() -> None:
    held = [task(0, 0)]
    assert active(a=member(OLD, held, 5, held), b=member(NEW)) == {"a"}
    assert active(a=member(OLD), b=member(NEW, held, 5, held)) == {"b"}


def test_of_two_versions_equal_in_number_the_one_that_was_promised_tasks_goes_on_while_the_other_closes_its() -> (
    None
):
    assert active(
        a=member(OLD, [task(0, 0)], 6), b=member(NEW, (), 6, [task(0, 0)])
    ) == {"b"}


def test_a_promise_of_long_ago_counts_less_than_a_later_one() -> None:
    held = [task(0, 0)]
    assert active(a=member(OLD, held, 5, held), b=member(NEW, held, 8, held)) == {"b"}


def test_without_a_history_everybody_chooses_the_same() -> None:
    members = {"a": member(OLD), "b": member(NEW)}
    assert active_version(members) == active_version(dict(reversed(members.items())))


# --- what members get ---------------------------------------------------------------


def test_a_leader_of_another_version_deals_the_tasks_of_the_active_one() -> None:
    """The assignment follows from the announcements of members, not from the leader's
    own topology.
    """
    given = assign_active({"a": member(OLD), "b": member(OLD), "leader": member(NEW)})
    assert {name: assignment.tasks for name, assignment in given.items()} == {
        "a": (task(0, 0),),
        "b": (task(0, 1),),
        "leader": (),
    }
    assert {name: bool(assignment.waits) for name, assignment in given.items()} == {
        "a": False,
        "b": False,
        "leader": True,
    }
    assert given["leader"].cluster.partitions == {0: 2}
    assert [member.id for member in given["leader"].cluster.members] == [
        "a",
        "b",
        "leader",
    ]


def test_nobody_is_given_anything_before_the_other_version_has_released_everything() -> (
    None
):
    """Their common topic is in sub-topology 0 of one and 1 of the other."""
    closing = {
        "a": member(OLD, [task(0, 1)], 6),
        "b": member(NEW, (), 7),
        "c": member(NEW, (), 6),
    }
    given = assign_active(closing)
    assert {name: assignment.tasks for name, assignment in given.items()} == {
        "a": (),
        "b": (),
        "c": (),
    }
    assert all(given[name].target for name in "bc")
    assert not any(assignment.settled for assignment in given.values()), (
        "whoever releases has the group rebalance"
    )
    released = {
        "a": member(OLD, (), 7),
        **{name: member(NEW, (), 7, given[name].target) for name in "bc"},
    }
    assert {
        name: assignment.tasks for name, assignment in assign_active(released).items()
    } == {
        "a": (),
        "b": given["b"].target,
        "c": given["c"].target,
    }


def test_what_a_member_of_another_version_held_before_the_group_went_on_without_it_keeps_nobody_waiting() -> (
    None
):
    held = (task(0, 0), task(0, 1), task(1, 0), task(1, 1))
    given = assign_active(
        {
            "zombie": member(OLD, [task(0, 0)], 5),
            "b": member(NEW, held, 8, held),
            "c": member(NEW, (), -1),
        }
    )
    assert given["b"].tasks
    assert set(given["b"].tasks) <= set(held)


def test_the_same_sub_topologies_under_other_numbers_are_another_version() -> None:
    given = assign_active(
        {"a": member(NEW), "b": member(NEW), "c": member(reversed(NEW))}
    )
    assert given["c"].tasks == ()
    assert "its sub-topologies have other numbers" in given["c"].waits


def test_partitions_that_only_one_has_seen_are_dealt_and_versions_stay_the_same() -> (
    None
):
    """A topic by pattern: the other members look for topics again when they get its
    tasks.
    """
    given = assign_active(
        {"a": member([Runs("pattern", 1)]), "b": member([Runs("pattern", 3)])}
    )
    assert sorted(
        task.partition for assignment in given.values() for task in assignment.tasks
    ) == [0, 1, 2]
    assert not any(assignment.waits for assignment in given.values())
    nothing = assign_active({"a": member([Runs("pattern", 0)])})
    assert nothing["a"].tasks == ()
    assert nothing["a"].cluster.partitions == {}


def test_what_cannot_be_cut_is_not_cut() -> None:
    given = assign_active(
        {
            "a": member([Runs("x", 1, divisible=False)]),
            "b": member([Runs("x", 1, divisible=False)]),
        }
    )
    assert sorted(assignment.tasks for assignment in given.values()) == [
        (),
        (task(0, 0),),
    ]
    assert not any(assignment.waits for assignment in given.values()), (
        "a member without a share is not one of another version"
    )


def test_a_member_that_does_not_say_what_it_runs_is_refused_and_what_it_holds_is_not_given_away() -> (
    None
):
    given = assign_active(
        {"a": member(OLD, (), -1), "old": member((), [task(0, 0)], 4)}
    )
    assert given["a"].tasks == ()
    assert given["a"].target
    assert given["old"].error.startswith(
        "member old does not say which topology it runs: it is a consumer, or an instance of an older version"
    )
    assert not given["old"].waits
    assert all(
        assignment.error for assignment in assign_active({"old": member(())}).values()
    )


def test_nobody_there_is_nobody_assigned() -> None:
    assert assign_active({}) == {}


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        (NEW, "2 sub-topologies, not 1"),
        ((Runs("reads c", 2),), "sub-topology 0 differs"),
        (
            (Runs("reads b, of 3", 3),),
            "sub-topology 0 differs (0 has 3 partitions, not 2)",
        ),
    ],
)
def test_the_reason_says_what_differs_and_when_it_ends(
    mine: tuple[Runs, ...], says: str
) -> None:
    given = assign_active({"a": member(OLD), "b": member(OLD), "c": member(mine)})
    version = short(version_of(given["c"].cluster.members[2].info))
    there = short(version_of(given["c"].cluster.members[0].info))
    assert given["c"].waits == (
        f"it runs version {version} of the topology, and the group runs {there} (2 of 3 members): {says}. "
        "It takes over when most members run its version, or the others have left"
    )


# --- a whole group, versions mixed ----------------------------------------------------

COUNTS = {"a": 2, "b": 3, "c": 9}
PARTS = {
    "reads a": "a",
    "reads b": "b",
    "reads b, otherwise": "b",
    "reads a and b": "ab",
    "reads c": "c",
}
"""Topics by fingerprint."""


def _topology(prints: Iterable[str]) -> tuple[Runs, ...]:
    """Return the sub-topologies of a program: no topic is read by two of them."""
    topology: list[Runs] = []
    for fingerprint in prints:
        if not any(
            topic in PARTS[part.fingerprint]
            for part in topology
            for topic in PARTS[fingerprint]
        ):
            topology.append(
                Runs(fingerprint, max(COUNTS[topic] for topic in PARTS[fingerprint]))
            )
    return tuple(topology)


programs = st.lists(st.sampled_from(list(PARTS)), min_size=1, max_size=5).map(_topology)


@dataclass
class Mixed(Group):
    """A group whose processes run different programs."""

    versions: list[tuple[Runs, ...]] = field(default_factory=list)
    runs: dict[str, tuple[Runs, ...]] = field(default_factory=dict)
    """The program of each process, which never changes."""

    def info(self, process: Process) -> MemberInfo:
        return MemberInfo(
            process.name,
            threads=process.threads,
            topology=self.runs.setdefault(process.name, self.versions[0]),
        )

    def start(self, version: int) -> None:
        """Start a process of this version, which joins."""
        self.join(1 + version % 2)
        self.runs[f"process-{self._names}"] = self.versions[
            version % len(self.versions)
        ]

    def assign(self, states: Mapping[str, MemberState]) -> Mapping[str, Assignment]:
        assignments = assign_active(states, ranges=self.ranges)
        given_some = {
            version_of(states[id_].info)
            for id_, assignment in assignments.items()
            if assignment.tasks or assignment.target
        }
        assert given_some == {active_version(states)}
        for id_, assignment in assignments.items():
            assert bool(assignment.waits) is (
                version_of(states[id_].info) != active_version(states)
            )
            assert bool(assignment.waits) is not bool(assignment.target)
        return assignments

    def sources(self, process: Process, task: TaskId) -> set[tuple[str, int]]:
        """Return the partitions of topics that a task reads."""
        topics = PARTS[self.info(process).topology[task.subtopology].fingerprint]
        return {
            (topic, task.partition)
            for topic in topics
            if task.partition < COUNTS[topic]
        }

    def clash(self, one: Process, a: TaskId, other: Process, b: TaskId) -> bool:
        return a.key_range.overlaps(b.key_range) and bool(
            self.sources(one, a) & self.sources(other, b)
        )

    def check(self) -> None:
        super().check()
        for process in self.members.values():
            for task in process.open:
                assert task.subtopology < len(self.info(process).topology)

    def check_complete(self) -> None:
        """Check that every hash of every partition of the active version has an owner,
        and runs there.
        """
        running = {version_of(self.info(p)) for p in self.members.values() if p.open}
        assert len(running) == 1
        active = next(self.info(p).topology for p in self.members.values() if p.open)
        for number, part in enumerate(active):
            for partition in range(part.partitions):
                ranges = [
                    t.key_range
                    for p in self.members.values()
                    for t in p.open
                    if (t.subtopology, t.partition) == (number, partition)
                ]
                check_tiling(ranges, f"{number}_{partition}")


step = st.one_of(st.tuples(st.just("start"), st.integers(0, 2)), *EVENTS)


@pytest.mark.ci
@settings(max_examples=300, deadline=None)
@given(
    st.lists(programs, min_size=1, max_size=3),
    st.sampled_from([1, 1, 2, 8]),
    st.lists(step, max_size=40),
)
def test_whatever_happens_no_key_of_a_source_partition_has_two_owners_in_any_version_and_the_group_comes_to_rest(
    versions: list[tuple[Runs, ...]], ranges: int, history: list[tuple[str, int]]
) -> None:
    group = Mixed({}, ranges, versions=versions)
    group.start(0)
    group.play(history)
    rounds = group.rest()
    note(f"at rest after {rounds} rebalances")
    assert rounds <= 4
    group.check_complete()
    for process in group.members.values():
        assert bool(process.open) is (
            version_of(group.info(process)) == version_of(_running(group))
        )


def _running(group: Mixed) -> MemberInfo:
    return next(group.info(p) for p in group.members.values() if p.open)


# --- what the leader adds ---------------------------------------------------------


def leading(topology: tuple[Runs, ...], sources: Mapping[int, Sequence[str]]) -> Hooks:
    """Return the decisions of a member, without a client."""
    found: list[Hooks] = []

    def connect(
        group: str,
        identity: Identity,
        timings: Timings,
        hooks: Hooks,
    ) -> Any:
        found.append(hooks)

    info = MemberInfo("leader", topology=topology)
    participant = Participant(
        "g", [], lambda: info, assign_active, lambda _: None, sources=sources
    )
    GroupMember(connect, participant)
    return found[0]


@pytest.mark.parametrize(("topology", "names"), [(NEW, {"a", "b"}), (OLD, set())])
def test_a_leader_names_the_topics_of_tasks_unless_it_waits_and_means_other_topics_by_their_numbers(
    topology: tuple[Runs, ...], names: set[str]
) -> None:
    versions = {"leader": topology, "old": OLD, "a": NEW, "b": NEW, "c": NEW}
    told = {
        process: encode_subscription(
            MemberState(MemberInfo(process, topology=version)), 0, (), {}
        )
        for process, version in versions.items()
    }
    assignments = leading(topology, {0: ["a"], 1: ["b"]}).assignments(told)
    named = {
        at.topic
        for data in assignments.values()
        for at in ConsumerProtocolAssignment.decode(data).assigned_partitions
    }
    assert named == names
    assert [
        who for who, data in assignments.items() if decode_assignment(data, who).waits
    ] == [who for who in told if versions[who] == OLD]
