"""Attaches the nodes that need more than a name: sinks, merges, tables, late records.

The classes that users see (`KStream`, `KTable`, ...) hold a `Flow` and call one
function each; this module and the other `attach_…` modules decide what a call means.

Invariant: an operator with a store sees each key on one partition and in one key range
only, and with the same bytes as every other operator.
Relies on: `naming`: each name that is taken is a number, and the order in which they are
taken here is Kafka Streams'. Another order renames stores and topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.materialized import StoreOption, kept_as, name_of
from coopstreams.topology.dsl.repartition import PRESENT, keyed
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow, Unknown, serde_or_none
from coopstreams.topology.graph.nodes import (
    DynamicSink,
    Late,
    Merge,
    Sink,
    TableSource,
)
from coopstreams.topology.naming import check_name
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import AnyWindows

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Grouped:
    """A flow (a stream with its serdes) to be aggregated, and how. `name`: the name for
    its repartition topic, if one is needed. `windows` None: the aggregation has no
    windows. `emit_on_close`: whether each window is forwarded only once, when it
    closes.
    """

    flow: Flow
    name: str | None
    windows: AnyWindows | None = None
    emit_on_close: bool = False


@dataclass(frozen=True, slots=True)
class TableFlow:
    """A table: the flow of its updates, and the store of the table source or
    aggregation at its root.

    `taken`: for a table that drops late records, the flow of all records that reach the
    node that drops them.
    """

    flow: Flow
    store: StoreSpec
    taken: Flow | None = None

    @property
    def is_windowed(self) -> bool:
        """Whether its keys are `serdes.Windowed`, of windows of its own. Tasks then
        have its rows by the keys within them.
        """
        return self.store.kind in ("window", "session")

    def kept(self, name: str, value: Serde[Any]) -> StoreSpec:
        """Return the specification of a store for a view of this table: with the
        table's keys and windows, another name and serde of values, and default options.
        """
        options: dict[str, Any] = {
            "logged": True,
            "cached": True,
            "store_type": None,
            "ttl_ms": None,
        }
        return replace(self.store, name=name, value=value, history_ms=None, **options)


def grouped(
    flow: Flow,
    name: str | None,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    where: str,
) -> Grouped:
    """Return the flow with the serdes for a repartition topic, to be aggregated.
    `where`: the method that groups.

    Raises:
        TopologyError: `key` differs from the serde of unchanged keys, which are not
        serialised again.
    """
    key = serde_or_none(key, "key", where)
    value = serde_or_none(value, "value", where)
    if key is not None and not flow.rekeyed and key != flow.key:
        raise TopologyError(
            f"{where}: the keys are written as {flow.key}, and it does not write them again. Leave out key={key}, or "
            f"write .select_key(lambda key, value: ..., key=serdes.{key}) first."
        )
    if name is not None:
        check_name(name, "the name of the group")
    return Grouped(replace(flow, key=key or flow.key, value=value or flow.value), name)


def sink(
    flow: Flow,
    topic: str | Function,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    partitioner: Function | None,
    name: str | None,
) -> None:
    """Attach a sink below a flow.

    Raises:
        TopologyError: a serde is missing, or the topic name is not legal.
    """
    where = "to(…)" if callable(topic) else f'to("{check_name(topic, "the topic")}")'
    key = serde_or_none(key, "key", where) or flow.needed("key", where, where)
    value = serde_or_none(value, "value", where) or flow.needed("value", where, where)
    flow.then("KSTREAM-SINK-", name, sink_of("to", topic, key, value, partitioner))


def sink_of(
    where: str,
    topic: str | Function,
    key: Serde[Any],
    value: Serde[Any],
    partitioner: Function | None,
) -> Callable[..., Sink | DynamicSink]:
    """Return the function that makes a sink, given its name and parents.

    Raises:
        TopologyError: the topic name is not legal, or a function takes other arguments.
    """
    if partitioner is not None:
        partitioner = checked(
            "partitioner=",
            partitioner,
            "topic",
            "key",
            "value",
            "partitions",
        )
    if callable(topic):
        make: Function = partial(
            DynamicSink,
            topic_of=checked(where, topic, "key", "value"),
        )
    else:
        make = partial(Sink, topic=check_name(topic, "the topic"))
    return partial(make, key=key, value=value, partitioner=partitioner)


def to_table(
    flow: Flow,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    store: StoreOption,
    name: str | None,
) -> TableFlow:
    """Return the table whose updates are the records of a flow.

    Raises:
        TopologyError: a serde is missing, or a name is taken or not legal.
    """
    graph = flow.graph
    where = "to_table()"
    node_name = graph.names.node("KSTREAM-TOTABLE-", name)
    store_name = graph.names.store("KSTREAM-TOTABLE-", name_of(store))
    given = grouped(flow, None, key, value, where).flow
    flow = keyed(given, name or store_name, where, cure=where)
    spec = kept_as(
        store,
        StoreSpec(
            store_name,
            "key_value",
            flow.needed("key", where, where),
            flow.needed("value", where, where),
        ),
    )
    if store is not None:
        graph.needed_stores.add(store_name)
    graph.attach(TableSource(name=node_name, parents=(flow.node,), store=spec))
    return TableFlow(replace(flow, node=node_name), spec)


def late(taken: Flow, name: str | None) -> Flow:
    """Return the flow of a table's late records (`TableFlow.taken`), unchanged.

    Only the owner of a key knows which of its records are late. So the flow is
    `rekeyed`: windowed operators below read it from a topic of their own, whose stream
    time does not depend on key ranges.

    Raises:
        TopologyError: the values were lost in a repartition topic, because a count does
        not need them. Name their serde.
    """
    if taken.value == PRESENT:
        raise TopologyError(
            f'late(): the values do not come as far as "{taken.node}". Write value=serdes.… in the group_by(…) before '
            "it."
        )
    return replace(taken.then("KSTREAM-LATE-", name, Late), rekeyed=True)


def merge(
    left: Flow,
    right: Flow,
    name: str | None,
) -> Flow:
    """Return both flows merged. A serde that both have stays; keys with two serdes
    count as changed.

    A flow that is merged with itself has each record once, as in Kafka Streams.

    Raises:
        TopologyError: the flows belong to two builders.
    """
    left.same_graph(right, "merge()")
    both = left.then(
        "KSTREAM-MERGE-",
        name,
        lambda name, parents: Merge(
            name=name,
            parents=tuple(dict.fromkeys((*parents, right.node))),
        ),
    )

    def common(
        a: Serde[Any] | Unknown,
        b: Serde[Any] | Unknown,
    ) -> Serde[Any] | Unknown:
        unknown = next(
            (serde for serde in (a, b) if isinstance(serde, Unknown)),
            Unknown(f"merge ({both.node}) of {a} and {b}"),
        )
        return a if a == b else unknown

    key = common(left.key, right.key)
    return replace(
        both,
        key=key,
        value=common(left.value, right.value),
        rekeyed=left.rekeyed or right.rekeyed or isinstance(key, Unknown),
    )
