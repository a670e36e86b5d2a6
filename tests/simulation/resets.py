"""`coopstreams reset` of a simulated application, as an operator types it who does not
know of a suspended machine.

The group has removed the suspended process: a reset looks at the group's members, and
there are none. The application begins anew from the first record of its sources, and
then the machine wakes.

The reset is `admin.application_reset` itself, on the log without faults: it takes no
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from coopstreams.admin.application_reset import carry_out, plan_reset
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.memory.log import MemoryLog
from coopstreams.log.memory.state import MemoryState
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.graph.outline import outline
from coopstreams.topology.graph.topology import Topology
from tests.simulation.group import Group


class Operator:
    """The group's coordinator as `coopstreams reset` asks it: a `GroupAdmin`."""

    def __init__(self, state: MemoryState, group: Group, name: str) -> None:
        self.group = name
        self._offsets, self._members = state.group(name), group.members

    def describe(self) -> SimpleNamespace:
        """Return what is asked of the group."""
        return SimpleNamespace(members_text=", ".join(self._members))

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit as nobody: refused while there are members."""
        assert not self._members
        self._offsets.send(offsets, None)

    def committed(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, tuple[int, str] | None]:
        """Return the group's offsets."""
        assert partitions is not None
        return {at: self._offsets.committed.get(at) for at in partitions}

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        """Return them as they are now."""
        assert not stable
        return FetchedOffset(self.committed(partitions), frozenset())


def reset(
    state: MemoryState, group: Group, name: str, versions: Sequence[Topology]
) -> None:
    """Reset an application to the beginning of its sources: its state and internal
    topics are deleted.
    """
    log = MemoryLog()
    log._state = state
    operator = cast(GroupAdmin, Operator(state, group, name))
    newest, *others = versions
    plan = plan_reset(newest, log.partitions(), outline(others[0]))
    carry_out(log, operator, plan, dict.fromkeys(plan.sources, 0), (), _no_share_group)


def _no_share_group(group: str) -> Any:
    raise AssertionError(group)
