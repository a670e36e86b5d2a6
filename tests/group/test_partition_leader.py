"""Which broker's answer about a partition's end counts: a model of brokers that learn
late, pause, die and return.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from coopstreams.group.partition_leader import (
    NO_LEADER,
    BrokerView,
    Choice,
    choose,
    choose_each,
    silent_replicas,
)
from coopstreams.topology.columns import TopicPartition

EVENTS, WEIGHTS = ("freeze", "wake", "fence", "back", "join"), (2, 1, 0.5, 2, 2)


@dataclass(frozen=True)
class State:
    """A partition as the controller has it. `eligible`: leader replicas outside of the
    ISR (KIP-966).
    """

    replicas: frozenset[int]
    isr: frozenset[int]
    leader: int
    epoch: int = 0
    offline: frozenset[int] = frozenset()
    eligible: frozenset[int] = frozenset()

    def without(self, broker: int, min_isr: int) -> State:
        """The controller fences a broker whose heartbeats have stopped."""
        isr = self.isr - {broker}
        eligible = (
            self.eligible | (self.isr - isr) if len(isr) < min_isr else frozenset[int]()
        )
        keep = isr or (
            self.isr if min_isr == 1 else isr
        )  # the last one stays, unless others are eligible
        state = replace(
            self, isr=keep, offline=self.offline | {broker}, eligible=eligible
        )
        return state.led() if broker == self.leader else state

    def led(self) -> State:
        """Elect another leader, in a new epoch."""
        isr = min(self.isr - self.offline, default=NO_LEADER)
        leader = (
            isr
            if isr != NO_LEADER
            else min(self.eligible - self.offline, default=NO_LEADER)
        )
        if leader == NO_LEADER:
            return replace(self, leader=NO_LEADER, epoch=self.epoch + 1)
        outside = leader not in self.isr
        return replace(
            self,
            leader=leader,
            epoch=self.epoch + 1,
            isr=frozenset({leader}) if outside else self.isr,
            eligible=self.eligible - {leader},
        )


@dataclass
class Cluster:
    """The controller's states in order, and how many of them each broker knows."""

    brokers: int
    min_isr: int
    states: list[State] = field(init=False)
    known: dict[int, int] = field(init=False)
    frozen: set[int] = field(default_factory=set)
    acknowledged: int = 0
    """The highest epoch in which a record was acknowledged."""

    def __post_init__(self) -> None:
        everybody = frozenset(range(self.brokers))
        self.states = [State(everybody, everybody, 0)]
        self.known = dict.fromkeys(everybody, 0)

    @property
    def now(self) -> State:
        return self.states[-1]

    def seen(self, broker: int) -> State:
        return self.states[self.known[broker]]

    def do(self, what: str, broker: int) -> None:
        """Apply an event to a broker, if possible."""
        state = self.now
        awake = broker not in self.frozen
        if what == "learn" and awake:
            self.known[broker] = len(self.states) - 1
        elif what == "freeze":
            self.frozen.add(broker)
        elif what == "wake":
            self.frozen.discard(broker)
        elif what == "fence" and broker not in state.offline:
            self.states.append(state.without(broker, self.min_isr))
        elif (
            what == "back"
            and awake
            and broker in state.offline
            and self.known[broker] == len(self.states) - 1
        ):
            back = replace(state, offline=state.offline - {broker})
            self.states.append(back if back.leader != NO_LEADER else back.led())
        elif what == "join" and self._leads(state.leader) and self._may_join(broker):
            isr = state.isr | {broker}
            self.states.append(
                replace(
                    state,
                    isr=isr,
                    eligible=state.eligible - isr
                    if len(isr) < self.min_isr
                    else frozenset(),
                )
            )
        elif (
            what == "acknowledge"
            and self._leads(state.leader)
            and len(state.isr) >= self.min_isr
        ):
            heard = all(
                self.seen(one).epoch == state.epoch and one not in self.frozen
                for one in state.isr
            )
            self.acknowledged = state.epoch if heard else self.acknowledged

    def _leads(self, broker: int) -> bool:
        """Whether the leader runs and knows that it leads."""
        return (
            broker != NO_LEADER
            and broker not in self.frozen
            and self.seen(broker).epoch == self.now.epoch
        )

    def _may_join(self, broker: int) -> bool:
        """Whether a leader adds it to the ISR: it is alive in the leader's view, and
        fetches in its epoch.
        """
        alive = (
            broker not in self.now.offline
            and broker not in self.seen(self.now.leader).offline
        )
        return (
            alive
            and broker not in self.now.isr
            and broker not in self.frozen
            and self.seen(broker).epoch == self.now.epoch
        )

    def view(self, broker: int) -> BrokerView:
        state = self.seen(broker)
        return BrokerView(state.leader, state.epoch, state.replicas, state.offline)


def happen(cluster: Cluster, rng: Random, times: int) -> Iterator[int]:
    """Cause this many events; yield the broker of each. Records are written all the
    time.
    """
    for _ in range(times):
        broker = rng.randrange(cluster.brokers)
        cluster.do(
            "fence"
            if broker in cluster.frozen and rng.random() < 0.6
            else rng.choices(EVENTS, WEIGHTS)[0],
            broker,
        )
        for hears in range(cluster.brokers):
            if rng.random() < 0.3:
                cluster.do("learn", hears)
        cluster.do("acknowledge", broker)
        yield broker


@pytest.mark.ci
@settings(max_examples=1000, deadline=None)
@given(
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(0, 2**32),
    st.integers(5, 80),
    st.integers(1, 12),
)
def test_whoever_is_asked_leads_in_the_epoch_of_the_last_acknowledged_record_or_later(
    brokers: int, min_isr: int, seed: int, before: int, meanwhile: int
) -> None:
    rng, cluster = Random(seed), Cluster(brokers, min(min_isr, brokers))
    for _ in happen(cluster, rng, before):
        pass
    acknowledged = cluster.acknowledged
    for broker in sorted(cluster.frozen):
        if rng.random() < 0.6:
            cluster.do("wake", broker)
    answers: dict[int, BrokerView | None] = {}
    for broker in happen(cluster, rng, meanwhile):
        if broker not in cluster.frozen:
            answers.setdefault(broker, cluster.view(broker))
    choice = choose(answers, cluster.min_isr)
    asked = choice is not None and not choice.why_not
    first = next(iter(answers.values()), None)
    event(
        f"asked: {asked}, some broker is behind: {first is not None and first.epoch < acknowledged}"
    )
    assert choice is None or not asked or choice.epoch >= acknowledged


@given(st.integers(1, 5), st.data())
def test_those_that_live_are_enough(brokers: int, data: st.DataObject) -> None:
    """If all brokers that are not offline have answered, and records can be
    acknowledged, no other need answer.
    """
    min_isr = data.draw(st.integers(1, brokers))
    living = data.draw(
        st.sets(
            st.integers(0, brokers - 1),
            min_size=max(min_isr, brokers - min_isr + 1 if min_isr > 1 else 1),
        )
    )
    everybody = frozenset(range(brokers))
    view = BrokerView(min(living), 7, everybody, everybody - living)
    choice = choose(dict.fromkeys(living, view), min_isr)
    assert choice is not None
    assert (choice.leader, choice.epoch, choice.why_not) == (min(living), 7, "")


OLD, NEW = (
    BrokerView(1, 4, frozenset({1, 2, 3})),
    BrokerView(2, 5, frozenset({1, 2, 3}), frozenset({1})),
)


@pytest.mark.parametrize(
    ("answers", "min_isr", "asked"),
    [
        ({1: OLD}, 2, None),
        ({1: OLD, 3: NEW}, 2, (2, 5)),
        ({1: OLD, 3: OLD}, 2, (1, 4)),  # each acknowledged record is on one of them
        ({1: OLD, 3: OLD}, 1, None),  # with 1, it may be on broker 2 alone
        ({2: NEW, 3: NEW}, 1, (2, 5)),
        ({3: NEW}, 1, None),  # broker 2 leads, and may be behind another epoch
        ({2: NEW}, 3, (2, 5)),
        ({1: None, 2: NEW, 3: None}, 1, (2, 5)),
        ({2: replace(NEW, leader=NO_LEADER), 3: NEW}, 1, (2, 5)),
    ],
)
def test_whom_three_brokers_name(
    answers: dict[int, BrokerView | None], min_isr: int, asked: tuple[int, int] | None
) -> None:
    choice = choose(answers, min_isr)
    assert choice is not None
    assert ((choice.leader, choice.epoch) if not choice.why_not else None) == asked


def test_why_nobody_is_asked() -> None:
    assert choose({1: None, 2: None}, 1) is None
    for answers, why in [
        ({1: OLD}, "broker 2, 3 may know of a newer leader"),
        (
            {1: replace(OLD, leader=NO_LEADER), 2: replace(OLD, leader=NO_LEADER)},
            "it has no leader",
        ),
        ({1: replace(OLD, topic_id="x"), 2: NEW}, "do not agree which topic"),
    ]:
        choice = choose(answers, 2)
        assert choice is not None
        assert why in choice.why_not


def test_the_end_of_a_partition_is_asked_for_only_if_its_leader_is_certain() -> None:
    led, doubtful, unknown = (TopicPartition("orders", number) for number in range(3))
    choices = choose_each(
        {2: {led: NEW, doubtful: OLD}, 3: {led: NEW}},
        [led, doubtful, unknown],
        {"orders": 1},
    )
    assert choices.certain == {led: Choice(2, 5)}
    assert choices.reasons.keys() == {doubtful}
    assert "broker 1 may know of a newer leader" in choices.reasons[doubtful]
    assert choices.unknown == {unknown}


def test_where_nobody_tells_min_insync_replicas_the_only_silent_broker_may_have_taken_a_record_alone() -> (
    None
):
    at = TopicPartition("orders", 0)
    views = {1: {at: OLD}, 3: {at: OLD}}
    assert choose_each(views, [at], {"orders": 2}).certain == {at: Choice(1, 4)}
    (why,) = choose_each(views, [at], {}).reasons.values()
    assert "broker 2 may know of a newer leader and has not answered" in why


@pytest.mark.parametrize(("min_isr", "told"), [(1, True), (2, False)])
def test_the_reason_says_what_to_do_about_a_broker_that_lives_and_cannot_be_reached(
    min_isr: int, told: bool
) -> None:
    answers = {1: OLD, 3: OLD} if min_isr == 1 else {1: OLD}
    choice = choose(answers, min_isr)
    assert choice is not None
    assert "advertised.listeners" in choice.why_not
    assert ("min.insync.replicas=2 on the topic" in choice.why_not) is told


def test_a_record_waits_for_each_in_sync_replica_whose_broker_does_not_answer() -> None:
    led, other, unknown = (TopicPartition("orders", number) for number in range(3))
    full, without = (
        replace(OLD, in_sync=frozenset(brokers)) for brokers in ({1, 2, 3}, {1, 3})
    )
    partitions = [led, other, unknown]
    assert silent_replicas({}, partitions) == {}
    assert silent_replicas(
        {1: {led: full, other: without}, 3: {led: full}}, partitions
    ) == {led: {2}}
    assert silent_replicas({1: {led: full}, 3: {led: without}}, partitions) == {}, (
        "one of them knows better"
    )
    assert (
        silent_replicas({1: {led: full}, 2: {led: full}, 3: {led: full}}, partitions)
        == {}
    )
