"""`KStream`: a stream of records. Each operator is a method that attaches a node and
returns its flow.

Relies on: `graph.graph` (what a `Flow` says of keys and serdes), `stream_calls` and
`stream_joins` (more of its operators), `attach_processors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from coopstreams.topology.aggregates import Argument
from coopstreams.topology.compatibility.other_names import STREAM, OtherNames
from coopstreams.topology.dsl import attach
from coopstreams.topology.dsl.attach_processors import process
from coopstreams.topology.dsl.branches import BranchedKStream
from coopstreams.topology.dsl.distinct import distinct
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.grouped import KGroupedStream
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.dsl.printer import Destination, Printer
from coopstreams.topology.dsl.repartition import applied, repartition
from coopstreams.topology.dsl.stream_calls import StreamCalls
from coopstreams.topology.dsl.stream_joins import StreamJoins
from coopstreams.topology.durations import Duration
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.external_sinks import ExternalSink
from coopstreams.topology.graph.nodes import (
    Filter,
    FlatMap,
    FlatMapValues,
    Map,
    MapValues,
    Peek,
    SelectKey,
)
from coopstreams.topology.graph.partitioners import Partitioner
from coopstreams.topology.processors import Processor
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class KStream(StreamCalls[K, V], StreamJoins[K, V], OtherNames):
    """A stream of records with keys K and values V.

    `key=` and `value=` name the serde of new keys or values; keys or values that stay
    the same keep their serde. `name=` names the node, and the repartition topic if the
    operator needs one. Keys may be None; keyed operators drop such records.

    Raises (each operator, while the topology is built):
        TopologyError: the function cannot be called with the operator's arguments, the
            name is taken or not legal, or a serde is unknown where bytes are made. The
            message names the operator and the cure.
    """

    __slots__ = ()

    _written = STREAM

    def filter(
        self,
        predicate: Callable[[K, V], bool],
        *,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Keep the records for which `predicate(key, value)` is true."""
        make = partial(Filter, predicate=checked("filter", predicate, "key", "value"))
        return KStream(self._flow.then("KSTREAM-FILTER-", name, make))

    def filter_not(
        self,
        predicate: Callable[[K, V], bool],
        *,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Keep the records for which `predicate(key, value)` is false."""
        make = partial(
            Filter,
            predicate=checked("filter_not", predicate, "key", "value"),
            negate=True,
        )
        return KStream(self._flow.then("KSTREAM-FILTER-", name, make))

    def map(
        self,
        mapper: Callable[[K, V], tuple[K2 | None, V2]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K2, V2]:
        """Replace each record by the pair that `mapper(key, value)` returns."""
        flow = self._flow.then(
            "KSTREAM-MAP-",
            name,
            partial(Map, mapper=checked("map", mapper, "key", "value")),
        )
        return KStream(flow.with_key(key, "map").with_value(value, "map"))

    def flat_map(
        self,
        mapper: Callable[[K, V], Iterable[tuple[K2 | None, V2]]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K2, V2]:
        """Replace each record by the pairs that `mapper(key, value)` returns, any
        number of them.
        """
        flow = self._flow.then(
            "KSTREAM-FLATMAP-",
            name,
            partial(FlatMap, mapper=checked("flat_map", mapper, "key", "value")),
        )
        return KStream(flow.with_key(key, "flat_map").with_value(value, "flat_map"))

    def map_values(
        self,
        mapper: Callable[[V], V2],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Replace each value by `mapper(value)`."""
        make = partial(MapValues, mapper=checked("map_values", mapper, "value"))
        return KStream(
            self._flow.then("KSTREAM-MAPVALUES-", name, make).with_value(
                value,
                "map_values",
            )
        )

    def map_values_with_key(
        self,
        mapper: Callable[[K, V], V2],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Replace each value by `mapper(key, value)`."""
        make = partial(
            MapValues,
            mapper=checked("map_values_with_key", mapper, "key", "value"),
            with_key=True,
        )
        return KStream(
            self._flow.then("KSTREAM-MAPVALUES-", name, make).with_value(
                value,
                "map_values_with_key",
            )
        )

    def flat_map_values(
        self,
        mapper: Callable[[V], Iterable[V2]],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Replace each record by one for each value that `mapper(value)` returns."""
        make = partial(
            FlatMapValues,
            mapper=checked("flat_map_values", mapper, "value"),
        )
        return KStream(
            self._flow.then("KSTREAM-FLATMAPVALUES-", name, make).with_value(
                value,
                "flat_map_values",
            )
        )

    def flat_map_values_with_key(
        self,
        mapper: Callable[[K, V], Iterable[V2]],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Replace each record by one for each value that `mapper(key, value)` returns."""
        make = partial(
            FlatMapValues,
            mapper=checked("flat_map_values_with_key", mapper, "key", "value"),
            with_key=True,
        )
        return KStream(
            self._flow.then("KSTREAM-FLATMAPVALUES-", name, make).with_value(
                value,
                "flat_map_values_with_key",
            )
        )

    def select_key(
        self,
        mapper: Callable[[K, V], K2 | None],
        *,
        key: Serde[K2] | None = None,
        name: str | None = None,
    ) -> KStream[K2, V]:
        """Replace each key by `mapper(key, value)`. The next keyed operator
        repartitions the records.
        """
        make = partial(SelectKey, mapper=checked("select_key", mapper, "key", "value"))
        return KStream(
            self._flow.then("KSTREAM-KEY-SELECT-", name, make).with_key(
                key,
                "select_key",
            )
        )

    def peek(
        self,
        action: Callable[[K, V], object],
        *,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Call `action(key, value)` for each record and pass it on. The action must not
        change key or value.
        """
        return KStream(
            self._flow.then(
                "KSTREAM-PEEK-",
                name,
                partial(Peek, action=checked("peek", action, "key", "value")),
            )
        )

    def foreach(
        self,
        action: Callable[[K, V], object],
        *,
        name: str | None = None,
    ) -> None:
        """Call `action(key, value)` for each record. The stream ends here."""
        self._flow.then(
            "KSTREAM-FOREACH-",
            name,
            partial(Peek, action=checked("foreach", action, "key", "value")),
        )

    def print(
        self,
        to: Destination = None,
        *,
        label: str | None = None,
        name: str | None = None,
    ) -> None:
        """Write a line `[label]: key, value` for each record.

        `to`: an object with `write`; the path of a file, to which lines are appended;
        None: standard output.
        """
        self._flow.then(
            "KSTREAM-PRINTER-",
            name,
            partial(Peek, action=Printer(to, label or self._flow.node)),
        )

    def split(self, *, name: str | None = None) -> BranchedKStream[K, V]:
        """Begin to split the records into branches.

        Example: `.split().branch(predicate,
        name="small").default_branch(name="large")["small"]`.
        """
        return BranchedKStream(self._flow, name)

    def merge(self, other: KStream[K, V], *, name: str | None = None) -> KStream[K, V]:
        """Merge the records of both streams into one, in no order between the two.

        Raises:
            TopologyError: `other` is a table; use its `to_stream()`.
        """
        if not isinstance(other, KStream):
            raise TopologyError(
                f"merge() puts two streams into one, not a stream and a {type(other).__name__}. A table has "
                ".to_stream()."
            )
        return KStream(attach.merge(self._flow, other._flow, name))

    def repartition(
        self,
        *,
        name: str | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitions: int | None = None,
        partitioner: Partitioner[K, V] | None = None,
        idle_advance: Duration | None = None,
    ) -> KStream[K, V]:
        """Send the records through a repartition topic
        `<application>-<name>-repartition`.

        The topic has `partitions` partitions, or as many as needed. `partitioner(topic,
        key, value, partitions)` chooses the partition, as in `to`. With it, equal keys
        may be on several partitions, so aggregations, joins and tables below
        repartition the records by their keys. `idle_advance`: as of
        `StreamsBuilder.stream`.
        """
        return KStream(
            repartition(
                self._flow,
                name,
                key,
                value,
                partitions,
                partitioner,
                idle_advance,
            )
        )

    def distinct(
        self,
        within: Duration,
        *,
        by: Argument | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Keep the first record of each key, and drop those that follow within a time,
        by their timestamps.

        With `by=`, the name of a part of the value, an expression or a function of
        `(value)` or `(key, value)`, records with equal keys and equal ids are
        duplicates. A record without an id passes, one without a key does not.

        A duplicate that comes so late that stream time has passed twice the time since
        the first may pass again.
        """
        return KStream(distinct(self._flow, within, by, store, name))

    def group_by_key(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K, V]:
        """Group the records by key. `name=` names the repartition topic, which is
        needed if the key has changed.
        """
        return KGroupedStream(
            attach.grouped(self._flow, name, key, value, "group_by_key()")
        )

    def group_by(
        self,
        mapper: Callable[[K, V], K2 | None],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]:
        """Group the records by `mapper(key, value)`, through a repartition topic. A
        None key drops the record.
        """
        make = partial(SelectKey, mapper=checked("group_by", mapper, "key", "value"))
        flow = self._flow.then("KSTREAM-KEY-SELECT-", name, make).with_key(
            key,
            "group_by",
        )
        return KGroupedStream(attach.grouped(flow, name, None, value, "group_by()"))

    def process(
        self,
        supplier: Callable[[], Processor[K, V, K2, V2]],
        *,
        stores: Sequence[StoreSpec | str] = (),
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        by_key: bool | None = None,
        name: str | None = None,
    ) -> KStream[K2, V2]:
        """Give the records to a processor, which `supplier()` makes for each task;
        return the records that it forwards.

        `stores`: the processor's own, and the names of stores of tables and of other
        processors. `by_key` is required. True: the processor treats each key on its
        own, with state under the record's key only, so key ranges can be tasks. False:
        it may look at several keys, so each partition is one task. Records are not
        repartitioned: after a change of keys, call `repartition()` first if equal keys
        must meet.

        Raises:
            TopologyError: `by_key` is missing, or True after a change of keys.
        """
        return KStream(
            process(self._flow, supplier, stores, name, by_key=by_key)
            .with_key(key, "process")
            .with_value(value, "process")
        )

    def process_values(
        self,
        supplier: Callable[[], Processor[K, V, K, V2]],
        *,
        stores: Sequence[StoreSpec | str] = (),
        value: Serde[V2] | None = None,
        by_key: bool | None = None,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Give the records to a processor that keeps their keys, so that no repartition
        follows. See `process`.
        """
        flow = process(
            self._flow,
            supplier,
            stores,
            name,
            by_key=by_key,
            fixed_key=True,
        )
        return KStream(flow.with_value(value, "process_values"))

    def to_table(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Return the table whose updates are the records: the latest value of each key;
        a null value deletes the row.

        `store=` materialises the table under that name.
        """
        return KTable(attach.to_table(self._flow, key, value, store, name))

    def to(
        self,
        topic: str | Callable[[K, V], str],
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: Partitioner[K, V] | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic. `topic(key, value)` chooses the topic of each
        record.

        Without `key=` and `value=`, the known serdes are used. `partitioner(topic, key,
        value, partitions)` chooses the partition, from 0 to partitions - 1, or several,
        or `[]` to drop the record. Without it, the key decides, as in the Java
        producer.
        """
        attach.sink(self._flow, topic, key, value, partitioner, name)

    def to_sink(
        self,
        sink: ExternalSink,
        *,
        name: str,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitions: int | None = None,
    ) -> None:
        """Apply each record exactly once to an external sink, such as a table of a
        database (`PostgresSink`).

        The records go through a topic `<application>-<name>-repartition`, with
        `partitions` partitions, or as many as the largest topic above. Each partition
        is applied by one task, in its order. The sink keeps its positions under `name`:
        another name starts from the beginning.
        """
        applied(self._flow, sink, name, key, value, partitions)
