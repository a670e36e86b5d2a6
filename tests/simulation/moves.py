"""The oracle of planned moves: what has many rows is taken from an owner that stays only
for a member that says it has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coopstreams.group.active_version import version_of
from coopstreams.group.claims import claims_of, task_partition_of
from coopstreams.group.codec import decode_assignment, decode_subscription
from coopstreams.group.members import Assignment, MemberState, TaskPartition
from coopstreams.topology.errors import GroupError
from coopstreams.topology.keys import KeyRange


class Moves:
    """The violations by the leaders of one group."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def decided(
        self,
        subscriptions: Mapping[str, bytes],
        assignments: Mapping[str, bytes],
    ) -> None:
        """Take in what a leader has made of all members' subscriptions."""
        try:
            states = {
                id_: decode_subscription(data, id_)
                for id_, data in subscriptions.items()
            }
            given = {
                id_: decode_assignment(data, id_)
                for id_, data in assignments.items()
                if data
            }
        except GroupError:
            return  # of consumers
        # While a version takes over from another one, all tasks are released.
        if len({version_of(state.info) for state in states.values()}) == 1:
            self._look(states, given)

    def _look(
        self,
        states: Mapping[str, MemberState],
        given: Mapping[str, Assignment],
    ) -> None:
        claims = claims_of(states)
        targets = _by_partition(
            (task_partition_of(task), id_, task.key_range)
            for id_, each in given.items()
            for task in each.target
        )
        for id_, state in states.items():
            if state.warmth is None or state.info.leaving or id_ not in given:
                continue
            for task in state.warmth.heavy:
                partition = task_partition_of(task)
                kept = [
                    mine.key_range
                    for mine in given[id_].tasks
                    if task_partition_of(mine) == partition
                ]
                taken = [
                    part
                    for held in claims[id_].get(partition, ())
                    if (both := held.intersect(task.key_range)) is not None
                    for part in both.minus(kept)
                ]
                for to, mine in targets.get(partition, ()):
                    warmth = states[to].warmth
                    if warmth is None:
                        continue
                    ready = [
                        each.key_range
                        for each in warmth.ready
                        if task_partition_of(each) == partition
                    ]
                    cold = [
                        cold
                        for part in taken
                        if (both := part.intersect(mine)) is not None
                        for cold in both.minus(ready)
                    ]
                    if cold:
                        self.wrong.append(
                            f"{cold} of {partition} is taken from {id_} for {to}, which has not caught up"
                        )


_Owned = list[tuple[str, KeyRange]]


def _by_partition(
    owned: Iterable[tuple[TaskPartition, str, KeyRange]],
) -> Mapping[TaskPartition, _Owned]:
    found: dict[TaskPartition, _Owned] = {}
    for partition, id_, key_range in owned:
        found.setdefault(partition, []).append((id_, key_range))
    return found
