"""The calls of asynchronous operators for records that a share group has delivered.

Records have no order: each is ready when its own calls have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from coopstreams.calling.lanes import Lane
from coopstreams.common.host import Host
from coopstreams.sharing.delivery import Delivery, DeliveryCall
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.program import Program
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.nodes import AsyncMap
from coopstreams.topology.schemas import registry_is_away


class DeliveryCalls:
    """The calls of one sub-topology on one share thread, until `cancel`. One thread,
    except `_ended`.
    """

    def __init__(
        self, program: Program, ahead: Program, tell: Callable[[], None], host: Host
    ) -> None:
        """`tell` is called on another thread when calls have ended."""
        self._nodes = {
            node.name: node
            for node in program.subtopology.nodes
            if isinstance(node, AsyncMap)
        }
        self._lanes = {
            name: Lane(node.calling, self._ended, host)
            for name, node in self._nodes.items()
        }
        self._ahead = ahead.bind({}, self._leave_to_the_program, caching=False)
        self._unread: dict[int | None, Exception] = {}
        """Why records were not read ahead, by offset: the schema registry was away."""
        self._topics = frozenset(ahead.subtopology.topics)
        self._tell = tell
        self._done: deque[DeliveryCall] = deque()
        """Calls that have ended since the last `ready`: other threads add them."""

    @property
    def retries(self) -> int:
        """How many calls were made again."""
        return sum(lane.retried for lane in self._lanes.values())

    @property
    def pauses(self) -> str:
        """Why calls are not begun, in words; empty: they are."""
        return "; ".join(
            f"calls of {name} pause: {why}"
            for name, lane in self._lanes.items()
            if (why := lane.pauses)
        )

    def begin(
        self, source: TopicPartition, columns: Columns, deliveries: Sequence[Delivery]
    ) -> None:
        """Begin the calls of records of one partition; each has the number of its calls
        from now on.
        """
        for delivery in deliveries:
            delivery.calls = []
        of_nodes: dict[str, list[DeliveryCall]] = {}
        if source.topic in self._topics:
            self._ahead.wanted.clear()
            self._unread.clear()
            self._ahead.process(source, columns)
            for delivery in deliveries if self._unread else ():
                if (error := self._unread.get(delivery.record.offset)) is not None:
                    delivery.calls = [
                        _failed(node, error) for node in self._nodes.values()
                    ]
            for row, name, key, value in self._ahead.wanted:
                node = self._nodes[name]
                delivery = deliveries[row]
                arguments = (key, value) if node.with_key else (value,)
                call = DeliveryCall(
                    node.function, arguments, delivery.record.key, name, delivery
                )
                delivery.calls.append(call)
                of_nodes.setdefault(name, []).append(call)
        for delivery in deliveries:
            delivery.waits_for = sum(call.error is None for call in delivery.calls)
        for name, calls in of_nodes.items():
            self._lanes[name].begin(calls)

    def ready(self) -> list[Delivery]:
        """Return the records whose calls have all ended since the last call of this
        method.
        """
        found = []
        while self._done:
            call = self._done.popleft()
            # drop the reference cycle
            delivery = call.delivery
            call.delivery = None
            assert delivery is not None
            delivery.waits_for -= 1
            if not delivery.waits_for:
                found.append(delivery)
        return found

    def drain(self) -> None:
        """Let the calls under way end, and begin no other."""
        for lane in self._lanes.values():
            lane.drain()

    @property
    def drained(self) -> bool:
        """Whether all calls have ended since `drain`."""
        return all(lane.drained for lane in self._lanes.values())

    def cancel(self) -> None:
        """Cancel all calls."""
        for lane in self._lanes.values():
            lane.cancel()
        self._done.clear()

    def _leave_to_the_program(self, failure: Failure) -> None:
        """Drop a record that fails above the call: the program fails it again, and
        reports it.
        """
        if registry_is_away(failure.error):
            self._unread[failure.offset] = failure.error

    def _ended(self, calls: Collection[DeliveryCall]) -> None:
        self._done.extend(calls)
        self._tell()


def _failed(node: AsyncMap, error: Exception) -> DeliveryCall:
    """Return a call that was not made. Should the program come to it, it fails as it
    did ahead of it.
    """
    call = DeliveryCall(node.function, (), None, node.name, None)
    call.error = error
    return call
