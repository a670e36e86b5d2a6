"""Which partition of a topic a record goes to, where the program says so: `to(…, partitioner=…)`.

Everybody else's records go where a Java producer would put them, by `keys.partition_of`.

Source: Kafka Streams `StreamPartitioner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Partitioner: TypeAlias = Callable[[str, K, V, int], int]
"""`(topic, key, value, partitions) -> partition`, from 0 to partitions - 1."""


def chosen(partitioner: Partitioner[Any, Any], topic: str, key: Any, value: Any, partitions: int) -> int:
    """Return the partition that a partitioner chooses.

    Raises:
        ValueError: the topic has no such partition.
    """
    partition = partitioner(topic, key, value, partitions)
    if type(partition) is not int or not 0 <= partition < partitions:
        raise ValueError(f'partitioner= returned {partition!r} for topic "{topic}", which has partitions 0 to {partitions - 1}')
    return partition
