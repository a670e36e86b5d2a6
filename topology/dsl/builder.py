"""`StreamsBuilder`: the start of a program. Read sources, call operators on them, and
`build()` the topology.

Invariant: the builder contacts no broker. An error that can be found without a broker
is raised at the wrong line, at the latest in `build()`.
Relies on: `attach` (the nodes of sources and tables), `graph.subtopologies` (what
`build` makes and refuses).
Turned down: refusing a program that writes to a topic it reads (the loop may be
intended), and default serdes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from re import Pattern
from typing import TypeVar

from coopstreams.topology.compatibility.other_names import BUILDER, OtherNames
from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.global_tables import GlobalKTable, global_table
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized, kept_as, name_of
from coopstreams.topology.dsl.source_arguments import SourceOrder, described
from coopstreams.topology.durations import Duration, checked_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow, Graph
from coopstreams.topology.graph.nodes import TableSource
from coopstreams.topology.graph.offset_resets import OffsetReset
from coopstreams.topology.graph.subtopologies import cut
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.naming import check_name, past_name
from coopstreams.topology.records import TimestampedRecord
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


class StreamsBuilder(OtherNames):
    """Builds one topology. `application_id` is the consumer group and the prefix of
    every internal topic.
    """

    _written = BUILDER

    def __init__(self, application_id: str) -> None:
        self._graph = Graph(check_name(application_id, "the application id"))

    def stream(
        self,
        topic: str | Sequence[str] | Pattern[str],
        *,
        key: Serde[K],
        value: Serde[V],
        timestamp: Callable[[TimestampedRecord[K, V]], int | None] | None = None,
        idle_advance: Duration | None = None,
        order: SourceOrder = "key",
        reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Read one topic, several with the same serdes, or all that match
        `re.compile(…)` as a whole, as a stream.

        Matching topics that are created while the application runs are read, too
        (`metadata.max.age.ms`). Internal topics never match.

        `timestamp(record)` returns the event time of a record in milliseconds; None or
        a negative number drops the record. An expression reads key and value.

        `idle_advance`: when a partition has been silent for so long, its stream time
        advances with the clock, and windows close. To that end the application writes
        time marks to the topic, which other readers see as records without key and
        value; `repartition(idle_advance=)` writes them to a topic of its own. Windows
        behind a repartition topic need an `idle_advance` of that topic.

        `order="none"`: records may be processed in any order, so a share group delivers
        them to all threads of all instances, however few partitions there are. Up to
        the next topic, only operators without state can follow.

        `reset`: where to begin in a partition of which the group has no position:
        "earliest", "latest", a timedelta before now, or "by_duration:PT1H"; without it,
        as `auto.offset.reset` says.
        """
        if not isinstance(topic, Pattern | Sequence):
            raise TopologyError(
                f"stream() takes a topic, a list of topics, or re.compile(…), not {topic!r}"
            )
        pattern = topic if isinstance(topic, Pattern) else None
        topics = (
            ()
            if isinstance(topic, Pattern)
            else (topic,)
            if isinstance(topic, str)
            else tuple(topic)
        )
        node = described(
            "stream",
            topics,
            key,
            value,
            timestamp,
            pattern,
            idle_advance,
            reset,
            order,
        )
        source = self._graph.source(name, node)
        return KStream(Flow(self._graph, source.name, source.key, source.value))

    def table(
        self,
        topic: str,
        *,
        key: Serde[K],
        value: Serde[V],
        store: str | Materialized | None = None,
        history: Duration | None = None,
        timestamp: Callable[[TimestampedRecord[K, V]], int | None] | None = None,
        reset: OffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Read a topic as a table: the latest value of each key; a null value deletes
        the row.

        `store=` materialises the table under that name, for queries. With `history=`
        the table is versioned: "latest" is by timestamp, a stream record is joined with
        the row as of the record's timestamp, and versions are kept for that long (in
        stream time). `reset` as of `stream`: the table lacks the rows from before the
        reset.
        """
        store_name = self._graph.names.store(
            f"{check_name(topic, 'the topic')}-",
            name_of(store),
        )
        source = self._graph.source(
            name,
            described("table", (topic,), key, value, timestamp, reset=reset),
            suffix="-source",
        )
        spec = kept_as(
            store,
            StoreSpec(store_name, "key_value", source.key, source.value),
            no_ttl=None
            if history is None
            else "history= says how long versions are kept.",
        )
        if history is not None:
            spec = replace(
                spec,
                value=versions_of(source.value),
                history_ms=checked_ms(history, f'table("{topic}"): the history'),
            )
            self._graph.names.store("", past_name(store_name))
        if store is not None or history is not None:
            self._graph.needed_stores.add(store_name)
        flow = Flow(self._graph, source.name, source.key, source.value)
        table = flow.then("KTABLE-SOURCE-", name, partial(TableSource, store=spec))
        return KTable(TableFlow(table, spec, None if history is None else table))

    def global_table(
        self,
        topic: str,
        *,
        key: Serde[K],
        value: Serde[V],
        store: str | None = None,
    ) -> GlobalKTable[K, V]:
        """Read a topic as a table of which every instance has all rows. `store=` names
        its store.

        The table is complete before the first record is processed. Later updates have
        no order with the records of streams.
        """
        described("global_table", (topic,), key, value)
        return GlobalKTable(
            self._graph,
            global_table(self._graph, topic, key, value, store),
        )

    def build(self) -> Topology:
        """Return the topology as written so far.

        Raises:
            TopologyError: the topology is empty, or a topic is used in two ways.
        """
        return cut(self._graph)
