"""Defines a failure: a compiled program's report on a record that a node could not
process.

Invariant: a failure belongs to one record and one node. The exception handlers, not the
program, decide what follows.
Relies on: `tasks.failure_handlers` (decide).
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
    """The report of one record that a node could not process.

    Shape: `key`, `value`, `headers`, `timestamp` and `offset` are those of the source
    record, as read. `timestamp` is the one that `timestamp=` extracted; if the
    extractor failed, Kafka's own; -1 if the record has none.

    A record that an operator holds back and forwards later has no source record.
    Examples: a row of the record cache, the result of a window that closes, a row that
    expires. For it, `offset` and `value` are None, `key` and `timestamp` are those of
    the forwarded record, and `source` is the partition processed last. In a
    punctuation, `key` is None as well.
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
    """The number of failures of this record in a row, while a handler retries it. It
    starts at 1 after a restart and on another owner.
    """


OnFailure: TypeAlias = Callable[[Failure], None]
"""The function that a program calls with each failure. If it returns, only the failing
node drops the record, and the other nodes process it. If it raises, the batch ends.
"""
