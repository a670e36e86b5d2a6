"""Which commits have to wait until everything before them is done: `commit_order="offset"`.

The transaction markers of Kafka know the order of a partition only. Who needs results to become visible in the order of the input has its
transactional commit wait until the stable offset of the partition has reached its first offset; the next one then waits for this one.

    stable 40;  B commits [45,49] -> waits;  A commits [40,44] -> proceeds, stable 45 -> B proceeds

The queue is the commit topic: each consumer reads there how far the others are, so nobody has to be told that it may proceed.

Source: the proposal's purgatory ("Look into the future: Transactional Support").
Turned down: making every transaction wait (the default is free of order: per key there is one anyway).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

P = TypeVar("P")


def behind(first: Mapping[P, int], stable: Mapping[P, int | None]) -> dict[P, int | None]:
    """Return the partitions in which somebody is not done with what comes before a commit; empty: it may proceed.

    Shape: `first` is the first offset that it commits, of each partition; `stable` the first offset that is not done there, None: not known.
    """
    return {at: stable.get(at) for at, offset in first.items() if (reached := stable.get(at)) is None or reached < offset}
