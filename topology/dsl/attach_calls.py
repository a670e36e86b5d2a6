"""Attaches asynchronous nodes: `map_values_async` and its variants, and
`process_async`.

Invariant: above such a node there are only operators without state, up to a source. The
call of a record begins before its turn, when the state at that turn is still unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from coopstreams.topology.calls import BatchOptions, CallOptions, batching, calling
from coopstreams.topology.dsl.attach_processors import check_list, using
from coopstreams.topology.dsl.functions import checked_async
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
from coopstreams.topology.stores import StoreSpec

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
    """Return the flow of the results; its serdes are those of the records before.

    Raises:
        TopologyError: an invalid argument, or an operator with state above.
    """
    checked_async(where, mapper, *(("key", "value") if with_key else ("value",)))
    how = calling(where, mapper, **options)
    _check_above(flow, where)
    prefix = f"KSTREAM-{'FLAT' if flat else ''}{'MAP' if pairs else 'MAPVALUES'}-ASYNC-"
    node = partial(
        AsyncMap, mapper=mapper, with_key=with_key, pairs=pairs, flat=flat, calling=how
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
