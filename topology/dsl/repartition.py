"""Repartitioning: records go through a topic, so that equal keys meet on one partition
and in one key range.

An operator that changes keys only marks the flow as `rekeyed`. The first operator that
needs equal keys together makes the topic, and the next such operator on the same
records reuses it.

Invariant: after a repartition the flow is not `rekeyed`, unless the user's partitioner
chose the partitions. Turned down: a topic for each operator (Kafka Streams without
`merge.repartition.topics`): the same bytes would travel twice.
Relies on: `naming`: each name that is taken is a number, and the order in which they are
taken here is Kafka Streams'. Another order renames stores and topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.source_arguments import silence_ms
from coopstreams.topology.durations import Duration
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.external_sinks import ExternalSink
from coopstreams.topology.graph.graph import (
    Flow,
    Repartition,
    Unknown,
    serde_or_none,
)
from coopstreams.topology.graph.nodes import ApplyTo, DropNullKeys
from coopstreams.topology.naming import check_name, repartition_topic
from coopstreams.topology.serdes import Serde


def _nothing(_: Any) -> bytes:
    return b""


def _something(_: bytes) -> bool:
    return True


PRESENT: Serde[Any] = Serde("present", _nothing, _something)
"""Writes any value as empty bytes, and reads True: a count needs to know only that
there is a value.
"""


def keyed(
    flow: Flow,
    prefix: str,
    where: str,
    *,
    cure: str = "",
    named: bool = False,
    values: bool = True,
) -> Flow:
    """Return a flow in which equal keys are on one partition: the flow itself, or the
    source of a repartition topic.

    `prefix` names the topic if one is made. If the topic is `named` by the user, an
    existing topic with another name is not reused. Without `values`, values of an
    unknown serde are replaced: the topic says only whether there is a value.

    Raises:
        TopologyError: the records must be repartitioned and a serde is unknown; `where`
        is the operator that needs it, `cure` a place to name it.
    """
    if not flow.rekeyed:
        return flow
    key = flow.needed("key", where, cure)
    value = (
        PRESENT
        if not values and isinstance(flow.value, Unknown)
        else flow.needed("value", where, cure)
    )
    wanted = Repartition(
        flow.node,
        key,
        value,
        True,
        repartition_topic(prefix),
        source="",
        partitions=None,
    )
    for made in flow.graph.repartitions:
        same = made if named else replace(made, topic=wanted.topic)
        if replace(same, source="") == wanted and not made.explicit:
            flow.graph.names.repartition(prefix)
            return Flow(flow.graph, made.source, key, value)
    return _through(flow, prefix, wanted)


def repartition(
    flow: Flow,
    name: str | None,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    partitions: int | None,
    partitioner: Callable[..., Any] | None,
    idle_advance: Duration | None = None,
) -> Flow:
    """Return the flow after a repartition topic of its own. Records without a key are
    dropped before the topic.

    Source: Kafka Streams drops them, too (vector repartition-01).

    Raises:
        TopologyError: a serde is missing, or the partition count is not a positive
        number.
    """
    where = f'repartition(name="{name}")' if name else "repartition()"
    prefix = (
        flow.graph.names.node("KSTREAM-REPARTITION-")
        if name is None
        else check_name(name, "the name of the repartition")
    )
    wanted = _wanted(flow, where, prefix, key, value, partitions, drop_null_keys=True)
    if partitioner is not None:
        partitioner = checked(
            "partitioner=",
            partitioner,
            "topic",
            "key",
            "value",
            "partitions",
        )
        wanted = replace(wanted, partitioner=partitioner)
    return _through(flow, prefix, wanted, silence_ms(where, idle_advance))


def applied(
    flow: Flow,
    target: ExternalSink,
    name: str,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    partitions: int | None,
) -> None:
    """Attach an external sink, behind a repartition topic of its own. Records without a
    key are sent to it, too.

    Raises:
        TopologyError: a serde is missing, the name is taken, or the partition count is
        not a positive number.
    """
    where = f'to_sink(name="{check_name(name, "the name of the sink")}")'
    if not callable(getattr(target, "open", None)):
        raise TopologyError(
            f"{where}: {target!r} is no sink: it has no open(partition, begin)"
        )
    read = _through(
        flow,
        name,
        _wanted(flow, where, name, key, value, partitions, drop_null_keys=False),
    )
    read.then("KSTREAM-SINK-", name, partial(ApplyTo, target=target))


def _wanted(
    flow: Flow,
    where: str,
    prefix: str,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    partitions: int | None,
    *,
    drop_null_keys: bool,
) -> Repartition:
    """Return the repartition topic that the user asks for, with the given serdes or
    else the known ones.

    Raises:
        TopologyError: a serde is missing, or the partition count is not a positive
        number.
    """
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise TopologyError(
            f"{where}: partitions must be 1 or more, not {partitions!r}"
        )
    key = serde_or_none(key, "key", where) or flow.needed("key", where, where)
    value = serde_or_none(value, "value", where) or flow.needed("value", where, where)
    topic = repartition_topic(prefix)
    return Repartition(
        flow.node,
        key,
        value,
        drop_null_keys,
        topic,
        source="",
        partitions=partitions,
        explicit=True,
    )


def _through(
    flow: Flow,
    prefix: str,
    wanted: Repartition,
    idle_ms: int | None = None,
) -> Flow:
    graph = flow.graph
    topic = wanted.topic
    if any(made.topic == topic for made in graph.repartitions):
        raise TopologyError(
            f'two repartition topics are named "{topic}". Give one of the operators that need them another name=.'
        )
    drop_name, sink_name, source_name = graph.names.repartition(prefix)
    parent = flow.node
    if wanted.drop_null_keys:
        parent = graph.attach(
            DropNullKeys(name=graph.names.take(drop_name), parents=(parent,))
        )
    return graph.through(
        parent,
        graph.names.take(sink_name),
        graph.names.take(source_name),
        wanted,
        idle_ms,
    )
