"""Checks of the arguments of a source, before its node is made.

Invariant: arguments that pass have both serdes and topic names that Kafka allows, each
once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from re import Pattern
from typing import (
    Any,
    Literal,
    TypeAlias,
    get_args,
)

from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.durations import Duration, checked_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.fields import Expression
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.graph.offset_resets import OffsetReset, reset_of
from coopstreams.topology.naming import check_name
from coopstreams.topology.records import TimestampedRecord
from coopstreams.topology.serdes import Serde

SourceOrder: TypeAlias = Literal["key", "none"]
"""The order in which records are processed.

    key     records of one key in the order of their offsets
    none    any order: a share group delivers the records
"""
SHORTEST_MS = 1000
"""The shortest `idle_advance`. It is limited because each advance of a partition's time
is a record in the topic.
"""


def described(
    method: str,
    topics: tuple[str, ...],
    key: Serde[Any],
    value: Serde[Any],
    timestamp: Callable[..., int | None] | None = None,
    pattern: Pattern[str] | None = None,
    idle_advance: Duration | None = None,
    reset: OffsetReset | None = None,
    order: SourceOrder = "key",
) -> Callable[..., Source]:
    """Return a function that makes a source of these topics, or of those that match the
    pattern, given the source's name.

    Raises:
        TopologyError: no topic, a topic twice, an illegal name, no serde, a function
        that cannot be called, an invalid reset, or an unknown order.
    """
    if not topics and pattern is None:
        raise TopologyError(f"{method}(): name at least one topic")
    if pattern is not None and not isinstance(pattern.pattern, str):
        raise TopologyError(
            f"{method}(): topics have names of text, not of bytes: re.compile({pattern.pattern!r})"
        )
    for topic in topics:
        check_name(topic, "the topic")
    if len(set(topics)) < len(topics):
        raise TopologyError(f"{method}({list(topics)}): a topic is named twice")
    for part, serde in (("key", key), ("value", value)):
        if not isinstance(serde, Serde):
            raise TopologyError(
                f'"{", ".join(topics) if pattern is None else pattern.pattern}": {part}= must be a serde such as '
                f"serdes.text or serdes.json(Type), not {serde!r}"
            )
    if order not in get_args(SourceOrder):
        raise TopologyError(f'{method}(): order must be "key" or "none", not {order!r}')
    extract = None if timestamp is None else _extractor(timestamp)
    idle_ms = silence_ms(f"{method}()", idle_advance)
    begins = reset_of(reset, f"{method}()")
    read = partial(
        Source,
        topics=topics,
        key=key,
        value=value,
        timestamp=extract,
        pattern=pattern,
    )
    return partial(read, idle_ms=idle_ms, reset=begins, unordered=order == "none")


def _extractor(timestamp: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return the function of a record that extracts its timestamp, which may be an
    expression over its key and value.
    """
    if isinstance(timestamp, Expression):
        return partial(_computed, checked("timestamp=", timestamp, "key", "value"))
    return checked("timestamp=", timestamp, "record")


def _computed(
    timestamp: Expression,
    record: TimestampedRecord[Any, Any],
) -> int | None:
    computed: int | None = timestamp(record.key, record.value)
    return computed


def silence_ms(
    where: str,
    idle_advance: Duration | None,
) -> int | None:
    """Return `idle_advance=` in milliseconds; None if it is not given.

    Raises:
        TopologyError: it is no duration, or shorter than a second.
    """
    return (
        None
        if idle_advance is None
        else checked_ms(idle_advance, f"{where}: idle_advance", SHORTEST_MS)
    )
