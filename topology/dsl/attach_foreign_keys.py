"""Attaches a foreign-key join: two topics between the tables, an operator at each end,
and the resulting table.

    left -> ask -> (subscriptions) -> answer <- right
    left ... result <- (answers) <- answer          `result` looks up the left table

Invariant: each topic is partitioned like the table at its end: subscriptions like the
right table, answers like the left one.
Source: Kafka Streams `KTableImpl.doJoinOnForeignKey`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.attach_views import ask_for_old_values, materialize
from coopstreams.topology.dsl.functions import checked
from coopstreams.topology.dsl.materialized import (
    FOLLOWS_TABLES,
    StoreOption,
    kept_as,
    name_of,
)
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.foreign_keys import ANSWERS, SUBSCRIBERS, SUBSCRIPTION
from coopstreams.topology.graph.graph import Flow, Graph, Repartition, serde_or_none
from coopstreams.topology.graph.join_nodes import (
    ForeignKeyAnswer,
    ForeignKeyAsk,
    ForeignKeyResult,
)
from coopstreams.topology.graph.nodes import TableSource
from coopstreams.topology.naming import check_name
from coopstreams.topology.serdes import Serde, raw
from coopstreams.topology.stores import SUBSCRIBER_BYTES, StoreSpec

_PREFIX = "KTABLE-FK-JOIN-"


def join_foreign(
    left: TableFlow,
    right: TableFlow,
    foreign_key: Callable[..., Any] | None,
    foreign_key_with_key: Callable[..., Any] | None,
    joiner: Callable[..., Any],
    value: Serde[Any] | None,
    store: StoreOption,
    name: str | None,
    *,
    is_left: bool,
) -> TableFlow:
    """Return the table of the joiner's results for each left row and the right row that
    it names.

    Raises:
        TopologyError: the tables are of two builders or windowed, a serde is missing,
            or not exactly one function of the foreign key is given.
    """
    method = "left_join" if is_left else "join"
    graph = left.flow.graph
    where = f"{method} with {right.flow.node}"
    left.flow.same_graph(right.flow, where)
    if left.is_windowed or right.is_windowed:
        raise TopologyError(
            f"{where}: a foreign key cannot be joined with a windowed table"
        )
    extract = _extractor(where, foreign_key, foreign_key_with_key)
    checked(method, joiner, "value", "other_value")
    value = serde_or_none(value, "value", where)
    if value is None:
        raise TopologyError(
            f"{where}: how do the joined values become bytes? Write value=serdes.… there: a join by foreign key may "
            "have to keep them."
        )
    key = left.flow.needed("key", where)
    left_value = left.flow.needed("value", where)
    other_key = right.flow.needed("key", where)
    right_value = right.flow.needed("value", where)
    for table in (left, right):
        ask_for_old_values(graph, table.flow.node, force=True)
        materialize(graph, table.flow.node)
    names = graph.names
    subscriptions, answers, subscribers = (
        _name(graph, name, part) for part in ("registration", "response", "store")
    )
    asking = left.flow.then(
        f"{_PREFIX}SUBSCRIPTION-SEND-",
        None,
        partial(
            ForeignKeyAsk,
            extract=extract,
            left=is_left,
            key=key,
            value=left_value,
            foreign_key=other_key,
        ),
    )
    asked = _through(asking, subscriptions, other_key, SUBSCRIPTION)
    stored = names.store("", subscribers)
    spec = StoreSpec(
        stored,
        "subscribers",
        other_key,
        SUBSCRIBERS,
        row_key=raw,
        suffix_bytes=SUBSCRIBER_BYTES,
    )
    answering = names.node(f"{_PREFIX}SUBSCRIPTION-PROCESSOR-")
    graph.attach(
        ForeignKeyAnswer(
            name=answering,
            parents=(asked, right.flow.node),
            store=spec,
            value=right_value,
            primary_key=key,
        )
    )
    answered = _through(Flow(graph, answering, key, ANSWERS), answers, key, ANSWERS)
    resulting = names.node(f"{_PREFIX}SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-")
    graph.attach(
        ForeignKeyResult(
            name=resulting,
            parents=(answered, left.flow.node),
            ask=asking.node,
            joiner=joiner,
            left=is_left,
            key=key,
            value=left_value,
            right_value=right_value,
        )
    )
    output = names.node(f"{_PREFIX}OUTPUT-", name)
    kept = kept_as(
        store,
        StoreSpec(
            names.store(f"{_PREFIX}OUTPUT-", name_of(store)), "key_value", key, value
        ),
        no_ttl=FOLLOWS_TABLES,
    )
    if store is not None:
        graph.needed_stores.add(kept.name)
    graph.attach(TableSource(name=output, parents=(resulting,), store=kept))
    return TableFlow(Flow(graph, output, key, value), kept)


def _extractor(
    where: str,
    foreign_key: Callable[..., Any] | None,
    with_key: Callable[..., Any] | None,
) -> Callable[[Any, Any], Any]:
    if with_key is not None and foreign_key is None:
        return checked("foreign_key_with_key=", with_key, "key", "value")
    if foreign_key is None or with_key is not None:
        raise TopologyError(
            f"{where}: give it one function, foreign_key=(value) or foreign_key_with_key=(key, value)"
        )
    extract = checked("foreign_key=", foreign_key, "value")
    return lambda _, value: extract(value)


def _name(graph: Graph, name: str | None, part: str) -> str:
    """Return the name of a topic or store of the join, as in Kafka Streams."""
    if name is not None:
        return f"{check_name(name, 'the node name')}-subscription-{part}{'' if part == 'store' else '-topic'}"
    word = "STATE-STORE" if part == "store" else part.upper()
    generated = graph.names.node(f"{_PREFIX}SUBSCRIPTION-{word}-")
    return generated if part == "store" else f"{generated}-topic"


def _through(flow: Flow, topic: str, key: Serde[Any], value: Serde[Any]) -> str:
    """Send the records of a node through a topic; return the name of the topic's
    source.
    """
    graph = flow.graph
    if any(made.topic == topic for made in graph.repartitions):
        raise TopologyError(
            f'two internal topics are named "{topic}". Give one of the joins another name=.'
        )
    wanted = Repartition(
        flow.node, key, value, False, topic, source="", partitions=None, explicit=True
    )
    sink = graph.names.node("KTABLE-SINK-")
    source = graph.names.node("KTABLE-SOURCE-")
    return graph.through(flow.node, sink, source, wanted).node
