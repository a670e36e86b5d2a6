"""A failure: the report of a compiled program on a record that a node could not process.

Invariant: a failure belongs to one record and one node. The exception handlers, not the program, decide what follows
from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coopstreams.topology.columns import Headers, TopicPartition

Phase = Literal["deserialization", "processing", "production"]
"""Where a record failed: while bytes became a value, in a function of the user's, or while a value became bytes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that a node could not process.

    Shape: `key`, `value`, `headers`, `timestamp` and `offset` are those of the source record, as read. While the record
    cache is forwarded (`flush`) there is none: then `offset` is None, `key` and `timestamp` are the table entry's,
    `value` is None, and `source` is the partition processed last.
    """

    phase: Phase
    node: str
    error: Exception
    source: TopicPartition
    offset: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None


OnFailure: TypeAlias = Callable[[Failure], None]
"""Returns: the record is dropped at the failing node only, its siblings and the next record go on. Raises: the batch
ends there.
"""
