"""A member that joins a group and stays in it: kafka-python's state machine of a
member, which calls our hooks.

Heartbeats, joins and hooks all run on the I/O thread. Hooks must return at once: while
they run, no heartbeat is sent.

Invariant: the hooks learn of a lost membership before a new one can begin.
Invariant: a member that wants a rebalance asks for it shortly before the others send
their heartbeats (`heartbeats`): then it waits for them as briefly as they for each other.
Relies on: `coordinator_interface` (`Hooks`: which one is called when), `coordinator`
(what `heard_at` and `calm_at` decide).
Turned down: a state machine of our own (kafka-python's has met more brokers).
Source: kafka-python 3.0 `BaseCoordinator`, which is meant to be extended;
`_generation`, `_heartbeat_wakeup` and the `_on_join_*`, `_send_*`, `_handle_*` and
`_process_*` methods are private: see `tests/group/test_kafka_python.py`.
"""
# pyright: reportAttributeAccessIssue=false, reportUnusedExcept=false, reportIncompatibleMethodOverride=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kafka import errors
from kafka.coordinator.base import BaseCoordinator
from kafka.structs import MemberState

from coopstreams.common.host import Host
from coopstreams.group.coordinator_interface import Hooks, Timings
from coopstreams.group.heartbeats import Heartbeats
from coopstreams.group.kafka_network import Network

PROTOCOL = "coopstreams"
"""The name of our assignor. A member with other assignors cannot join a group that uses
it.
"""
_LAST_HEARTBEAT_S = 0.5
_LEAD_S = 0.05
"""How long before the moment of the heartbeats a member joins that wants a rebalance:
the broker must have its request when the others ask.
"""


class Member(BaseCoordinator):  # type: ignore[misc]  # kafka-python has no types
    """A member of a group. All of its methods run on the I/O thread; from other threads
    its state may be read, which kafka-python replaces as a whole.
    """

    def __init__(
        self,
        network: Network,
        hooks: Hooks,
        timings: Timings,
        host: Host,
        *,
        wake: Callable[[], None],
        group: str,
        instance: str | None,
    ) -> None:
        """Make a member that has not joined yet. `wake` is called when there is
        something to do; `instance` is the id of a static member.
        """
        self._network = network
        self._host = host
        self._hooks = hooks
        self._wake = wake
        self._patience_s = timings.patience / 1000
        self.heard_at = 0.0
        """The time (`Host.elapsed`) at which the last answered heartbeat or join was
        sent, or an earlier time.

        kafka-python's own clock stops while the machine sleeps.
        """
        self.calm_at = 0.0
        """The time as in `heard_at`, of the last heartbeat or join whose answer named
        no rebalance.

        Once a rebalance has begun, the group goes on without a member that has not
        joined at the time-out, whatever heartbeats the member has sent meanwhile.
        """
        self._beat_at = self._joined_at = 0.0
        self.shut_out: errors.KafkaError | None = None
        """Why the group will never take heartbeats of this member again."""
        super().__init__(
            network.client,
            api_version=network.broker_version,
            group_id=group,
            group_instance_id=instance,
            session_timeout_ms=timings.session,
            heartbeat_interval_ms=timings.heartbeat,
            max_poll_interval_ms=timings.session,
        )
        self.heartbeat = Heartbeats(group, host, **self.config)
        self._told = False
        """Whether the group has said that it rebalances, since the last join."""

    @property
    def identity(self) -> tuple[int, str]:
        """The current generation and member id; a generation below 0: no member."""
        metadata = self.group_metadata()
        return metadata.generation_id, metadata.member_id

    @property
    def is_joined(self) -> bool:
        """Whether this is a member, which may be joining the next generation."""
        return self.state is not MemberState.UNJOINED

    @property
    def is_settled(self) -> bool:
        """Whether this is a member that is not joining."""
        return self.state is MemberState.STABLE

    @property
    def wants_to_join(self) -> bool:
        """Whether the next `step` joins."""
        return bool(self.need_rejoin())

    @property
    def coordinator_node(self) -> Any:
        """The node of the group's coordinator; None: it is being looked for."""
        return self.coordinator_id

    async def step(self, timeout_ms: int) -> bool:
        """Send heartbeats and join as needed; return whether this is a member now.

        Raises:
            KafkaError: of kafka-python: why it is not.
        """
        self.poll_heartbeat()
        return bool(await self.ensure_active_group_async(timeout_ms=timeout_ms))

    async def find_coordinator(self, timeout_ms: int) -> Any:
        """Return the node of the group's coordinator; None: not found in this time."""
        found = await self.ensure_coordinator_ready_async(timeout_ms=timeout_ms)
        return self.coordinator_id if found else None

    def look_for_another(self, why: str) -> None:
        """Leave the coordinator, and look for the group's next one."""
        self.coordinator_dead(why)

    def protocol_type(self) -> str:
        """Return Kafka's own type: its tools show the group, and brokers keep the
        offsets of its topics.
        """
        return "consumer"

    def group_protocols(self) -> list[tuple[str, bytes]]:
        """Return the name of our assignor, and the subscription for it."""
        return [(PROTOCOL, self._hooks.subscription())]

    def _perform_assignment(
        self,
        leader_id: str,  # noqa: ARG002
        protocol: str,  # noqa: ARG002
        members: list[Any],
    ) -> dict[str, bytes]:
        """Return the assignment of each member by its id: this member leads the group."""
        return self._hooks.assignments(
            {member.member_id: member.metadata for member in members}
        )

    async def _on_join_prepare_async(
        self,
        generation: int,
        member_id: str,  # noqa: ARG002
        timeout_ms: float | None = None,  # noqa: ARG002
    ) -> None:
        """Wait before a join: first until just before the moment of the heartbeats
        (`_LEAD_S`), unless the group rebalances already, or this is no member; then
        until the hooks allow it, for `_patience_s` at most.
        """
        while (  # heartbeats continue meanwhile
            generation >= 0
            and not self._told
            and self.is_joined
            and self.heartbeat.time_to_next_heartbeat() > _LEAD_S
        ):
            await self._network.sleep(0.005)
        patient_until = time.monotonic() + self._patience_s
        while (
            not self._hooks.may_join() and time.monotonic() < patient_until
        ):  # heartbeats continue meanwhile
            await self._network.sleep(0.005)

    async def _on_join_complete_async(
        self,
        generation: int,
        member_id: str,  # noqa: ARG002
        protocol: str,  # noqa: ARG002
        member_assignment_bytes: bytes,
    ) -> None:
        """Pass the assignment to the hooks; join again if they say so."""
        self._told = False
        if self._hooks.joined(generation, bytes(member_assignment_bytes)):
            self.request_rejoin()

    def reset_generation(self, member_id: str = "") -> None:
        """End the membership, if there is one; the next `step` joins anew."""
        if (
            self._generation.generation_id >= 0
        ):  # otherwise it is only a step of the first join
            self._hooks.lost()
        super().reset_generation(member_id)
        self._wake()

    def request_rejoin(self) -> None:
        """Have the next `step` join again."""
        super().request_rejoin()
        self._wake()

    def heartbeat_now(self) -> None:
        """Send a heartbeat now, to learn whether this is still a member."""
        self.heartbeat.last_receive = max(
            self.heartbeat.last_receive,
            self.heartbeat.last_reset,
        )
        self.heartbeat.last_send = self.heartbeat.last_reset = float("-inf")
        self._heartbeat_wakeup.notify()

    async def stop_heartbeats(self) -> None:
        """End the heartbeats, and wait up to `_LAST_HEARTBEAT_S` for one that is under
        way.
        """
        self._close_heartbeat()
        give_up = time.monotonic() + _LAST_HEARTBEAT_S
        loop = self._heartbeat_loop_future
        while loop is not None and not loop.is_done and time.monotonic() < give_up:
            await self._network.sleep(0.005)

    async def _send_heartbeat_request(self) -> None:
        """Note the time, then send: what the answer proves held then, and not when it
        arrives.
        """
        self._beat_at = self._host.elapsed()
        await super()._send_heartbeat_request()

    def _handle_heartbeat_response(self, response: Any, send_time: float) -> None:
        """Note what an answer proves: see `heard_at` and `calm_at`."""
        try:
            super()._handle_heartbeat_response(response, send_time)
        except errors.RebalanceInProgressError:
            self.heard_at = self._beat_at
            self._told = True
            raise
        except (
            errors.FencedInstanceIdError,
            errors.GroupAuthorizationFailedError,
        ) as error:
            self.shut_out = error
            self._wake()
            raise
        self.heard_at = self.calm_at = self._beat_at

    def _process_join_group_response(self, response: Any, send_time: float) -> None:
        """Tell the hooks the generation, before `identity` names it: see
        `Hooks.answered`.
        """
        self._joined_at = (
            self._host.elapsed()
        )  # the request that follows is sent after that
        if not response.error_code:
            self._hooks.answered(response.generation_id)
        super()._process_join_group_response(response, send_time)

    def _process_sync_group_response(self, response: Any, send_time: float) -> bytes:
        """Return the assignment. This answer ends a join: heard, and calm."""
        assignment = super()._process_sync_group_response(response, send_time)
        self.heard_at = self.calm_at = self._joined_at
        return bytes(assignment)
