"""A function of `process_async` that another process can import."""

from __future__ import annotations

from coopstreams.topology.processors import CallContext
from coopstreams.topology.records import Record


def summed(record: Record[str, int], context: CallContext[str, int]) -> None:
    """Keep the sum of each key."""
    counts = context.store("counts")
    total: int = (counts.get() or 0) + record.value
    counts.put(total)
    context.forward(record.with_value(total))
