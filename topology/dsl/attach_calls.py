"""Attaches the nodes whose functions wait: `map_values_async` and its like.

Invariant: above such a node there are only operators without state, up to a source. The call of a record is begun
before its turn, when no operator can know yet what its state will be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from coopstreams.topology.calls import BatchOptions, CallOptions, batching, calling
from coopstreams.topology.dsl.functions import checked_async
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.graph.nodes import (
    AsyncMap,
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

_STATELESS = (
    Branch | DropNullKeys | Filter | FlatMap | FlatMapValues | Map | MapValues | Merge | Peek | SelectKey | Split
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
        TopologyError: an argument that makes no sense, or an operator with state above.
    """
    checked_async(where, mapper, *(("key", "value") if with_key else ("value",)))
    how = calling(where, mapper, **options)
    _check_above(flow, where)
    prefix = f"KSTREAM-{'MAP' if pairs else 'FLATMAPVALUES' if flat else 'MAPVALUES'}-ASYNC-"
    node = partial(AsyncMap, mapper=mapper, with_key=with_key, pairs=pairs, flat=flat, calling=how)
    return flow.then(prefix, name, node)


def map_batches(
    flow: Flow, where: str, mapper: Callable[..., Any], name: str | None, **options: Unpack[BatchOptions]
) -> Flow:
    """Return the flow of the results of a function that takes lists of values; see `async_map`."""
    checked_async(where, mapper, "values")
    how = batching(where, mapper, **options)
    _check_above(flow, where)
    return flow.then("KSTREAM-MAP-BATCHES-", name, partial(AsyncMap, mapper=mapper, with_key=False, calling=how))


def _check_above(flow: Flow, where: str) -> None:
    names = [flow.node]
    while names:
        node = flow.graph.nodes[names.pop()]
        if isinstance(node, Source):
            continue
        if isinstance(node, AsyncMap):
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
