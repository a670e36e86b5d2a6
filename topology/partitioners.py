"""Which partition of a topic a record goes to, where the program says so: `to(…, partitioner=…)`.

Everybody else's records go where a Java producer would put them, by `keys.partition_of`.

Turned down: None for "where the key belongs", as Java's empty `Optional` has it (it is also what a function returns
that forgot to).
Source: Kafka Streams `StreamPartitioner`; KIP-837 for several partitions, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Partitioner: TypeAlias = Callable[[str, K, V, int], int | Collection[int]]
"""`(topic, key, value, partitions) -> partition`, from 0 to partitions - 1; or several, each of which gets the record;
or `[]`: none does.
"""


def chosen(partitioner: Partitioner[Any, Any], topic: str, key: Any, value: Any, partitions: int) -> Collection[int]:
    """Return the partitions that a partitioner chooses, each once.

    Raises:
        ValueError: the topic has no such partition.
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
