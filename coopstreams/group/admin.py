"""A client that describes a group, and reads or commits its offsets, without being a
member.

Invariant: a commit by this client is refused as soon as the group has a member (the
coordinator checks it).
Turned down: kafka-python's admin client (it does not wait for open transactions, and
does not follow a coordinator that moves).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from coopstreams.group import group_requests
from coopstreams.group.connection import Connection
from coopstreams.group.group_settings import kafka_python_settings
from coopstreams.group.plain_offsets import settled_offsets
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import GroupError, MembershipLostError

_T = TypeVar("_T")

NOBODY = (-1, "")
"""The generation and member id in a commit of a process that is no member. Never used
in transactions: brokers would not refuse it there.
"""


class GroupAdmin:
    """A client for requests about one group. Thread-safe: requests run on the I/O
    thread.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        group: str,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """Connect to the brokers. `settings` has librdkafka's names.

        Raises:
            ConfigError: a connection or security setting that this client does not
                have.
            GroupError: no broker was found in this time.
        """
        self.group = group
        self._timeout_s = timeout_s
        self._connection = connected(settings, timeout_s)
        self._coordinator: int | None = None

    def describe(self) -> group_requests.DescribedGroup:
        """Return the state and the members of the group.

        Raises:
            LogError: the request was refused, or not answered in time.
        """
        described = self._ask(group_requests.describe_group(self.group))
        return (
            described
            if described.state != "Dead"
            else self._ask(group_requests.list_group(self.group))
        )

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> group_requests.Offsets:
        """Return the plain offset and metadata of each partition; `partitions` None: of
        all partitions that have an offset.

        Waits for open transactions that would change the offsets.

        Raises:
            LogError: the request was refused, a transaction stayed open, or no answer
                came in time.
        """
        return settled_offsets(
            self.fetch_offsets,
            self.group,
            partitions,
            self._timeout_s,
        )

    def fetch_offsets(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        stable: bool = True,
    ) -> group_requests.FetchedOffset:
        """Return the plain offsets as they are now; see `GroupMember.fetch_offsets`."""
        return self._ask(
            group_requests.fetch_offsets(self.group, partitions, stable=stable)
        )

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets (with metadata) for a group without members.

        Raises:
            GroupError: the group has members. Stop them, then try again.
            LogError: the commit was refused for another reason, or not answered in
                time.
        """
        try:
            self._ask(
                group_requests.commit_offsets(GroupFence(self.group, *NOBODY), offsets)
            )
        except MembershipLostError as error:
            raise GroupError(
                f"group {self.group} has members: stop them, then try again"
            ) from error

    def remove(self, instances: Sequence[str]) -> tuple[str, ...]:
        """Remove static members from the group, which rebalances; return those of these
        ids that no member has.

        Raises:
            LogError: the request was refused, or not answered in time.
        """
        return self._ask(group_requests.remove_static_members(self.group, instances))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if not self._connection.closed:
            self._connection.close()

    def __enter__(self) -> GroupAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, exchange: group_requests.Exchange[_T]) -> _T:
        answer: _T = self._connection.run(
            self._connection.ask,
            exchange,
            self._node,
            None,
            self._moved,
        )
        return answer

    async def _node(self) -> int:
        if self._coordinator is None:
            self._coordinator = await self._connection.once(
                group_requests.group_coordinator(self.group),
                None,
            )
        return self._coordinator

    def _moved(self) -> None:
        self._coordinator = None


def connected(settings: Mapping[str, Any], timeout_s: float) -> Connection:
    """Return a connection that has found the brokers. `settings` has librdkafka's
    names.

    Raises:
        ConfigError: a connection or security setting that this client does not have.
        GroupError: no broker was found in this time, or the brokers do not let this
            process in.
    """
    connection = Connection(kafka_python_settings(settings), int(timeout_s * 1000))
    connection.start(_nothing)
    give_up = time.monotonic() + timeout_s
    while (reason := connection.run(connection.find_brokers, give_up)) is not None:
        shut = group_requests.not_let_in(reason, connection.login)
        if shut is not None or time.monotonic() > give_up:
            servers = connection.servers
            connection.close()
            raise shut or GroupError(
                f"cannot reach the brokers at {servers}: {reason}. Are they running, and is bootstrap.servers right?"
            )
    return connection


async def _nothing() -> None:
    """Do nothing: `Connection.start` needs a main function."""
