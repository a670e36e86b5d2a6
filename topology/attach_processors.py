"""Attaching processors: which stores they bring, which they find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.functions import checked
from coopstreams.topology.graph import Flow
from coopstreams.topology.nodes import Function, Processing
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec


def process(flow: Flow, supplier: Function, stores: Sequence[StoreSpec | str], name: str | None, *, by_key: bool, fixed_key: bool = False) -> Flow:
    """Return the flow of what a processor forwards; keys and values are known as before.

    Raises:
        TopologyError: no function, something else than stores, or a name that another store has.
    """
    method = "process_values" if fixed_key else "process"
    function = checked(method, supplier)
    own = tuple(store for store in stores if isinstance(store, StoreSpec))
    for store in stores:
        if not isinstance(store, StoreSpec | str):
            raise TopologyError(f"{method}(): stores= takes stores such as key_value_store(...), and names of stores, not {store!r}")
    for store in own:
        _take(flow, store)
    names = tuple(store.name if isinstance(store, StoreSpec) else store for store in stores)
    flow.graph.needed_stores.update(names)
    make = partial(
        Processing,
        supplier=function,
        stores=own,
        store_names=names,
        key=flow.key if fixed_key and isinstance(flow.key, Serde) else None,
        fixed_key=fixed_key,
        by_key=by_key and not flow.rekeyed,  # new keys are not yet where they belong
    )
    after = flow.then("KSTREAM-PROCESSVALUES-" if fixed_key else "KSTREAM-PROCESSOR-", name, make)
    return after if fixed_key else replace(after, rekeyed=True)


def _take(flow: Flow, store: StoreSpec) -> None:
    """Take the name of a store, unless the very same store stands at another processor."""
    nodes = flow.graph.nodes.values()
    if not any(store in node.stores for node in nodes if isinstance(node, Processing)):
        flow.graph.names.store("", store.name)
