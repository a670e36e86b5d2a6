"""The markers that hanging transactions lack. A transaction hangs if its coordinator
calls it complete while a partition still has it open.

A coordinator completes a transaction when it has written a marker (COMMIT or ABORT) to
each of its partitions. A broker with KAFKA-20734 (4.3.0, 4.3.1, 4.4.0) takes a
partition that has no leader at that moment for deleted, and completes the transaction
without a marker there. The partition then keeps the producer's transaction open, and
the producer's *next* marker there ends both as one: an ABORT takes back what was
acknowledged as committed, a COMMIT brings back what was aborted.

The cure follows from both answers, if the coordinator was asked first:

    coordinator        partition: open   meaning                                                   cure
    Prepare…           yes or no         markers are on their way                                  ask again
    Ongoing            yes or no         the current transaction                                   nothing
    CompleteCommit     yes               a COMMIT marker that was never written                    write it
    CompleteAbort      yes               an ABORT marker that was never written                    write it
    Empty              yes               the same: the producer was initialised after an abort     write it

The coordinator reports `Empty` after `InitProducerId`, which forgets how the last
transaction ended. That transaction was aborted: by the invariant a committed one was
finished before.

Invariant: a producer is initialised, or begins a transaction, only when its last
committed transaction is finished in all its partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from coopstreams.common.acl_errors import Login
from coopstreams.topology.columns import TopicPartition

COMMITTED = "CompleteCommit"
ENDED = frozenset({COMMITTED, "CompleteAbort", "Empty"})
ONGOING = "Ongoing"
ENDING = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})

SKIPPING_METADATA = range(30, 32)
"""The newest metadata versions of brokers with KAFKA-20734: 4.3 (30) and 4.4 (31).
Patch releases report the same versions.
"""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The coordinator's description of the current transaction of a transactional id.

    Shape: `state` is Kafka's word. `producer` and `epoch` are the producer id and its
    epoch. `partitions` are those in which the transaction has written.
    """

    state: str
    producer: int
    epoch: int
    partitions: frozenset[TopicPartition] = field(default=frozenset())


@dataclass(frozen=True, slots=True)
class Open:
    """An open transaction in a partition: the id and the epoch of its producer, and the
    offset where it begins. `coordinator_epoch`: the epoch of the transaction
    coordinator, as the partition's leader knows it.
    """

    producer: int
    epoch: int
    coordinator_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker that ends a producer's transaction in a partition. `commit`: whether
    it is COMMIT; otherwise it is ABORT. The numbers are those of the `Open`
    transaction.
    """

    producer: int
    epoch: int
    coordinator_epoch: int
    commit: bool


def missing_markers(
    told: TransactionDescription,
    open_: Mapping[TopicPartition, Sequence[Open]],
) -> dict[TopicPartition, Marker]:
    """Return the marker that each partition lacks. `told`: what the coordinator says of
    the transaction; `open_`: the transactions that are open in each partition.

    The coordinator must be asked before the partitions, and give the same answer after
    them. A partition with a newer producer epoch than the coordinator's lacks none: the
    producer has gone on in between.

    Shape: the marker is the one that the coordinator would have written; its
    coordinator epoch is at least that of the partition's last marker.
    """
    if told.state not in ENDED:
        return {}
    return {
        at: Marker(
            told.producer,
            told.epoch,
            max(one.coordinator_epoch, 0),
            told.state == COMMITTED,
        )
        for at, all_ in open_.items()
        for one in all_
        if one.producer == told.producer and one.epoch <= told.epoch
    }


def believed(
    told_by: int | None,
    brokers: Collection[int],
    named: Mapping[int, int],
) -> bool:
    """Return whether the broker that described a transaction coordinates it: all other
    brokers that answer must name it.

    `named`: the coordinator that each answering broker names. A broker that hung still
    acts as the coordinator for a moment and reports an old state. It may call a
    transaction committed that the new coordinator has open, or aborts (seen: 802
    records became visible 0.2 s before their abort).
    """
    others = set(brokers) - {told_by}
    return told_by is not None and (
        not others or {named[one] for one in others & named.keys()} == {told_by}
    )


def refusal(
    transactional_id: str,
    told: TransactionDescription,
    missing: Mapping[TopicPartition, Marker],
    open_: Mapping[TopicPartition, Sequence[Open]],
    why: str,
    login: Login,
) -> str:
    """Return the message about a hanging transaction that this process may not end: the
    problem, the danger, and the cure.

    `told`: what the coordinator says of it. `missing`: the partitions that lack its
    marker. `open_`: what they have open. `why`: why this process may not.
    """
    starts = {
        at: min(one.start_offset for one in open_[at] if one.producer == told.producer)
        for at in missing
    }
    ended = "committed" if told.state == COMMITTED else "aborted"
    where = ", ".join(f"{at} (from offset {starts[at]})" for at in sorted(missing))
    grant = (
        f"kafka-acls.sh --bootstrap-server <HOST:PORT> --add --allow-principal {login.principal or 'User:<USER>'} "
        "--operation ClusterAction --cluster, start it again, and take the permission back"
    )
    text = (
        f'the last transaction of "{transactional_id}" (producer {told.producer}, epoch {told.epoch}) was {ended}, but '
        "these partitions were never told "
        f"and keep it open: {where}. This is KAFKA-20734, a fault of the broker. Another transaction of this producer "
        f"would {_danger(told)}, so none is "
        f"begun. This process may not finish it: {why}. Allow it: {grant}."
    )
    at = min(missing)
    command = (
        f"kafka-transactions.sh --bootstrap-server … abort --topic {at.topic} --partition {at.partition} "
        f"--start-offset {starts[at]}"
    )
    if told.state == COMMITTED:
        return f"{text} Do not use `{command}` instead: it would abort records whose input counts as processed."
    return f"{text} Or, for each of these partitions: `{command}`."


def _danger(told: TransactionDescription) -> str:
    return (
        "abort it there, and lose its records"
        if told.state == COMMITTED
        else "commit it there, and double its records"
    )
