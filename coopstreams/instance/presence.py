"""What a process tells the group of itself: its name and address, its stream threads,
and whether they move.
"""

from __future__ import annotations

from collections.abc import Callable

from coopstreams.common.host import Host
from coopstreams.group.members import Cluster, MemberInfo, Runs
from coopstreams.instance.plan import Plan
from coopstreams.instance.stream_threads import StreamThreads

ENDING_CHARACTERS = 500
"""Most characters of an error that all members of the group get: brokers limit the size
of member metadata.
"""


class Presence:
    """The presence of one process in the group. The control thread changes it; the
    thread of the group reads it.
    """

    def __init__(
        self,
        plan: Plan,
        threads: StreamThreads,
        announced: Callable[[], tuple[Runs, ...]],
        host: Host,
    ) -> None:
        """`announced`: returns the sub-topologies as the group is to know them."""
        self._plan = plan
        self._threads = threads
        self._announced = announced
        self._host = host
        self.url: str | None = None
        """The address of the query server."""
        self._ending = ""

    def end(self, error: BaseException) -> None:
        """Tell all members from now on to stop because of this error."""
        self._ending = f"{type(error).__name__}: {error}"[:ENDING_CHARACTERS]

    def info(self) -> MemberInfo:
        """Return what the other members are to know."""
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
        )

    def alive(self) -> bool:
        """Whether every stream thread has moved lately; otherwise this member leaves
        (`max.poll.interval.ms`).
        """
        limit_s = self._plan.config["max.poll.interval.ms"] / 1000
        now = self._host.now()
        return all(now - thread.moved_at < limit_s for thread in self._threads)

    def known_threads(self, cluster: Cluster) -> list[int]:
        """Return the numbers of the stream threads whose transactional ids all members
        of a generation know.
        """
        _, numbers = self._threads.capacity()
        if not self._plan.config.exactly_once:
            return numbers
        known = cluster.transactional_ids
        return [n for n in numbers if self._plan.transactional_id(n) in known]
