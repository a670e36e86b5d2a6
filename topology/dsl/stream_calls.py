"""The asynchronous operators of a stream: coroutines, and functions on threads or in
processes.

Relies on: `topology.calls` (the options), `attach_processors`, `compile.call_order`
(what waits for a call).
"""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from dataclasses import replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    TypeVar,
    Unpack,
    overload,
)

from coopstreams.topology.calls import (
    BatchOptions,
    CallOptions,
    batching,
    calling,
)
from coopstreams.topology.dsl.attach_processors import check_list, using
from coopstreams.topology.dsl.function_checks import checked_async
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.graph.nodes import (
    Asynchronous,
    AsyncMap,
    AsyncProcessing,
    Branch,
    DropNullKeys,
    Filter,
    FlatMap,
    FlatMapValues,
    Map,
    MapValues,
    Merge,
    Peek,
    SelectKey,
    Source,
    Split,
)
from coopstreams.topology.processors import CallContext
from coopstreams.topology.records import Record
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

if TYPE_CHECKING:
    from coopstreams.topology.dsl.kstream import KStream  # a call makes another stream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class StreamCalls(Generic[K, V]):
    """The asynchronous operators of a `KStream`."""

    __slots__ = ()

    _flow: Flow

    @overload
    def map_values_async(
        self,
        mapper: Callable[[V], Awaitable[V2]],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_async(
        self,
        mapper: Callable[[V], V2],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    def map_values_async(
        self,
        mapper: Callable[[V], Any],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]:
        """Replace each value by the result of `mapper(value)`, an asynchronous call,
        such as an HTTP request or a query.

        A coroutine function is awaited on an event loop, any other function runs on a
        thread. `options`: see `CallOptions`: `max_in_flight`, `order`, `timeout`,
        `retry`.

        Results of one key are forwarded in order. If operators below act on time, so
        are all results of a partition. So the results below do not depend on how long a
        call takes. While a record waits, later records are committed. After a crash,
        only calls whose records were not forwarded are made again. An error goes to
        `processing.exception.handler`.

        The functions above, except those of `peek`, run twice for each record and must
        return the same both times.

        Raises:
            TopologyError: an operator with state or another asynchronous operator is
            above. Write `repartition()` between them.
        """
        flow = async_map(self._flow, "map_values_async", mapper, name, **options)
        return self._called(flow.with_value(value, "map_values_async"))

    @overload
    def map_values_with_key_async(
        self,
        mapper: Callable[[K, V], Awaitable[V2]],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    @overload
    def map_values_with_key_async(
        self,
        mapper: Callable[[K, V], V2],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]: ...

    def map_values_with_key_async(
        self,
        mapper: Callable[[K, V], Any],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]:
        """Replace each value by the result of `mapper(key, value)`; see
        `map_values_async`.
        """
        flow = async_map(
            self._flow,
            "map_values_with_key_async",
            mapper,
            name,
            with_key=True,
            **options,
        )
        return self._called(flow.with_value(value, "map_values_with_key_async"))

    def map_async(
        self,
        mapper: Callable[
            [K, V], Awaitable[tuple[K2 | None, V2]] | tuple[K2 | None, V2]
        ],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K2, V2]:
        """Replace each record by the pair that `mapper(key, value)` returns; see
        `map_values_async`.
        """
        flow = async_map(
            self._flow,
            "map_async",
            mapper,
            name,
            with_key=True,
            pairs=True,
            **options,
        )
        return self._called(
            flow.with_key(key, "map_async").with_value(value, "map_async")
        )

    def flat_map_values_async(
        self,
        mapper: Callable[[V], Awaitable[Iterable[V2]] | Iterable[V2]],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]:
        """Replace each record by one for each value that `mapper(value)` returns; see
        `map_values_async`.
        """
        flow = async_map(
            self._flow,
            "flat_map_values_async",
            mapper,
            name,
            flat=True,
            **options,
        )
        return self._called(flow.with_value(value, "flat_map_values_async"))

    def flat_map_values_with_key_async(
        self,
        mapper: Callable[[K, V], Awaitable[Iterable[V2]] | Iterable[V2]],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K, V2]:
        """Replace each record by one for each value that `mapper(key, value)` returns;
        see `map_values_async`.
        """
        where = "flat_map_values_with_key_async"
        flow = async_map(
            self._flow,
            where,
            mapper,
            name,
            with_key=True,
            flat=True,
            **options,
        )
        return self._called(flow.with_value(value, where))

    def flat_map_async(
        self,
        mapper: Callable[
            [K, V],
            Awaitable[Iterable[tuple[K2 | None, V2]]] | Iterable[tuple[K2 | None, V2]],
        ],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K2, V2]:
        """Replace each record by the pairs that `mapper(key, value)` returns; see
        `map_values_async`.
        """
        flow = async_map(
            self._flow,
            "flat_map_async",
            mapper,
            name,
            with_key=True,
            pairs=True,
            flat=True,
            **options,
        )
        return self._called(
            flow.with_key(key, "flat_map_async").with_value(value, "flat_map_async")
        )

    def map_batches(
        self,
        mapper: Callable[[list[V]], Awaitable[Sequence[V2]] | Sequence[V2]],
        *,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> KStream[K, V2]:
        """Replace each value by the one at its index in the list that `mapper(values)`
        returns: for a model, or bulk requests.

        A batch has the values of up to `max_records` (500) records that came within
        `max_wait` (10 ms), of any keys; with `order="key"`, at most one record of a
        key. `mapper` returns a list of equal length. If a batch fails after its retries
        (`retry`), its records are tried one by one, so that only the bad record fails.
        `max_in_flight` counts batches, and is 1 unless given. With `arrow=True`,
        `mapper` takes Arrow columns instead of the list: a `pyarrow.RecordBatch` of
        dicts, a `pyarrow.Array` of other values; it may return columns, or a list. For
        the other options see `map_values_async`.

        Raises:
            TopologyError: as `map_values_async`.
        """
        flow = map_batches(self._flow, "map_batches", mapper, name, **options)
        return self._called(flow.with_value(value, "map_batches"))

    def process_async(
        self,
        function: Callable[[Record[K, V], CallContext[K2, V2]], Any],
        *,
        stores: Sequence[StoreSpec] = (),
        key: Serde[K2] | None = None,
        value: Serde[V2] | None = None,
        name: str | None = None,
        **options: Unpack[CallOptions],
    ) -> KStream[K2, V2]:
        """Give each record to `function(record, context)`, an asynchronous call; return
        the records that it forwards.

        `context.store(name)` is the row of the record's key in one of `stores`, which
        are the operator's own. A call begins after the earlier records of its key, and
        finds the rows that they have put. Its puts and forwarded records take effect
        when it has succeeded, with the commit of its record; if it fails after its
        retries, none do. Records without a key are dropped. The call may forward
        records with any keys. For the options see `map_values_async`.

        Raises:
            TopologyError: as `map_values_async`; an `order` other than "key", a change
            of keys above, or stores other than of `key_value_store`.
        """
        flow = process_async(self._flow, function, stores, name, **options)
        return self._called(
            flow.with_key(key, "process_async").with_value(value, "process_async")
        )

    def _called(self, flow: Flow) -> KStream[Any, Any]:
        from coopstreams.topology.dsl.kstream import KStream

        return KStream(flow)


_STATELESS = (
    Branch
    | DropNullKeys
    | Filter
    | FlatMap
    | FlatMapValues
    | Map
    | MapValues
    | Merge
    | Peek
    | SelectKey
    | Split
)


def async_map(
    flow: Flow,
    where: str,
    mapper: Callable[..., Any],
    name: str | None,
    *,
    with_key: bool = False,
    pairs: bool = False,
    flat: bool = False,
    **options: Unpack[CallOptions],
) -> Flow:
    """Return the flow of the results of an asynchronous function, with the serdes of
    its input.

    Raises:
        TopologyError: an invalid argument, or an operator with state above.
    """
    checked_async(where, mapper, *(("key", "value") if with_key else ("value",)))
    how = calling(where, mapper, **options)
    _check_above(flow, where)
    prefix = f"KSTREAM-{'FLAT' if flat else ''}{'MAP' if pairs else 'MAPVALUES'}-ASYNC-"
    node = partial(
        AsyncMap,
        mapper=mapper,
        with_key=with_key,
        pairs=pairs,
        flat=flat,
        calling=how,
    )
    return flow.then(prefix, name, node)


def map_batches(
    flow: Flow,
    where: str,
    mapper: Callable[..., Any],
    name: str | None,
    **options: Unpack[BatchOptions],
) -> Flow:
    """Return the flow of the results of a function that takes lists of values; see
    `async_map`.
    """
    checked_async(where, mapper, "values")
    how = batching(where, mapper, **options)
    _check_above(flow, where)
    return flow.then(
        "KSTREAM-MAP-BATCHES-",
        name,
        partial(AsyncMap, mapper=mapper, with_key=False, calling=how),
    )


def process_async(
    flow: Flow,
    function: Callable[..., Any],
    stores: Sequence[StoreSpec | str],
    name: str | None,
    **options: Unpack[CallOptions],
) -> Flow:
    """Return the flow of the records that the function forwards, with the serdes of its
    input.

    Raises:
        TopologyError: an invalid argument, an operator with state above, a change of
            keys above, or a store whose rows are no single values of keys.
    """
    where = "process_async"
    checked_async(where, function, "record", "context")
    how = calling(where, function, **options)
    if how.order != "key":
        raise TopologyError(
            f'{where}: order="{how.order}" is not possible. A call finds in the stores what earlier records of its key '
            'have put there, so calls of one key come one after the other: order="key".'
        )
    _check_above(flow, where)
    if flow.rekeyed:
        raise TopologyError(
            f'{where}: its stores have rows by the keys that the records have in their topic, and "{flow.node}" may '
            "give them other ones. Write .repartition() before it."
        )
    check_list(stores, where)
    for store in stores:
        if (
            not isinstance(store, StoreSpec)
            or store.kind != "key_value"
            or store.history_ms is not None
        ):
            raise TopologyError(
                f"{where}: stores= takes stores of its own with a row for each key, key_value_store(...), not {store!r}"
            )

    def make(**node: Any) -> AsyncProcessing:
        made = AsyncProcessing(
            **node,
            supplier=function,
            stores=(),
            store_names=(),
            key=None,
            fixed_key=False,
            by_key=True,
            calling=how,
        )
        return using(flow.graph, made, stores, where)

    return replace(flow.then("KSTREAM-PROCESSOR-ASYNC-", name, make), rekeyed=True)


def _check_above(flow: Flow, where: str) -> None:
    names = [flow.node]
    while names:
        node = flow.graph.nodes[names.pop()]
        if isinstance(node, Source):
            continue
        if isinstance(node, Asynchronous):
            raise TopologyError(
                f'{where}: it is below "{node.name}", which is asynchronous, too. Await both in one function, or write '
                ".repartition() in between."
            )
        if not isinstance(node, _STATELESS) or getattr(node, "table", False):
            raise TopologyError(
                f'{where}: "{node.name}" above it is a {type(node).__name__}. Calls are begun before it is a record\'s '
                "turn, so above them there may be only operators without state. Write .repartition() before it."
            )
        names += node.parents
