"""The plain offsets of a group, fetched until no open transaction can change them.

Invariant: a stable offset is kept, and only unstable ones are fetched again. Under
exactly-once some thread always has a transaction open. If one request for all
partitions failed as a whole, 64 threads would leave no moment in which it succeeds.
Relies on: `group_requests` (`FetchedOffset.unstable`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.group_requests import FetchedOffset, Offsets
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from coopstreams.topology.naming import COMMIT_TOPIC

PAUSE_S = 0.02


def settled_offsets(
    fetch: Callable[[Iterable[TopicPartition] | None], FetchedOffset],
    group: str,
    partitions: Iterable[TopicPartition] | None,
    timeout_s: float,
    host: Host = SYSTEM,
) -> Offsets:
    """Return the offsets of these partitions, fetched until no open transaction can
    change them; `partitions` None: of all.

    Partitions of the commit topic are fetched once. Some transaction always changes
    their offsets, and no task begins there.

    Raises:
        LogError: retryable: a transaction stayed open; names the partitions.
    """
    left: Collection[TopicPartition] | None = (
        None if partitions is None else set(partitions)
    )
    found: Offsets = {}
    give_up = host.now() + timeout_s
    while True:
        answer = fetch(left)
        found |= answer.offsets
        left = {
            partition
            for partition in answer.unstable
            if partition.topic != COMMIT_TOPIC
        }
        if not left:
            return found
        if host.now() > give_up:
            names = ", ".join(map(str, sorted(left)))
            raise LogError(
                f"offsets of group {group}: an open transaction has kept back {names} for {timeout_s:.0f} s",
                retryable=True,
            )
        host.sleep(PAUSE_S)
