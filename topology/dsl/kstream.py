"""`KStream`: records, each a fact of its own. One method an operator; a method attaches a node and says what comes out
of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from coopstreams.topology.dsl import attach
from coopstreams.topology.dsl.attach_processors import process
from coopstreams.topology.dsl.branches import BranchedKStream
from coopstreams.topology.dsl.functions import checked
from coopstreams.topology.dsl.grouped import KGroupedStream
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.dsl.materialized import Materialized
from coopstreams.topology.dsl.repartition import repartition
from coopstreams.topology.dsl.stream_joins import StreamJoins
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import Filter, FlatMap, FlatMapValues, Map, MapValues, Peek, SelectKey
from coopstreams.topology.partitioners import Partitioner
from coopstreams.topology.printed import Destination, Printer
from coopstreams.topology.processors import Processor
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class KStream(StreamJoins[K, V]):
    """A stream of records with keys K and values V.

    `key=` and `value=` name the serde of what a method makes; where keys or values stay the same, so does their serde.
    `name=` names the node, and the repartition topic if the operator needs one. Keys may be None; keyed operators drop
    such records.
    """

    __slots__ = ()

    def filter(self, predicate: Callable[[K, V], bool], *, name: str | None = None) -> KStream[K, V]:
        """Keep the records for which `predicate(key, value)` is true."""
        make = partial(Filter, predicate=checked("filter", predicate, "key", "value"))
        return KStream(self._flow.then("KSTREAM-FILTER-", name, make))

    def filter_not(self, predicate: Callable[[K, V], bool], *, name: str | None = None) -> KStream[K, V]:
        """Keep the records for which `predicate(key, value)` is false."""
        make = partial(Filter, predicate=checked("filter_not", predicate, "key", "value"), negate=True)
        return KStream(self._flow.then("KSTREAM-FILTER-", name, make))

    def map(
        self,
        mapper: Callable[[K, V], tuple[K2 | None, V2]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K2, V2]:
        """Make one record of each: `mapper(key, value)` returns the new pair."""
        flow = self._flow.then("KSTREAM-MAP-", name, partial(Map, mapper=checked("map", mapper, "key", "value")))
        return KStream(flow.with_key(key, "map").with_value(value, "map"))

    def flat_map(
        self,
        mapper: Callable[[K, V], Iterable[tuple[K2 | None, V2]]],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
    ) -> KStream[K2, V2]:
        """Make any number of records of each: `mapper(key, value)` returns the new pairs."""
        flow = self._flow.then(
            "KSTREAM-FLATMAP-", name, partial(FlatMap, mapper=checked("flat_map", mapper, "key", "value"))
        )
        return KStream(flow.with_key(key, "flat_map").with_value(value, "flat_map"))

    def map_values(
        self, mapper: Callable[[V], V2], *, value: Serde[V2] | None = None, name: str | None = None
    ) -> KStream[K, V2]:
        """Replace each value by `mapper(value)`."""
        make = partial(MapValues, mapper=checked("map_values", mapper, "value"))
        return KStream(self._flow.then("KSTREAM-MAPVALUES-", name, make).with_value(value, "map_values"))

    def map_values_with_key(
        self, mapper: Callable[[K, V], V2], *, value: Serde[V2] | None = None, name: str | None = None
    ) -> KStream[K, V2]:
        """Replace each value by `mapper(key, value)`."""
        make = partial(MapValues, mapper=checked("map_values_with_key", mapper, "key", "value"), with_key=True)
        return KStream(self._flow.then("KSTREAM-MAPVALUES-", name, make).with_value(value, "map_values_with_key"))

    def flat_map_values(
        self, mapper: Callable[[V], Iterable[V2]], *, value: Serde[V2] | None = None, name: str | None = None
    ) -> KStream[K, V2]:
        """Replace each record by one for every value that `mapper(value)` returns."""
        make = partial(FlatMapValues, mapper=checked("flat_map_values", mapper, "value"))
        return KStream(self._flow.then("KSTREAM-FLATMAPVALUES-", name, make).with_value(value, "flat_map_values"))

    def flat_map_values_with_key(
        self, mapper: Callable[[K, V], Iterable[V2]], *, value: Serde[V2] | None = None, name: str | None = None
    ) -> KStream[K, V2]:
        """Replace each record by one for every value that `mapper(key, value)` returns."""
        make = partial(FlatMapValues, mapper=checked("flat_map_values_with_key", mapper, "key", "value"), with_key=True)
        return KStream(
            self._flow.then("KSTREAM-FLATMAPVALUES-", name, make).with_value(value, "flat_map_values_with_key")
        )

    def select_key(
        self, mapper: Callable[[K, V], K2 | None], *, key: Serde[K2] | None = None, name: str | None = None
    ) -> KStream[K2, V]:
        """Give each record the key `mapper(key, value)`. The next keyed operator sends the records through a
        repartition topic.
        """
        make = partial(SelectKey, mapper=checked("select_key", mapper, "key", "value"))
        return KStream(self._flow.then("KSTREAM-KEY-SELECT-", name, make).with_key(key, "select_key"))

    def peek(self, action: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Call `action(key, value)` for each record and pass it on."""
        return KStream(
            self._flow.then("KSTREAM-PEEK-", name, partial(Peek, action=checked("peek", action, "key", "value")))
        )

    def foreach(self, action: Callable[[K, V], object], *, name: str | None = None) -> None:
        """Call `action(key, value)` for each record; nothing comes after it."""
        self._flow.then("KSTREAM-FOREACH-", name, partial(Peek, action=checked("foreach", action, "key", "value")))

    def print(self, to: Destination = None, *, label: str | None = None, name: str | None = None) -> None:
        """Write each record as a line `[label]: key, value` to standard output, to the end of a file, or to what has a
        `write`.
        """
        self._flow.then("KSTREAM-PRINTER-", name, partial(Peek, action=Printer(to, label or self._flow.node)))

    def split(self, *, name: str | None = None) -> BranchedKStream[K, V]:
        """Begin to split the records into branches: `.split().branch(predicate,
        name="small").default_branch(name="large")["small"]`.
        """
        return BranchedKStream(self._flow, name)

    def merge(self, other: KStream[K, V], *, name: str | None = None) -> KStream[K, V]:
        """Put the records of both streams into one. There is no order between the two."""
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
    ) -> KStream[K, V]:
        """Send the records through an internal topic `<application>-<name>-repartition`, with as many partitions as
        asked for or needed.

        `partitioner(topic, key, value, partitions)` chooses the partition, as in `to`. Then equal keys need not be
        together: what needs them so below it (aggregations, joins, tables) sends the records through another topic, by
        their keys.
        """
        return KStream(repartition(self._flow, name, key, value, partitions, partitioner))

    def group_by_key(
        self, *, key: Serde[K] | None = None, value: Serde[V] | None = None, name: str | None = None
    ) -> KGroupedStream[K, V]:
        """Group the records by their key. `name=` names the repartition topic, if the key was changed before."""
        return KGroupedStream(attach.grouped(self._flow, name, key, value))

    def group_by(
        self,
        mapper: Callable[[K, V], K2 | None],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KGroupedStream[K2, V]:
        """Group the records by `mapper(key, value)`, through a repartition topic; None drops the record."""
        make = partial(SelectKey, mapper=checked("group_by", mapper, "key", "value"))
        flow = self._flow.then("KSTREAM-KEY-SELECT-", name, make).with_key(key, "group_by")
        return KGroupedStream(attach.grouped(flow, name, None, value))

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
        """Give the records to a processor, one that `supplier()` makes for each task; what it forwards comes next.

        `stores`: those of its own, and by name those of tables and other processors. `by_key` must be said. True: it
        treats each key on its own (state under the record's key, nothing kept for several keys together), so that key
        ranges can be tasks. False: it may look at several keys, so each partition is one task. Records are taken as
        they come: after a change of keys, `repartition()` first if equal keys are to meet.

        Raises:
            TopologyError: `by_key` is left out, or True behind a change of keys.
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
        """Give the records to a processor that leaves keys as they are: no operator below needs a repartition for it.
        See `process`.
        """
        flow = process(self._flow, supplier, stores, name, by_key=by_key, fixed_key=True)
        return KStream(flow.with_value(value, "process_values"))

    def to_table(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable[K, V]:
        """Take the records for the upserts of a table: the latest value of each key, a null value deletes. `store=`
        keeps it under that name.
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
        """Write the records to a topic, by default as they are known to be written. `topic(key, value)` chooses one for
        each record.

        `partitioner(topic, key, value, partitions)` chooses the partition, from 0 to partitions - 1, or several, or
        `[]` to drop the record; otherwise the key does, as in Java.
        """
        attach.sink(self._flow, topic, key, value, partitioner, name)
