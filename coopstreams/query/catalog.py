"""The stores of a topology that can be queried, and their kinds. Pure.

Turned down: querying the buffers of operators (suppress, joins with a grace period):
their rows are not results yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coopstreams.query.backend import History, StoreInfo
from coopstreams.status.model import Kind
from coopstreams.topology.graph.nodes import Source, SubTopology, TableSource
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.kept_headers import KeptHeaders
from coopstreams.topology.row_versions import Histories
from coopstreams.topology.serdes import Serde, Windowed, windowed_ms
from coopstreams.topology.stores import StoreKind, StoreSpec

_KINDS: Mapping[StoreKind, Kind] = {
    "key_value": "key_value",
    "window": "window",
    "session": "session",
}


def stores_of(
    topology: Topology,
    tasks: Sequence[int],
    partitions: Mapping[str, int],
    misplaced: Collection[str] = (),
) -> dict[str, StoreInfo]:
    """Return the stores that can be queried, by name.

    `tasks`: the partition count of each sub-topology; `partitions`: that of each topic;
    `misplaced`: topics with records outside the partitions that murmur2 gives their
    keys.
    """
    found = {
        spec.name: replace(
            _store(subtopology, spec, tasks[subtopology.id]),
            misplaced=tuple(
                topic for topic in subtopology.topics if topic in misplaced
            ),
        )
        for subtopology in topology.subtopologies
        for spec in subtopology.stores
        if spec.kind in _KINDS
    }
    for table in topology.global_tables:
        spec = table.store
        found[spec.name] = StoreInfo(
            spec.name,
            "global",
            None,
            partitions[table.topic],
            spec.key,
            spec.value,
        )
    return found


def _store(
    subtopology: SubTopology,
    spec: StoreSpec,
    partitions: int,
) -> StoreInfo:
    """Return what queries need of a store; `partitions`: those of its sub-topology."""
    if spec.history_ms is not None:
        assert isinstance(spec.value, Histories)
        history = History(_topics_of(subtopology, spec.name), spec.history_ms)
        return StoreInfo(
            spec.name,
            "versioned",
            subtopology.id,
            partitions,
            spec.key,
            spec.value.one,
            history=history,
        )
    if isinstance(spec.value, KeptHeaders):
        return StoreInfo(
            spec.name,
            "key_value",
            subtopology.id,
            partitions,
            spec.key,
            spec.value.one,
            headers=True,
        )
    return StoreInfo(
        spec.name,
        _KINDS[spec.kind],
        subtopology.id,
        partitions,
        spec.key,
        spec.value,
        spec.window_ms,
        _row_key(spec),
    )


def _row_key(spec: StoreSpec) -> Serde[Windowed[Any]] | None:
    """Return the serde of the keys under which a window or session store has its rows:
    the record key with the window's time.

    None: a key-value store, whose rows have the record keys, for which `StoreSpec.key`
    is the serde.
    """
    if spec.kind == "key_value":
        return None
    return (
        windowed_ms(spec.key, spec.window_ms)
        if spec.row_key is None and spec.window_ms is not None
        else spec.row_key
    )


def _topics_of(subtopology: SubTopology, store: str) -> tuple[str, ...]:
    """Return the topics whose stream time bounds the history of a versioned store.

    These are the topics of its table, or all topics of the task if a processor keeps
    the store.
    """
    nodes = {node.name: node for node in subtopology.nodes}
    for node in subtopology.nodes:
        if (
            isinstance(node, TableSource)
            and node.store is not None
            and node.store.name == store
        ):
            source = nodes[node.parents[0]]
            assert isinstance(source, Source)
            return source.topics
    return subtopology.topics
