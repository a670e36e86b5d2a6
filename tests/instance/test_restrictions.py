"""The cluster's policy in a running application: announcements to the group,
assignments, and reasons in the status.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.commit.cluster_policy import TOPIC, Policy, PolicyTopic
from coopstreams.common.config import Config
from coopstreams.group.active_version import assign_active
from coopstreams.group.members import (
    Assignment,
    Cluster,
    Member,
    MemberInfo,
    MemberState,
    Runs,
)
from coopstreams.group.slots import Layout
from coopstreams.instance.restrictions import (
    Restrictions,
    announced,
    change,
    in_words,
    restricted,
)
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.resolution import resolve_topology
from coopstreams.tasks.events import PolicyChanged
from coopstreams.tasks.resolved_topology import ResolvedTopology
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import check_tiling
from tests.group.processes import EVENTS, Group, Process

CONFIG = Config.of({"bootstrap.servers": "in-memory"}, "app")


def cluster() -> MemoryLog:
    log = MemoryLog()
    log.create_topics([TopicSpec(name, 2) for name in ("orders", "people", "out")])
    return log


async def slowly(value: bytes) -> bytes:
    return value


def resolved(log: MemoryLog) -> ResolvedTopology:
    """Sub-topology 0 counts orders, 1 calls a slow function for each person."""
    builder = StreamsBuilder("app")
    builder.stream("orders", key=serdes.text, value=serdes.raw).group_by_key().count(
        store="counts"
    )
    builder.stream("people", key=serdes.text, value=serdes.raw).map_values_async(
        slowly
    ).to("out", value=serdes.raw)
    return resolve_topology(log, builder.build(), CONFIG)


PROGRAM = resolved(cluster())
policies = st.dictionaries(
    st.sampled_from(
        [
            ("orders", "accept.range.fetch"),
            ("people", "accept.range.fetch"),
            ("other", "accept.range.fetch"),
            ("", "accept.individual.commit"),
            ("orders", "reserve.message.value.range.fetch"),
        ]
    ),
    st.booleans(),
).map(Policy)


# --- what a member announces
# -----------------------------------------------------------


@given(policies)
def test_what_was_set_to_false_is_obeyed_and_what_was_not_set_is_shared(
    policy: Policy,
) -> None:
    whole = {
        number
        for number, topic in enumerate(["orders", "people"])
        if policy.values.get((topic, "accept.range.fetch")) is False
        or not policy.accepts_individual_commit
    }
    assert restricted(PROGRAM, policy).keys() == whole
    assert [runs.divisible for runs in announced(PROGRAM, policy)] == [
        number not in whole for number in range(2)
    ]
    assert [runs.fingerprint for runs in announced(PROGRAM, policy)] == [
        runs.fingerprint for runs in PROGRAM.announced
    ]


@given(policies, policies)
def test_the_group_hears_of_a_change_if_and_only_if_it_concerns_this_application(
    before: Policy, now: Policy
) -> None:
    changed = change(PROGRAM, before, now) or PolicyChanged(
        announced=False, reopened=frozenset()
    )
    assert changed.announced is (announced(PROGRAM, before) != announced(PROGRAM, now))
    reordered = before.accepts_individual_commit != now.accepts_individual_commit
    assert changed.reopened == ({1} if reordered else set()), (
        "only where records wait for calls, some pass others"
    )


def test_an_application_may_restrict_itself_whatever_the_cluster_allows() -> None:
    log = cluster()
    restrictions = Restrictions(log, lambda: PROGRAM, allowed=False)
    PolicyTopic(log).set("accept.individual.commit", True)
    assert restrictions.look() is None
    assert not restrictions.policy.accepts_individual_commit
    assert [runs.divisible for runs in restrictions.announced()] == [False, False]
    assert in_words(restricted(PROGRAM, restrictions.policy)) == [
        "sub-topologies 0, 1 run with whole partitions: allow.individual.commit=false"
    ]
    restrictions.close()


def test_the_reason_names_topic_and_setting() -> None:
    policy = Policy({("orders", "accept.range.fetch"): False})
    assert in_words(restricted(PROGRAM, policy)) == [
        "sub-topology 0 runs with whole partitions: orders: accept.range.fetch=false (`coopstreams policy get`)"
    ]
    (reason,) = in_words(
        restricted(PROGRAM, Policy({("", "accept.individual.commit"): False}))
    )
    assert reason.startswith(
        "sub-topologies 0, 1 run with whole partitions: the cluster has accept.individual.commit="
    )


@pytest.mark.parametrize(
    ("threads", "ranges", "told"), [(1, 1, 0), (2, 1, 0), (3, 1, 1), (1, 2, 1)]
)
def test_it_is_told_where_the_partitions_would_else_be_cut(
    threads: int, ranges: int, told: int
) -> None:
    log = cluster()
    restrictions = Restrictions(log, lambda: PROGRAM)
    PolicyTopic(log).set("accept.range.fetch", False, "orders")
    restrictions.look()
    members = tuple(
        Member(f"m{number}", MemberInfo(f"p{number}"), ()) for number in range(threads)
    )
    assert len(restrictions.reasons(Cluster(members, {0: 2, 1: 2}), ranges)) == told
    restrictions.close()


# --- looking while it runs
# -------------------------------------------------------------


@dataclass
class Looking:
    """Restrictions on a log in memory that look at each call."""

    log: MemoryLog = field(default_factory=cluster)

    def __post_init__(self) -> None:
        self.restrictions = Restrictions(self.log, lambda: PROGRAM)

    def look(self) -> PolicyChanged | None:
        self.restrictions._look_at = 0.0
        return self.restrictions.look()

    def divisible(self) -> list[bool]:
        return [runs.divisible for runs in self.restrictions.announced()]


def test_a_policy_that_is_set_while_it_runs_is_noticed_and_one_that_is_lifted_too() -> (
    None
):
    looking = Looking()
    assert looking.look() is None
    assert looking.divisible() == [True, True]
    admin = PolicyTopic(looking.log)
    admin.set("accept.range.fetch", False, "orders")
    assert looking.look() == PolicyChanged(announced=True, reopened=frozenset())
    assert looking.divisible() == [False, True]
    admin.set("accept.range.fetch", False, "out")
    assert looking.look() is None, "it reads no topic of that name"
    admin.set("accept.individual.commit", False)
    assert looking.look() == PolicyChanged(announced=True, reopened=frozenset({1}))
    assert looking.divisible() == [False, False]
    admin.set("accept.individual.commit", None)
    admin.set("accept.range.fetch", None, "orders")
    assert looking.look() == PolicyChanged(announced=True, reopened=frozenset({1}))
    assert looking.divisible() == [True, True]
    looking.restrictions.close()


def test_while_it_cannot_be_read_what_was_seen_last_holds_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looking = Looking()
    PolicyTopic(looking.log).set("accept.range.fetch", False, "orders")
    looking.look()

    def away(*_: object) -> int:
        raise LogError("no broker answers", retryable=True)

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(MemoryLog, "end_offset", away)
        assert [looking.look(), looking.look()] == [None, None]
    assert looking.divisible() == [False, True]
    assert [record.getMessage() for record in caplog.records] == [
        "cannot see what the cluster's policy allows; what was seen last holds: no broker answers"
    ]
    looking.log.delete_topics([TOPIC])
    looking.look()
    looking.look()
    assert looking.divisible() == [True, True], "nothing is set in a topic that is gone"
    looking.restrictions.close()


# --- a whole group
# ------------------------------------------------------------------------


@dataclass
class Obeying(Group):
    """A group whose processes learn of a policy at different times."""

    accepts: bool = True
    seen: dict[str, bool] = field(default_factory=dict)

    def info(self, process: Process) -> MemberInfo:
        divisible = self.seen.setdefault(process.name, self.accepts)
        return MemberInfo(
            process.name,
            threads=process.threads,
            topology=(Runs("reads orders", 2, divisible),),
        )

    def set(self, accepts: int) -> None:
        """Change the policy as an administrator."""
        self.accepts = bool(accepts % 2)

    def look(self, which: int) -> None:
        """Have a process look at the policy, and rebalance the group if it has changed."""
        process = self.members[sorted(self.members)[which % len(self.members)]]
        if self.seen.get(process.name) is not self.accepts:
            self.seen[process.name] = self.accepts
            self.rebalance()

    def assign(self, states: Mapping[str, MemberState]) -> Mapping[str, Assignment]:
        assignments = assign_active(states, ranges=self.ranges)
        if not all(state.info.topology[0].divisible for state in states.values()):
            assert all(
                task.key_range.is_whole
                for given in assignments.values()
                for task in given.target
            )
        return assignments


step = st.one_of(
    st.tuples(st.sampled_from(["join", "set", "look", "look"]), st.integers(1, 4)),
    *EVENTS,
)


@pytest.mark.ci
@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 4]), st.lists(step, max_size=40), st.booleans())
def test_whenever_members_hear_of_it_no_key_has_two_owners_and_in_the_end_the_policy_is_obeyed(
    ranges: int, history: list[tuple[str, int]], accepts: bool
) -> None:
    group = Obeying({0: 2}, ranges)
    group.join(2)
    group.play(history)
    group.accepts = accepts
    for which in range(len(group.members)):
        group.look(which)
        group.check()
    group.rest()
    layout = Layout(
        2,
        {id_: process.threads for id_, process in group.members.items()},
        ranges,
        accepts,
    )
    for partition in range(2):
        cut = [
            t.key_range
            for p in group.members.values()
            for t in p.open
            if t.partition == partition
        ]
        check_tiling(cut, f"0_{partition}")
        assert len(cut) in {layout.ranges_of(slots) for slots in layout.counts}
