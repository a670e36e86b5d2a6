"""Hanging transactions found and ended: wait until a transaction has ended in all its
partitions, or end it there.

`settle` is called before a transactional id is taken over, and after a transaction has
ended on a broker that may skip markers. Until it returns, no transaction begins under
that id. `missing_markers` has the rule and the reason.

Invariant: a marker is written only if the coordinator gave the same answer before and
after the partitions were asked: then the producer has not gone on in between. And it is
written only if the other brokers name this coordinator: one that hung and wakes up
calls an open transaction committed (seen).
Relies on: `transaction_requests` (what is asked), `partition_leader` (whose answer
counts).
Turned down: asking every broker after each commit (two requests a commit; only brokers
with KAFKA-20734 need it), and a new transactional id for each run of a process (its
predecessor's open offsets would hold the group for ever).
"""
# pyright: reportAttributeAccessIssue=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import logging
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from kafka import errors

from coopstreams.common.acl_errors import Attempt
from coopstreams.group import group_requests, transaction_requests
from coopstreams.group.connection import Connection
from coopstreams.group.end_requests import Views
from coopstreams.group.missing_markers import (
    ENDING,
    ONGOING,
    SKIPPING_METADATA,
    Marker,
    TransactionDescription,
    believed,
    missing_markers,
    refusal,
)
from coopstreams.group.partition_leader import NO_LEADER
from coopstreams.group.transaction_requests import PartitionAnswers
from coopstreams.log.log import UNKNOWN_FOR_S
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.naming import OFFSETS_TOPIC

log = logging.getLogger(__name__)

PAUSE_S = 0.01
SLICE_MS = 3000
GLANCE_MS = 1000
"""The time limit of a broker's answer where each broker must answer, or where late
answers are left out.
"""
LOOK_AGAIN_S = 10.0
"""How long a coordinator's version is cached: another broker may replace the
coordinator.
"""

_T = TypeVar("_T")


class Transactions:
    """A client that asks about transactional ids, and ends their hanging transactions.
    `async` methods run on the connection's I/O thread.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._coordinators: dict[str, int] = {}
        self._skips: dict[str, tuple[bool, float]] = {}
        """Whether the coordinator of a transactional id may skip markers, and the time
        until which that is cached.
        """
        self._unseen: set[TopicPartition] = set()
        """Partitions whose producers this principal may not describe."""
        self._hidden: set[str] = set()
        """The topics of `_unseen`, for which a warning was logged."""

    def open_partitions(
        self,
        transactional_id: str,
        timeout_s: float,
    ) -> frozenset[TopicPartition] | None:
        """Return the partitions of the open transaction, for `settle` after its end.

        None: the coordinator never skips markers, so `settle` is not needed.

        Raises:
            LogError: the request was refused, or not answered in time.
        """
        skips, until = self._skips.get(transactional_id, (True, 0.0))
        if not skips and time.monotonic() < until:
            return None  # called at each commit: do not wake the I/O thread
        return self._connection.run(
            self._open_partitions,
            transactional_id,
            time.monotonic() + timeout_s,
        )

    def settle(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        timeout_s: float,
    ) -> frozenset[TopicPartition]:
        """Wait until the last transaction has ended in these partitions, and return no
        partitions. If a transaction is ongoing, return its partitions at once.

        Raises:
            LogError: retryable: no answer in time, or a partition has no leader. Not
                retryable: the transaction hangs, and this principal may not end it; the
                message has the danger and the cure.
        """
        return self._connection.run(
            self._settled,
            transactional_id,
            partitions,
            time.monotonic() + timeout_s,
        )

    def settle_topics(
        self,
        transactional_id: str,
        topics: Collection[str],
        timeout_s: float,
    ) -> frozenset[TopicPartition]:
        """Settle all partitions of these topics and of the groups' offsets, before the
        transactional id is taken over.

        Returns the partitions to settle again after the take-over, which aborts the
        ongoing transaction; none if the coordinator never skips markers. With such a
        coordinator a partition that does not answer is left out: only a transaction of
        an earlier coordinator can hang there.
        """
        return self._connection.run(
            self._settled_topics,
            transactional_id,
            topics,
            time.monotonic() + timeout_s,
        )

    def settle_dead(
        self,
        dead: Callable[[str], bool],
        topics: Collection[str],
        timeout_s: float,
    ) -> None:
        """End the hanging transactions of unused transactional ids in these topics, and
        in groups' offsets.

        `dead`: whether a transactional id is unused.

        Raises:
            LogError: as `settle`.
        """
        self._connection.run(
            self._settle_dead,
            dead,
            topics,
            time.monotonic() + timeout_s,
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _settled(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        give_up: float,
        *,
        everywhere: bool = True,
    ) -> frozenset[TopicPartition]:
        """Wait until the last transaction of an id has ended in these partitions, or
        end it there. Return the partitions of an ongoing one, else none: see `settle`.

        `give_up`: a time of `time.monotonic`. `everywhere` False: leave out partitions
        whose leader does not answer within `GLANCE_MS`.
        """
        while True:
            told = await self._told(transactional_id, give_up)
            if told is None:
                return frozenset()
            if told.state == ONGOING:
                return told.partitions
            if told.state not in ENDING:
                answers = await self._producers(
                    partitions,
                    give_up,
                    everywhere=everywhere,
                )
                missing = missing_markers(told, answers.open)
                if not missing:
                    return frozenset()
                if await self._told(
                    transactional_id,
                    give_up,
                ) == told and await self._is_coordinator(transactional_id, give_up):
                    await self._write(transactional_id, told, missing, answers, give_up)
            elif time.monotonic() > give_up:
                raise LogError(
                    f'the transaction of "{transactional_id}" stays in state {told.state}: its markers are not written',
                    retryable=True,
                )
            await self._connection.sleep(PAUSE_S)

    async def _settled_topics(
        self,
        transactional_id: str,
        topics: Collection[str],
        give_up: float,
    ) -> frozenset[TopicPartition]:
        """Settle before a take-over: see `settle_topics`."""
        skips = await self._may_skip(transactional_id, give_up)
        if await self._told(transactional_id, give_up) is None:
            return frozenset()
        leaders = await self._leaders(topics, give_up)
        ongoing = await self._settled(
            transactional_id,
            leaders.of.keys(),
            give_up,
            everywhere=skips,
        )
        return ongoing if skips else frozenset()

    async def _settle_dead(
        self,
        dead: Callable[[str], bool],
        topics: Collection[str],
        give_up: float,
    ) -> None:
        """End hanging transactions of unused ids: see `settle_dead`."""
        leaders = await self._leaders(topics, give_up)
        ids = dict[int, str]()
        for broker in sorted(leaders.brokers):
            try:
                ended = await self._connection.once(
                    transaction_requests.list_ended(),
                    broker,
                )
            except errors.KafkaError as error:
                log.info(
                    "broker %d does not say which transactions have ended: %s",
                    broker,
                    error,
                )
            else:
                ids.update(
                    (producer, id_) for producer, id_ in ended.items() if dead(id_)
                )
        found = (
            (await self._producers(leaders.of.keys(), give_up, everywhere=False)).open
            if ids
            else {}
        )
        for producer in {
            one.producer for all_ in found.values() for one in all_
        } & ids.keys():
            where = {
                at
                for at, all_ in found.items()
                if any(one.producer == producer for one in all_)
            }
            await self._settled(ids[producer], where, give_up)

    async def _leaders(self, topics: Collection[str], give_up: float) -> Views:
        """Return the leaders of the partitions of these topics and of the groups'
        offsets. Topics that this principal may not see are left out.
        """
        wanted = {*topics, OFFSETS_TOPIC}
        unknown_until = time.monotonic() + UNKNOWN_FOR_S
        leaders = await self._ask(transaction_requests.find_leaders(wanted), give_up)
        while (
            wanted - leaders.hidden - {at.topic for at in leaders.of}
            and time.monotonic() < unknown_until
        ):
            await self._connection.sleep(PAUSE_S)
            leaders = await self._ask(
                transaction_requests.find_leaders(wanted),
                give_up,
            )
        self._say_hidden(leaders.hidden)
        return leaders

    async def _open_partitions(
        self,
        transactional_id: str,
        give_up: float,
    ) -> frozenset[TopicPartition] | None:
        """Return the partitions of the open transaction: see `open_partitions`."""
        told = (
            await self._told(transactional_id, give_up)
            if await self._may_skip(transactional_id, give_up)
            else None
        )
        return None if told is None else told.partitions

    async def _may_skip(self, transactional_id: str, give_up: float) -> bool:
        """Return whether the coordinator may complete a transaction without a marker in
        each partition.
        """
        skips, until = self._skips.get(transactional_id, (True, 0.0))
        if time.monotonic() > until:
            self._coordinators.pop(transactional_id, None)
            skips = (
                await self._ask_coordinator(
                    transactional_id,
                    transaction_requests.newest_metadata(),
                    give_up,
                )
                in SKIPPING_METADATA
            )
            self._skips[transactional_id] = skips, time.monotonic() + LOOK_AGAIN_S
        return skips

    async def _told(
        self,
        transactional_id: str,
        give_up: float,
    ) -> TransactionDescription | None:
        """Return what the coordinator says of a transactional id; None: it does not
        know it.
        """
        return await self._ask_coordinator(
            transactional_id,
            transaction_requests.describe_transaction(transactional_id),
            give_up,
        )

    async def _producers(
        self,
        partitions: Iterable[TopicPartition],
        give_up: float,
        *,
        everywhere: bool,
    ) -> PartitionAnswers:
        """Return the open transactions in these partitions, once the leaders of all
        existing partitions have answered.

        `everywhere` False: leave out leaders that do not answer within `GLANCE_MS`.
        """
        left = set(partitions) - self._unseen
        found = PartitionAnswers({}, {})
        reasons: Mapping[TopicPartition, object] = {}
        unknown_until = time.monotonic() + UNKNOWN_FOR_S
        while left:
            leaders = (
                await self._ask(
                    transaction_requests.find_leaders({at.topic for at in left}),
                    give_up,
                )
            ).leaders
            if time.monotonic() > unknown_until:
                left &= leaders.keys()  # the others were deleted
            reasons = dict.fromkeys(left, "it has no leader")
            for node, theirs in _by_leader(left, leaders).items():
                answers = await self._producers_at(
                    node,
                    theirs,
                    SLICE_MS if everywhere else GLANCE_MS,
                )
                found = PartitionAnswers({**found.open, **answers.open}, {})
                self._hide(answers)
                left -= answers.open.keys() | self._unseen
                reasons |= {
                    at: error for at, error in answers.errors.items() if at in left
                }
            if not everywhere:
                break
            if left and time.monotonic() > give_up:
                at = min(left)
                raise LogError(
                    f"{at} does not say whether a transaction is open in it: {reasons.get(at)}. Nothing is begun "
                    "before it does.",
                    retryable=True,
                )
            if left:
                await self._connection.sleep(PAUSE_S)
        return found

    async def _producers_at(
        self,
        node: int,
        partitions: Collection[TopicPartition],
        timeout_ms: int,
    ) -> PartitionAnswers:
        """Return what one broker says about these partitions; if it does not answer,
        the same error for each.
        """
        try:
            return await self._connection.once(
                transaction_requests.describe_producers(partitions),
                node,
                timeout_ms,
            )
        except errors.KafkaError as error:
            if not group_requests.passes(error):
                raise group_requests.translated(
                    "asking for open transactions",
                    error,
                ) from error
            return PartitionAnswers({}, dict.fromkeys(partitions, error))

    def _hide(self, answers: PartitionAnswers) -> None:
        """Stop asking for partitions that this principal may not describe."""
        hidden = {
            at
            for at, error in answers.errors.items()
            if isinstance(error, errors.AuthorizationError)
        }
        self._unseen |= hidden
        self._say_hidden({at.topic for at in hidden})

    def _say_hidden(self, topics: Collection[str]) -> None:
        if new := set(topics) - self._hidden:
            self._hidden |= new
            attempt = Attempt(self._connection.login, "Read", ", ".join(sorted(new)))
            log.warning(
                "hanging transactions cannot be seen in %s: %s",
                attempt.topics,
                attempt.missing("TOPIC_AUTHORIZATION_FAILED"),
            )

    async def _write(
        self,
        transactional_id: str,
        told: TransactionDescription,
        missing: Mapping[TopicPartition, Marker],
        answers: PartitionAnswers,
        give_up: float,
    ) -> None:
        """Write the missing markers in partitions that have a leader; `_settled` then
        checks again.

        Raises:
            LogError: refused for good; or, retryable, too late.
        """
        leaders = (
            await self._ask(
                transaction_requests.find_leaders({at.topic for at in missing}),
                give_up,
            )
        ).leaders
        last: errors.KafkaError | None = None
        for node, theirs in _by_leader(missing, leaders).items():
            refused = await self._write_to(
                node,
                transactional_id,
                {at: missing[at] for at in theirs},
            )
            for reason in refused.values():
                if isinstance(reason, errors.AuthorizationError):
                    raise LogError(
                        refusal(
                            transactional_id,
                            told,
                            missing,
                            answers.open,
                            str(reason),
                            self._connection.login,
                        )
                    )
                last = reason
        if time.monotonic() > give_up:
            what = (
                f'the last transaction of "{transactional_id}" hangs in {min(missing)} and could not be ended there in '
                "time"
            )
            raise LogError(f"{what}: {last or 'it has no leader'}", retryable=True)

    async def _write_to(
        self,
        node: int,
        transactional_id: str,
        markers: Mapping[TopicPartition, Marker],
    ) -> Mapping[TopicPartition, errors.KafkaError]:
        """Have a broker write these markers; return the refused markers' partitions
        with the reasons.
        """
        try:
            refused = await self._connection.once(
                transaction_requests.write_markers(markers),
                node,
            )
        except errors.KafkaError as error:
            return dict.fromkeys(markers, error)
        for at in sorted(markers.keys() - refused.keys()):
            log.warning(
                '%s was never told that a transaction of "%s" was %s (KAFKA-20734); told it now',
                at,
                transactional_id,
                "committed" if markers[at].commit else "aborted",
            )
        return refused

    async def _is_coordinator(self, transactional_id: str, give_up: float) -> bool:
        """Return whether all other brokers name the broker that described the
        transaction as its coordinator.

        A coordinator that hung and wakes up describes an old state.

        Raises:
            LogError: retryable: the brokers disagree, or none answers, and the time is
                over.
        """
        told_by = self._coordinators.get(transactional_id)
        brokers = self._connection.brokers()
        named = dict[int, int]()
        for broker in brokers:
            with suppress(errors.KafkaError):
                named[broker] = await self._connection.once(
                    group_requests.transaction_coordinator(transactional_id),
                    broker,
                    GLANCE_MS,
                )
        if believed(told_by, brokers, named):
            return True
        self._coordinators.pop(transactional_id, None)
        if time.monotonic() > give_up:
            raise LogError(
                f'the brokers do not agree who coordinates "{transactional_id}": {told_by} says so, and each broker '
                f"names: {named or 'none'}",
                retryable=True,
            )
        return False

    async def _ask(self, exchange: group_requests.Exchange[_T], give_up: float) -> _T:
        async def any_broker() -> Any:
            return None

        return await self._connection.ask(exchange, any_broker, _left_ms(give_up))

    async def _ask_coordinator(
        self,
        transactional_id: str,
        exchange: group_requests.Exchange[_T],
        give_up: float,
    ) -> _T:
        async def node() -> int:
            if transactional_id not in self._coordinators:
                self._coordinators[transactional_id] = await self._connection.once(
                    group_requests.transaction_coordinator(transactional_id),
                    None,
                )
            return self._coordinators[transactional_id]

        def moved() -> None:
            self._coordinators.pop(transactional_id, None)

        needing = replace(exchange, attempt=Attempt(transactional_id=transactional_id))
        return await self._connection.ask(needing, node, _left_ms(give_up), moved)


def _left_ms(give_up: float) -> int:
    return max(1, int(1000 * (give_up - time.monotonic())))


def _by_leader(
    partitions: Iterable[TopicPartition],
    leaders: Mapping[TopicPartition, int],
) -> dict[int, set[TopicPartition]]:
    """Return the partitions by the broker that leads them; partitions without a leader
    are left out.
    """
    found: dict[int, set[TopicPartition]] = {}
    for at in partitions:
        node = leaders.get(at, NO_LEADER)
        if node != NO_LEADER:
            found.setdefault(node, set()).add(at)
    return found
