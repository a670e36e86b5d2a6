"""The serdes with which a topology reads and writes a topic, as defaults for tests.

Turned down: raw bytes if several serdes are possible. A test would compare bytes with
objects, and fail without saying why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from coopstreams.common.name_suggestions import did_you_mean
from coopstreams.testing.driver_views import OutputRecord
from coopstreams.testing.write_order import Forwarded
from coopstreams.topology.compile.outputs import ANY_PARTITION
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import (
    DynamicSink,
    Sink,
    Source,
    Structure,
)
from coopstreams.topology.serdes import Serde, raw

Serdes: TypeAlias = tuple[Serde[Any], Serde[Any]]
"""The serde of the keys, and that of the values."""


def read_with(
    topology: Structure,
    topic: str,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
) -> Serdes:
    """Return the given serdes of a source topic. Where one is None, return that of the
    source or global table that reads the topic.

    Raises:
        TopologyError: the topology does not read the topic.
    """
    one_of(topic, topology.source_topics, "reads no topic")
    kept = [
        table.update or table.store
        for table in topology.global_tables
        if table.topic == topic
    ]
    sources = [
        node
        for node in topology.nodes
        if isinstance(node, Source) and topic in node.topics
    ]
    reader = [*kept, *sources][0]  # a topic has one reader
    return key or reader.key, value or reader.value


def written_with(
    topology: Structure,
    topic: str,
    dead_letters: Sequence[str],
    key: Serde[Any] | None = None,
    value: Serde[Any] | None = None,
) -> Serdes:
    """Return the given serdes of an output topic. Where one is None, return that of the
    sinks that write the topic.

    Sinks that name the topic come before sinks with a topic extractor. Dead letters are
    raw bytes.

    Raises:
        TopologyError: the topology does not write the topic, or its sinks have
            different serdes and none is given.
    """
    sinks = _sinks(topology, topic, dead_letters)
    keys = [key] if key else [sink.key for sink in sinks]
    values = [value] if value else [sink.value for sink in sinks]
    return _the_one("key", topic, keys), _the_one("value", topic, values)


def _sinks(
    topology: Structure,
    topic: str,
    dead_letters: Sequence[str],
) -> Sequence[Sink | DynamicSink]:
    """Return the sinks that name a topic; if there are none, the sinks with a topic
    extractor.
    """
    named = [node for node in topology.nodes if isinstance(node, Sink)]
    dynamic = [node for node in topology.nodes if isinstance(node, DynamicSink)]
    if not dynamic:
        known = [sink.topic for sink in named]
        one_of(topic, [*known, *dead_letters], "writes no topic")
    sinks = [sink for sink in named if sink.topic == topic]
    if sinks or topic in dead_letters:
        return sinks
    return dynamic


def decoded(
    record: Forwarded,
    key: Serde[Any],
    value: Serde[Any],
) -> OutputRecord[Any, Any]:
    """Return a written record with its key and value deserialised."""
    return OutputRecord(
        record.topic,
        None if record.key is None else key.deserialize(record.key),
        None if record.value is None else value.deserialize(record.value),
        record.timestamp,
        list(record.headers or ()),
        None if record.partition == ANY_PARTITION else record.partition,
    )


def one_of(
    name: str,
    known: Sequence[str],
    lacks: str,
) -> str:
    """Return the name, if it is known. `lacks`: a part of the error message, such as
    "has no store".

    Raises:
        TopologyError: it is not known; the message suggests the nearest known name.
    """
    if name in known:
        return name
    near = did_you_mean(name, known) or f"; it knows {', '.join(known) or 'none'}"
    raise TopologyError(f'the topology {lacks} "{name}"{near}')


def _the_one(
    part: str,
    topic: str,
    serdes: Sequence[Serde[Any]],
) -> Serde[Any]:
    first, *others = serdes or [raw]
    if any(other != first for other in others):
        known = " and ".join(dict.fromkeys(str(serde) for serde in serdes))
        raise TopologyError(
            f'the sinks that write "{topic}" have different serdes ({known}): read it with output("{topic}", '
            f"{part}=...)"
        )
    return first
