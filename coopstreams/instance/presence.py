"""What a process tells the other members of the group: its name and address, its stream
threads, and whether they make progress.

Relies on: `group.members` (what a field means to the others), `group.membership` (sends
it with the next join).
"""

from __future__ import annotations

from collections.abc import Callable

from coopstreams.common.host import Host
from coopstreams.group.format_level import LEVEL
from coopstreams.group.members import Cluster, MemberInfo, Runs
from coopstreams.instance.plan import Plan
from coopstreams.instance.stream_threads import StreamThreads
from coopstreams.opening.standbys import can_stand_by

ENDING_CHARACTERS = 500
"""The most characters of an error that all members of the group get: brokers limit the
size of member metadata.
"""


class Presence:
    """What one process tells the group of itself. The control thread changes it; the
    group's thread reads it.
    """

    def __init__(
        self,
        plan: Plan,
        threads: StreamThreads,
        announced: Callable[[], tuple[Runs, ...]],
        host: Host,
    ) -> None:
        """`announced`: returns the sub-topologies as this member announces them to the
        group.
        """
        self._plan = plan
        self._threads = threads
        self._announced = announced
        self._host = host
        self.url: str | None = None
        """The address of the query server; None: there is none."""
        self._ending = ""
        self.leaving = False
        """Whether other members are to take the tasks of this process."""

    def leave(self) -> None:
        """Have the other members take the tasks of this process as it releases them,
        from the next assignment on.
        """
        self.leaving = True

    def end(self, error: BaseException) -> None:
        """Have all members of the group stop because of this error, from the next
        assignment on.
        """
        self._ending = f"{type(error).__name__}: {error}"[:ENDING_CHARACTERS]

    def info(self) -> MemberInfo:
        """Return what the other members get to know of this process."""
        threads, numbers = self._threads.capacity()
        ids: tuple[str, ...] = ()
        if self._plan.config.exactly_once:
            ids = tuple(self._plan.transactional_id(number) for number in numbers)
        return MemberInfo(
            self._plan.process,
            self._host.called(),
            self.url,
            threads,
            ids,
            ending=self._ending,
            topology=self._announced(),
            leaving=self.leaving,
            rack=str(self._plan.config.client.get("client.rack", "")),
            stands_by=can_stand_by(self._plan.topology.subtopologies),
            level=LEVEL,
        )

    def alive(self) -> bool:
        """Return whether every stream thread has made progress within
        `max.poll.interval.ms`. If not, this member leaves the group.
        """
        limit_s = self._plan.config["max.poll.interval.ms"] / 1000
        now = self._host.now()
        return all(now - thread.moved_at < limit_s for thread in self._threads)

    def known_threads(self, cluster: Cluster) -> list[int]:
        """Return the numbers of the stream threads whose transactional ids are known to
        all members of a generation.
        """
        _, numbers = self._threads.capacity()
        if not self._plan.config.exactly_once:
            return numbers
        known = cluster.transactional_ids
        return [n for n in numbers if self._plan.transactional_id(n) in known]
