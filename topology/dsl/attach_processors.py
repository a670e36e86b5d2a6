"""Attaches processors, with their own stores and those of other nodes.

Relies on: `naming`: each name that is taken is a number, and the order in which they are
taken here is Kafka Streams'. Another order renames stores and topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow, Graph
from coopstreams.topology.graph.nodes import Function, Processing
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

AnyProcessing = TypeVar("AnyProcessing", bound=Processing)


def process(
    flow: Flow,
    supplier: Function,
    stores: Sequence[StoreSpec | str],
    name: str | None,
    *,
    by_key: bool | None,
    fixed_key: bool = False,
) -> Flow:
    """Return the flow of the records that a processor forwards, with the serdes of its
    input.

    Raises:
        TopologyError: the supplier is not a function, something else than stores, a
            store's name is taken, `by_key` is missing, or True after a change of keys.
    """
    method = "process_values" if fixed_key else "process"
    by_key = by_key_of(by_key, f"{method}()")
    if by_key and flow.rekeyed:
        raise TopologyError(
            f'{method}(): by_key=True needs the keys that the records have in their topic, and "{flow.node}" may give '
            "them other ones. Write .repartition() before it, so that equal keys meet, or by_key=False: each partition "
            "is one task."
        )
    make = partial(
        Processing,
        supplier=checked(method, supplier),
        stores=(),
        store_names=(),
        key=flow.key if fixed_key and isinstance(flow.key, Serde) else None,
        fixed_key=fixed_key,
        by_key=by_key,
    )
    prefix = "KSTREAM-PROCESSVALUES-" if fixed_key else "KSTREAM-PROCESSOR-"
    after = flow.then(
        prefix,
        name,
        lambda **node: using(flow.graph, make(**node), stores, f"{method}()"),
    )
    return after if fixed_key else replace(after, rekeyed=True)


def by_key_of(by_key: bool | None, where: str) -> bool:
    """Return the argument `by_key`, which the user must give.

    It has no default. A wrong False would silently keep instances from sharing a
    partition. A wrong True would give wrong results where a processor looks at several
    keys.

    Raises:
        TopologyError: the argument is missing.
    """
    if not isinstance(by_key, bool):
        raise TopologyError(
            f"{where}: say how its state is kept. by_key=True: it treats each key on its own, and key ranges of a "
            "partition can be tasks. by_key=False: it may look at several keys at a time, and each partition is one "
            "task, as in Kafka Streams."
        )
    return by_key


def using(
    graph: Graph,
    node: AnyProcessing,
    stores: Sequence[StoreSpec | str],
    where: str,
) -> AnyProcessing:
    """Return the processor with these stores added. A name stands for the store of
    another node.

    Raises:
        TopologyError: something else than stores, or a store's name is taken.
    """
    check_list(stores, where)
    for store in stores:
        if not isinstance(store, StoreSpec | str):
            raise TopologyError(
                f"{where}: stores= takes stores such as key_value_store(...), and names of stores, not {store!r}"
            )
    specs = [
        graph.added_stores.get(store, store) if isinstance(store, str) else store
        for store in stores
    ]
    own = [store for store in specs if isinstance(store, StoreSpec)]
    for store in own:
        take_store(graph, store)
    names = [store.name if isinstance(store, StoreSpec) else store for store in specs]
    graph.needed_stores.update(names)
    return replace(
        node,
        stores=tuple(dict.fromkeys([*node.stores, *own])),
        store_names=tuple(dict.fromkeys([*node.store_names, *names])),
    )


def check_list(stores: Sequence[StoreSpec | str], where: str) -> None:
    """Check that `stores=` is a list.

    Raises:
        TopologyError: it is not, but for example a single name, or a set (each process
        would have the stores in another order).
    """
    if isinstance(stores, str) or not isinstance(stores, Sequence):
        raise TopologyError(
            f"{where}: stores= takes a list of stores, stores=[...], not {stores!r}"
        )


def take_store(graph: Graph, store: StoreSpec) -> None:
    """Reserve the name of a store, unless the same store is already added or belongs to
    another processor.
    """
    known = [
        *graph.added_stores.values(),
        *(
            store
            for node in graph.nodes.values()
            if isinstance(node, Processing)
            for store in node.stores
        ),
    ]
    if store not in known:
        for each in (store, store.past):
            if each is not None:
                graph.names.store("", each.name)
