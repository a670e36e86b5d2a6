"""Who leads a partition for certain, by what several brokers say: the leader epoch that its true end is asked with.

A broker that stood still and wakes goes on as the leader that it was, until it hears of its successor. It reports an
old end offset: a barrier or a restore that believes it misses what its predecessor has committed (seen: 5 instead of
15). So the end is asked for in two steps. The brokers say which leader epoch they know; then the leader of the highest
one is asked, with that epoch (KIP-320), and refuses if it has not heard of it or knows a newer one.

Why no record that was acknowledged before the question lies above the answer. Let it be acknowledged in epoch E.

1. A leader of E, or of a later epoch, answers with an end above the record: the high watermark had passed the record
   when it was acknowledged, and a new leader refuses until its own has reached the start of its epoch (KIP-207).
2. At least `min.insync.replicas` replicas took the record: the ISR. A replica fetches with the leader's epoch, and a
   leader refuses another one than its own, so each of them knows E. In KRaft a broker has an epoch in its metadata
   before it acts on it, and one that restarts answers only when it has read the metadata to their end.
3. So if fewer than `min.insync.replicas` of the replicas are silent, one that answers knows E, and the highest epoch
   is E or later.
4. With `min.insync.replicas` of 1, rule 3 would wait for all replicas. There it suffices that all have answered that
   no view of the highest epoch calls offline; its leader is among them. The next leader comes from the ISR; a leader
   adds to it only brokers that are alive in its own view, and the controller takes out those that are not. So the first
   leader after these views is among those that answered, and would have answered with its own epoch. With more
   than 1 this does not hold: an eligible leader replica outside of the ISR may lead next (KIP-966).

Each answer is to a question put after the end was asked for: an earlier one says nothing of what came in between.

Assumes: clean elections (an unclean one loses records, whoever is asked), and metadata by KRaft. With ZooKeeper (before
Kafka 4) a replica acts on an epoch a moment before its metadata have it, and an epoch may be missed within that moment.
`min.insync.replicas` is believed for a while (`ends`): for so long after it was lowered, one answer too few may do.
Turned down: a record of one's own as the barrier. A stale leader cannot have it acknowledged; but restores need the
ends of changelogs, which would get records that mean nothing, and whoever only looks would need to write. Waiting for
all brokers: one that is dead would hold every restore.
Source: KIP-320, KIP-207, KIP-966; `Partition.fetchOffsetForTimestamp` of the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A partition as one broker knows it. `epoch` -1: this broker tells none. `offline`: of the replicas."""

    leader: int
    epoch: int
    replicas: frozenset[int]
    offline: frozenset[int] = frozenset()
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Whom to ask, and with which epoch. `why_not`: why nobody is to be asked yet; empty: ask."""

    leader: int
    epoch: int
    why_not: str = ""


def choose(answers: Mapping[int, BrokerView | None], min_isr: int) -> Choice | None:
    """Return who leads a partition, by what brokers answered (None: it knows no such partition); None: no broker does.

    Views of one epoch may differ in their replicas while these are reassigned, or in who is offline: each of them must
    have enough answers.
    """
    views = [view for view in answers.values() if view is not None]
    if not views:
        return None
    epoch = max(view.epoch for view in views)
    newest = [view for view in views if view.epoch == epoch]
    leader = max(view.leader for view in newest)
    missing = frozenset().union(*(missing_answers(view, answers, min_isr) for view in newest))
    if len({view.topic_id for view in views}) > 1:
        return Choice(leader, epoch, "the brokers do not agree which topic of that name it is")
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        return Choice(leader, epoch, f"broker {names} may know of a newer leader and has not answered")
    return Choice(leader, epoch, "it has no leader" if leader == NO_LEADER else "")


def missing_answers(view: BrokerView, answered: Collection[int], min_isr: int) -> frozenset[int]:
    """Return the replicas of the newest view whose answers are waited for; none: enough have answered."""
    silent = view.replicas.difference(answered)
    if len(silent) < min(min_isr, len(view.replicas)):
        return frozenset()
    return silent - view.offline if min_isr == 1 else silent
