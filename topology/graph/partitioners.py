"""Custom partitioners: `to(…, partitioner=…)` chooses the partition of each record.

Without one, a record goes where the Java producer's default partitioner sends it, see
`keys.partition_of`.

Turned down: None for the default partition, as Java's empty `Optional` (a function that
forgets to return also returns None).
Source: Kafka Streams `StreamPartitioner`; KIP-837 for several partitions, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Partitioner: TypeAlias = Callable[[str, K, V, int], int | Collection[int]]
"""`(topic, key, value, partitions) -> partition`, from 0 to partitions - 1; or several
partitions, each of which gets the record; or `[]`, which drops it.
"""


def chosen(
    partitioner: Partitioner[Any, Any],
    topic: str,
    key: Any,
    value: Any,
    partitions: int,
) -> Collection[int]:
    """Return the partitions that a partitioner chooses, each once.

    Raises:
        ValueError: the partitioner named a partition that the topic does not have.
    """
    answer: Any = partitioner(topic, key, value, partitions)
    found: Collection[Any] = (answer,)
    if isinstance(answer, Collection) and not isinstance(answer, str | bytes):
        found = dict.fromkeys(answer)
    for partition in found:
        if type(partition) is not int or not 0 <= partition < partitions:
            raise ValueError(
                f'partitioner= returned {answer!r} for topic "{topic}", which has partitions 0 to {partitions - 1}'
            )
    return found
