"""The leader of a partition for certain, decided from the views of several brokers.

A broker that hung still acts as the leader when it wakes up, and reports an old end. So
enough brokers report the leader epoch that they know. The leader of the highest epoch
is asked for the end, with that epoch (KIP-320).
How many are enough, and why: docs/internals/leaders.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coopstreams.topology.columns import TopicPartition

NO_LEADER = -1
NOT_TOLD = 1
"""The `min.insync.replicas` assumed for a topic that this principal may not describe.
It requires the most answers.
"""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A partition as one broker knows it.

    `leader` and the replicas are broker ids; `offline` and `in_sync` are the replicas
    in that state. `epoch`: the leader epoch; -1: this broker reports none.
    """

    leader: int
    epoch: int
    replicas: frozenset[int]
    offline: frozenset[int] = frozenset()
    topic_id: str = ""
    in_sync: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """The leader of a partition and its epoch. `why_not`: why the leader must not be
    asked for the end yet; empty: it may be.
    """

    leader: int
    epoch: int
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices for several partitions.

    Shape: `certain`: the leaders that may be asked. `reasons`: why other leaders must
    not be asked yet. `unknown` are partitions that no broker knows.
    """

    certain: Mapping[TopicPartition, Choice]
    reasons: Mapping[TopicPartition, str]
    unknown: frozenset[TopicPartition]


def choose_each(
    views: Mapping[int, Mapping[TopicPartition, BrokerView]],
    partitions: Collection[TopicPartition],
    min_isr: Mapping[str, int],
) -> Choices:
    """Return the choices for several partitions. `views`: by broker. `min_isr`: by
    topic, if it is known.
    """
    choices = {
        at: choose(
            {broker: known.get(at) for broker, known in views.items()},
            min_isr.get(at.topic, NOT_TOLD),
        )
        for at in partitions
    }
    known = {at: choice for at, choice in choices.items() if choice is not None}
    return Choices(
        {at: choice for at, choice in known.items() if not choice.why_not},
        {at: choice.why_not for at, choice in known.items() if choice.why_not},
        frozenset(choices.keys() - known.keys()),
    )


def silent_replicas(
    views: Mapping[int, Mapping[TopicPartition, BrokerView]],
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, frozenset[int]]:
    """Return the brokers with an in-sync replica that have not answered, for each
    partition that has any.

    `views`: of the brokers that have answered. A replica counts as in sync if it is so
    in all views, since one view may be newer.
    """
    found = {}
    for at in partitions:
        in_sync = [known[at].in_sync for known in views.values() if at in known]
        if in_sync and (silent := frozenset.intersection(*in_sync).difference(views)):
            found[at] = silent
    return found


def choose(answers: Mapping[int, BrokerView | None], min_isr: int) -> Choice | None:
    """Return the leader of a partition by the brokers' answers; None: no broker knows
    the partition.

    Shape: `answers` by broker; None: it does not know the partition. During a
    reassignment, views of one epoch may differ in their replicas, and at any time in
    which are offline. Each of these views must have enough answers.
    """
    views = [view for view in answers.values() if view is not None]
    if not views:
        return None
    epoch = max(view.epoch for view in views)
    newest = [view for view in views if view.epoch == epoch]
    leader = max(view.leader for view in newest)
    return Choice(leader, epoch, _why_not(views, newest, answers, min_isr))


def _why_not(
    views: Collection[BrokerView],
    newest: Collection[BrokerView],
    answered: Collection[int],
    min_isr: int,
) -> str:
    """Return why the leader of the `newest` views, those of the highest leader epoch,
    must not be asked yet; empty: it may be. `answered`: the brokers that have answered.
    """
    if len({view.topic_id for view in views}) > 1:
        return "the brokers do not agree which topic of that name it is"
    missing = frozenset().union(
        *(missing_answers(view, answered, min_isr) for view in newest)
    )
    if missing:
        return _unanswered(missing, min_isr)
    if all(view.leader == NO_LEADER for view in newest):
        return "it has no leader"
    return ""


def _unanswered(missing: frozenset[int], min_isr: int) -> str:
    """Return the message that these brokers have to answer first, with the cure."""
    names = ", ".join(map(str, sorted(missing)))
    need = (
        f"broker {names} may know of a newer leader and has not answered. Have it answer this machine (its "
        "advertised.listeners, a firewall), or stop it"
    )
    if min_isr > 1:
        return need
    return f"{need}; with min.insync.replicas=2 on the topic, a single silent broker of its replicas is not waited for"


def missing_answers(
    view: BrokerView,
    answered: Collection[int],
    min_isr: int,
) -> frozenset[int]:
    """Return the replicas of the newest view whose answers are needed; empty: enough
    have answered.
    """
    silent = view.replicas.difference(answered)
    if len(silent) < min(min_isr, len(view.replicas)):
        return frozenset()
    return silent - view.offline if min_isr == 1 else silent
