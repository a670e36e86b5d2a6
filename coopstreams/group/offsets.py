"""A group's plain offsets, of which open transactions may still change some.

Invariant: an answer that is certain is kept, and only the rest is asked for again. Under exactly-once some thread
always has a transaction open: with all partitions in one question that fails as a whole, 64 threads leave no moment in
which it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.requests import FetchedOffset, Offsets
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
    """Return what `fetch` tells of these partitions (of all: None), asked again until no open transaction can change
    it.

    Of the commit topic, which some transaction always changes, only what is certain at once: nobody goes on from there.

    Raises:
        LogError: retryable: a transaction stayed open; names the partitions.
    """
    left: Collection[TopicPartition] | None = None if partitions is None else set(partitions)
    found: Offsets = {}
    give_up = host.now() + timeout_s
    while True:
        answer = fetch(left)
        found |= answer.offsets
        left = {partition for partition in answer.unstable if partition.topic != COMMIT_TOPIC}
        if not left:
            return found
        if host.now() > give_up:
            names = ", ".join(map(str, sorted(left)))
            raise LogError(
                f"offsets of group {group}: an open transaction has kept back {names} for {timeout_s:.0f} s",
                retryable=True,
            )
        host.sleep(PAUSE_S)
