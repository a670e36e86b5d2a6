"""The leader of a partition, for certain, by the views of several brokers: the true end
is requested with its epoch.

A broker that hung and wakes up still acts as the leader, until it hears of its
successor. It reports an old end offset: a barrier or a restore that believes it misses
commits of its predecessor (seen: 5 instead of 15). So the end is found in two steps.
The brokers report the leader epoch that they know; then the leader of the highest epoch
is asked for the end, with that epoch (KIP-320). It refuses if it has not heard of the
epoch or knows a newer one.

Why every record that was acknowledged before the request lies below the answer: let it
be acknowledged in epoch E.

1. A leader of E, or of a later epoch, answers with an end above the record: the high
   watermark had passed the record when it was acknowledged, and a new leader refuses
   until its own has reached the start of its epoch (KIP-207).
2. At least `min.insync.replicas` replicas took the record: the ISR. A replica fetches
   with the leader's epoch, and a leader refuses another one than its own, so each of
   them knows E. In KRaft a broker has an epoch in its metadata before it acts on it,
   and one that restarts answers only when it has read the metadata to their end.
3. So if fewer than `min.insync.replicas` of the replicas are silent, one that answers
   knows E, and the highest epoch is E or later.
4. With `min.insync.replicas` of 1, rule 3 would wait for all replicas. There it
   suffices that all replicas have answered that no view of the highest epoch calls
   offline; its leader is among them. The next leader comes from the ISR; a leader adds
   to it only brokers that are alive in its own view, and the controller takes out those
   that are not. So the first leader after these views is among those that answered, and
   would have answered with its own epoch. With more than 1 this does not hold: an
   eligible leader replica outside of the ISR may lead next (KIP-966).

   A broker that other brokers call alive, and that cannot be reached from here, is
   therefore waited for. Nothing that the others tell decides without it: it may have
   been elected while the leader that answers hung, also if the views of that leader do
   not have it in sync (it may just have been added). The reason names the broker and
   the cure.

Each view is requested after the call for the end began: an earlier one may be out of
date.

Assumes: clean elections (an unclean one loses records in any case), and metadata by
KRaft. With ZooKeeper (before Kafka
4) a replica acts on an epoch a moment before its metadata have it, and an epoch may be
   missed within that moment.
`min.insync.replicas` is cached for a while (`ends`): for so long after it was lowered,
one answer too few may be accepted. Turned down: a record of one's own as the barrier. A
stale leader cannot have it acknowledged, with any `min.insync.replicas`: every replica
in sync has to fetch it in the leader's epoch. But restores need the ends of changelogs,
which would get meaningless records, and readers would need to write. Waiting for all
brokers: a dead one would hold every restore.
Source: KIP-320, KIP-207, KIP-966; `Partition.fetchOffsetForTimestamp` of the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coopstreams.topology.columns import TopicPartition

NO_LEADER = -1
NOT_TOLD = 1
"""`min.insync.replicas` of a topic that this principal may not describe: it demands the
most answers.
"""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A partition as one broker knows it. `epoch` -1: this broker reports none.
    `offline`: the replicas that are.
    """

    leader: int
    epoch: int
    replicas: frozenset[int]
    offline: frozenset[int] = frozenset()
    topic_id: str = ""
    in_sync: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """The leader to ask, and the epoch to ask it with. `why_not`: why not to ask yet;
    empty: ask.
    """

    leader: int
    epoch: int
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices for several partitions.

    Shape: `certain`: the leaders to ask. `reasons`: why not to ask yet. `unknown` are
    partitions that no broker knows.
    """

    certain: Mapping[TopicPartition, Choice]
    reasons: Mapping[TopicPartition, str]
    unknown: frozenset[TopicPartition]


def choose_each(
    views: Mapping[int, Mapping[TopicPartition, BrokerView]],
    partitions: Collection[TopicPartition],
    min_isr: Mapping[str, int],
) -> Choices:
    """Return the leaders of partitions. `views`: by broker. `min_isr`: by topic, where
    it is known.
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
    """Return the brokers of in-sync replicas that have not answered; partitions without
    one are left out.

    `views`: by broker that has answered. A replica counts as in sync if all views have
    it in sync, since one view may be newer.
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

    Shape: `answers` by broker; None: it does not know the partition. Views of one epoch
    may differ in their replicas while these are reassigned, or in which are offline:
    each of them must have enough answers.
    """
    views = [view for view in answers.values() if view is not None]
    if not views:
        return None
    epoch = max(view.epoch for view in views)
    newest = [view for view in views if view.epoch == epoch]
    leader = max(view.leader for view in newest)
    missing = frozenset().union(
        *(missing_answers(view, answers, min_isr) for view in newest)
    )
    why_not = "it has no leader" if leader == NO_LEADER else ""
    if missing:
        why_not = _unanswered(missing, min_isr)
    if _of_several_topics(views):
        why_not = "the brokers do not agree which topic of that name it is"
    return Choice(leader, epoch, why_not)


def _of_several_topics(views: Collection[BrokerView]) -> bool:
    return len({view.topic_id for view in views}) > 1


def _unanswered(missing: frozenset[int], min_isr: int) -> str:
    """Return why to wait for these brokers, and the cure."""
    names = ", ".join(map(str, sorted(missing)))
    need = (
        f"broker {names} may know of a newer leader and has not answered. Have it answer this machine (its "
        "advertised.listeners, a firewall), or stop it"
    )
    if min_isr > 1:
        return need
    return f"{need}; with min.insync.replicas=2 on the topic, a single silent broker of its replicas is not waited for"


def missing_answers(
    view: BrokerView, answered: Collection[int], min_isr: int
) -> frozenset[int]:
    """Return the replicas of the newest view whose answers are missing; empty: enough
    have answered.
    """
    silent = view.replicas.difference(answered)
    if len(silent) < min(min_isr, len(view.replicas)):
        return frozenset()
    return silent - view.offline if min_isr == 1 else silent
