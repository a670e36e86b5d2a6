"""A failure: the report of a compiled program on a record that a node could not
process.

Invariant: a failure belongs to one record and one node. The exception handlers, not the
program, decide what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coopstreams.topology.columns import Headers, TopicPartition

Phase = Literal["deserialization", "processing", "production"]
"""The phase in which a record failed: its deserialisation, a user function, or the
serialisation of a result.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that a node could not process.

    Shape: `key`, `value`, `headers`, `timestamp` and `offset` are those of the source
    record, as read. `timestamp` is what `timestamp=` extracted, Kafka's own if it could
    not, -1 if there is none.

    What was held back and is forwarded later (a row of the record cache, a window that
    closes or that `suppress` lets go, a record that waited for a match, a row that
    expires) has no source record any more: `offset` and `value` are None, `key` and
    `timestamp` are its own, and `source` is the partition processed last. In a
    punctuation the key is None, too.
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
    attempt: int = 1
    """The number of failures of this record in a row, if a handler retries it. Restarts
    and other ranges begin at 1.
    """


OnFailure: TypeAlias = Callable[[Failure], None]
"""If it returns, only the failing node drops the record, and others go on. If it
raises, the batch ends.
"""
