"""A process in its group: it joins, stays a member, leaves, and asks the group's
coordinator, all on the connection's I/O thread.

Invariant: the hooks learn of a lost membership before a new one can begin.
Relies on: `coordinator_interface` (what is promised), `kafka_member` (the state machine),
`connection` (requests), `group_requests` (which refusals are final).
Turned down: kafka-python's consumer (it fetches), aiokafka (eager rebalances only,
heartbeats on the user's loop), one connection for joins and commits (a broker answers
one request after the other, and a join may wait for seconds).
"""
# pyright: reportAttributeAccessIssue=false, reportUnusedExcept=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from kafka import errors

from coopstreams.common.host import SYSTEM, Host
from coopstreams.group import group_requests
from coopstreams.group.connection import Connection
from coopstreams.group.coordinator_interface import (
    Connector,
    Hooks,
    Identity,
    Timings,
)
from coopstreams.group.group_requests import Exchange
from coopstreams.group.group_settings import kafka_python_settings
from coopstreams.group.kafka_member import Member
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import CoopStreamsError, GroupError

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_STEP_MS = 1000
_IDLE_S = 0.25
_LOOK_S = 2.0
"""How often a member that waits for a join or a heartbeat checks whether its
coordinator is still the right broker.
"""


def connector(settings: Mapping[str, Any], host: Host = SYSTEM) -> Connector:
    """Return a function that makes coordinators on these brokers; `settings` has
    librdkafka's names.

    Raises:
        ConfigError: a connection or security setting that the group's client does not
            have.
    """
    return partial(GroupCoordinator, kafka_python_settings(settings), host=host)


class GroupCoordinator:
    """The membership of one process in one group, by kafka-python: a `Coordinator`.

    Thread-safe. Requests run on the I/O thread; properties read the member's state
    once, and kafka-python replaces that state as a whole.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        group: str,
        identity: Identity,
        timings: Timings,
        hooks: Hooks,
        host: Host = SYSTEM,
    ) -> None:
        self.problem = "not started"
        """Why this process is not in the group, in words; empty: it is in the group."""
        self._host = host
        self._group = group
        self._identity = identity
        self._instance = identity.instance
        self._timings = timings
        self._hooks = hooks
        self._connection = Connection(settings, timings.request)
        self._member: Member | None = None
        self._look_at = 0.0

    def start(self) -> None:
        """Begin to join; the hooks are called from now on."""
        self._connection.start(self._drive)

    def identity(self) -> tuple[int, str]:
        """Return the current generation and member id; a generation below 0: no member."""
        if self._member is None:
            return -1, ""
        return self._member.identity

    @property
    def broker(self) -> int | None:
        """The connected broker that coordinates the group; None: it is being looked
        for.
        """
        node = None if self._member is None else self._member.coordinator_node
        return (
            self._connection.plain_id(node)
            if node is not None and self._connection.connected(node)
            else None
        )

    def settled_in(self, generation: int) -> bool:
        """Return whether this is a member in that generation, and is not joining the
        next one, which cannot begin without it.
        """
        member = self._member
        return (
            member is not None
            and member.is_settled
            and self.identity()[0] == generation
        )

    @property
    def sure_until(self) -> float:
        """The time (`Host.elapsed`) until which certainly no other member has this
        member's tasks; 0: no member.
        """
        member = self._joined
        return (
            0.0
            if member is None
            else member.calm_at and member.calm_at + self._timings.session / 1000
        )

    @property
    def heard_at(self) -> float:
        """The time (`Host.elapsed`) at which this member sent the last request that was
        answered; 0: no member.
        """
        member = self._joined
        return 0.0 if member is None else member.heard_at

    @property
    def _joined(self) -> Member | None:
        """The member, while it is in the group; else None."""
        member = self._member
        return (
            None
            if member is None or not member.is_joined or member.shut_out is not None
            else member
        )

    def rejoin(self) -> None:
        """Have this member join the group again soon, which makes the group rebalance."""
        self._connection.soon(
            lambda: None if self._member is None else self._member.request_rejoin()
        )

    def check(self) -> None:
        """Send a heartbeat soon, to learn whether this is still a member."""
        self._connection.soon(
            lambda: None if self._member is None else self._member.heartbeat_now()
        )

    def commit_offsets(
        self,
        fence: GroupFence,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets; see `Coordinator`."""
        self._ask(group_requests.commit_offsets(fence, offsets), timeout_ms)

    def fetch_offsets(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = True,
    ) -> group_requests.FetchedOffset:
        """Return the group's offsets.

        A coordinator that hung may return old offsets, until it learns of its
        successor. That costs work, but gives no wrong result. Only a later generation
        can have moved the offsets, the successor refuses a commit of this generation,
        and the stale coordinator has no replicas to acknowledge it.
        """
        return self._ask(
            group_requests.fetch_offsets(self._group, partitions, stable=stable)
        )

    def _ask(self, exchange: Exchange[_T], timeout_ms: int | None = None) -> _T:
        """Return the answer of the group's coordinator; see `Coordinator`."""
        answer: _T = self._connection.run(
            self._connection.ask,
            exchange,
            self._node,
            timeout_ms,
            self._moved,
        )
        return answer

    def end_transaction(
        self,
        transactional_id: str,
        timeout_ms: int | None = None,
    ) -> None:
        """Abort the open transaction of a transactional id; see `Coordinator`."""
        self._connection.run(
            self._connection.end_transaction,
            transactional_id,
            self._timings.session,
            timeout_ms,
        )

    def open_transactions(self, timeout_ms: int) -> frozenset[str]:
        """Return the transactional ids with an open transaction that this principal may
        see, from the brokers that answer in time.
        """
        return self._connection.run(self._connection.open_transactions, timeout_ms)

    def close(self, *, leave: bool) -> None:
        """End the membership and all connections. Idempotent.

        `leave` False: the group learns of it when the session has timed out.
        """
        if self._connection.closed:
            return
        self._connection.closed = True
        try:
            self._connection.run(self._end, leave)
        except CoopStreamsError as error:
            log.warning("leaving group %s: %s", self._group, error)
        self._connection.close()

    # --- on the I/O thread ---

    async def _drive(self) -> None:
        """Join the group, and stay a member until this coordinator is closed."""
        failure: GroupError | None = None
        try:
            self._member = await self._connect()
            await self._succeed()
            while not self._connection.closed and failure is None:
                failure = await self._step(self._member)
        except GroupError as error:
            failure = error
        except Exception as error:  # a bug in a hook, or in kafka-python
            level = (
                logging.DEBUG if self._connection.closed else logging.ERROR
            )  # closed while it was connecting
            log.log(
                level,
                "the membership in group %s ends",
                self._group,
                exc_info=True,
            )
            failure = GroupError(
                f"the membership in group {self._group} ended unexpectedly: {error!r}"
            )
        if failure is not None and not self._connection.closed:
            self.problem = str(failure)
            await self._leave()
            self._hooks.failed(failure)

    async def _connect(self) -> Member:
        """Find the brokers, and return a member that has not joined yet. Each new
        reason why they are not found is logged.

        Raises:
            GroupError: they refuse this client, or none was found within
                `connect.timeout.ms`.
        """
        give_up = time.monotonic() + self._timings.connect / 1000
        self.problem = f"looking for the brokers at {self._connection.servers}"
        while (reason := await self._connection.find_brokers(give_up)) is not None:
            if refusal := self._refusal(reason):
                raise refusal
            self._trouble(
                f"cannot reach the brokers at {self._connection.servers}: {reason}"
            )
            if time.monotonic() > give_up:
                raise GroupError(
                    f"{self.problem}. Tried for {self._timings.connect / 1000:.0f} s: are they running, and is "
                    "bootstrap.servers right?"
                )
        self.problem = f"looking for the coordinator of group {self._group}"
        return Member(
            self._connection.network,
            self._hooks,
            self._timings,
            self._host,
            wake=self._connection.wake,
            group=self._group,
            instance=self._instance,
        )

    async def _succeed(self) -> None:
        """Have a dead process leave the group, for whose session time-out a rebalance
        would otherwise wait. A static member takes its place instead.
        """
        if self._instance is None:
            if self._identity.predecessor:
                await self._remove(self._identity.predecessor)
        elif self._identity.waits:
            await self._await_removal(self._instance)

    async def _remove(self, predecessor: str) -> None:
        """Have the group remove a member that is dead, by its id."""
        try:
            await self._connection.ask(
                group_requests.leave_group(self._group, predecessor),
                self._node,
                moved=self._moved,
            )
        except CoopStreamsError as error:  # usually it has left already
            log.info("%s", error)

    async def _await_removal(self, instance: str) -> None:
        """Wait until the group has no member with this id any more."""
        while not self._connection.closed:
            try:
                described = await self._connection.ask(
                    group_requests.describe_group(self._group),
                    self._node,
                    moved=self._moved,
                )
                if all(member.instance != instance for member in described.members):
                    return
                self._trouble(
                    f"group {self._group} has another process with group.instance.id {instance!r}, which has not ended "
                    "cleanly, and under at-least-once may still write: this process joins when the group has removed "
                    "it, after its session.timeout.ms"
                )
            except CoopStreamsError as error:
                self._trouble(str(error))
            await self._connection.idle(_IDLE_S)

    async def _step(self, member: Member) -> GroupError | None:
        """Do one step of the membership, then wait for more work. Return the error that
        ends the membership for good; None: go on with the next step.
        """
        if member.shut_out is not None:
            return self._refusal(member.shut_out)
        wanted = self._hooks.alive()
        try:
            if wanted:
                joined = await member.step(_STEP_MS)
                self.problem = (
                    ""
                    if joined
                    else f"waiting for the coordinator of group {self._group}, or for its other members to join"
                )
                await self._leave_hanging_coordinator(
                    member,
                    answers=joined and self._host.elapsed() - member.heard_at < _LOOK_S,
                )
            elif member.is_joined:
                self._trouble(
                    f"out of group {self._group}: this process makes no progress"
                )
                await self._leave()
        except errors.KafkaError as error:
            if refusal := self._refusal(error):
                return refusal
            self._trouble(
                f"group {self._group}: {error}{group_requests.likely_cause(error)}"
            )
            await self._connection.idle(_IDLE_S)
        if not (wanted and member.wants_to_join) and not self._connection.closed:
            await self._connection.idle(_IDLE_S)
        return None

    async def _leave_hanging_coordinator(
        self,
        member: Member,
        *,
        answers: bool,
    ) -> None:
        """Drop a coordinator that hangs, if another broker names a new one. A join at
        the old one would wait half a minute.
        """
        if answers or member.coordinator_node is None:
            self._look_at = time.monotonic() + _LOOK_S
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_S
        known = self._connection.plain_id(member.coordinator_node)
        with suppress(errors.KafkaError):
            named = await self._connection.once(
                group_requests.group_coordinator(self._group),
                self._connection.another(known),
                _STEP_MS,
            )
            if named != known:
                log.info(
                    "group %s: its coordinator is broker %d, no longer %d",
                    self._group,
                    named,
                    known,
                )
                self._connection.drop(member.coordinator_node)
                member.look_for_another("another broker is the coordinator now")

    async def _end(self, leave: bool) -> None:
        """Stop the heartbeats, and leave the group if asked."""
        if self._member is not None:
            await self._member.stop_heartbeats()
        if leave:
            await self._leave()

    async def _leave(self) -> None:
        """Leave the group. A static member only resets its generation: the group keeps
        its place for the session time-out.
        """
        generation, member_id = self.identity()
        if self._member is None or not member_id:
            return
        if self._instance is None:
            try:
                await self._connection.once(
                    group_requests.leave_group(self._group, member_id),
                    await self._node(),
                )
            except errors.KafkaError as error:
                log.info("leaving group %s: %s", self._group, error)
        if generation >= 0:
            self._member.reset_generation()

    async def _node(self) -> Any:
        """Return the broker that coordinates the group."""
        if self._member is None:
            raise errors.CoordinatorNotAvailableError(self.problem)
        node = await self._member.find_coordinator(_STEP_MS)
        if node is None:
            raise errors.CoordinatorNotAvailableError(
                f"no coordinator of group {self._group} found"
            )
        return self._connection.plain_node(node)

    def _trouble(self, problem: str) -> None:
        """Log a problem if it differs from the last one."""
        if problem != self.problem:
            log.warning("%s; trying again", problem)
        self.problem = problem

    def _moved(self) -> None:
        """Have the group's coordinator be looked for again."""
        if self._member is not None:
            self._member.look_for_another(
                "it does not answer, or says that it is another"
            )

    def _refusal(self, error: errors.KafkaError) -> GroupError | None:
        """Return the error with which the membership ends for good; None: a later
        attempt may succeed.
        """
        if (
            self._member is not None
            and self._connection.login.by_token
            and isinstance(error, errors.SaslAuthenticationFailedError)
        ):
            # a later token may be accepted; at the start it is final, as for the other
            # clients
            return None
        return group_requests.refusal(
            error,
            self._group,
            self._instance,
            self._timings.session,
            self._connection.login,
        )
