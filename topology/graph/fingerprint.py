"""The fingerprint of a sub-topology, 16 hex digits, by which the members of a group
check that they run the same tasks.

It covers the whole program except the functions: operators and their connections,
source topics (for a pattern: the pattern), sinks, internal topics, stores with their
serdes, windows and changelogs, the global tables that are looked up, and the partition
count.

Not covered: functions and how asynchronous ones are called (so that a corrected
function can be rolled out process by process), names of nodes (an operator inserted
before others changes generated names), the topics that match a pattern now and their
partition counts (each process sees them at a time of its own), the store type, where a
source begins without a position, and the place that an external sink applies to (its
password may change).

Invariant: the same program has the same fingerprints in every process: they depend on
no address, no module path and no order of a set.
Invariant: a new field of a node or a store is left out while it has its default
(`_node`, `said`): otherwise a new release counts as another program. Turned down: hashing the bytecode of
functions (it changes with the Python version, and with the line numbers that a comment
moves).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from re import Pattern
from typing import Any

import orjson
from xxhash import xxh64_hexdigest

from coopstreams.topology.graph.join_nodes import StreamGlobalJoin
from coopstreams.topology.graph.nodes import (
    GlobalTable,
    Node,
    Processing,
    Source,
    Structure,
    SubTopology,
)
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import Windows

_LEFT_OUT = {"name", "parents", "ask", "store_type", "calling", "target", "reset"}


def fingerprints(topology: Structure, partitions: Sequence[int]) -> tuple[str, ...]:
    """Return the fingerprint of each sub-topology, given the partition count of each
    (`ResolvedTopics.tasks`).

    Shape: `topology` is the one that runs (`as_it_runs`): `topology.optimization`
    decides which changelogs it has.
    """
    fixed = not topology.has_patterns
    return tuple(
        _fingerprint(topology, part, partitions[part.id] if fixed else None)
        for part in topology.subtopologies
    )


def _fingerprint(
    topology: Structure,
    part: SubTopology,
    partitions: int | None,
) -> str:
    """Return the fingerprint of a part; `partitions` None: not covered, because they
    follow from a pattern.
    """
    number_of = {node.name: number for number, node in enumerate(part.nodes)}
    drawn = {
        "nodes": [_node(node, number_of) for node in part.nodes],
        "stores": [said(store) for store in part.stores],
        "global": [said(table) for table in global_tables_of(topology, part)],
        "partitions": partitions,
    }
    return xxh64_hexdigest(orjson.dumps(drawn, option=orjson.OPT_SORT_KEYS))


def global_tables_of(topology: Structure, part: SubTopology) -> list[GlobalTable]:
    """Return the global tables that nodes of a sub-topology look up."""
    names = {
        node.store.name for node in part.nodes if isinstance(node, StreamGlobalJoin)
    }
    names |= {
        name
        for node in part.nodes
        if isinstance(node, Processing)
        for name in node.store_names
    }
    return [table for table in topology.global_tables if table.store.name in names]


def _node(node: Node, number_of: Mapping[str, int]) -> dict[str, Any]:
    """Return what counts of a node; its parents by their numbers in `number_of`."""
    drawn = said(node)
    if isinstance(node, Source):
        if node.pattern is not None:
            del drawn["topics"]
        if node.idle_ms is None:  # keeps the fingerprint of versions without this field
            del drawn["idle_ms"]
        if not node.unordered:  # likewise
            del drawn["unordered"]
    return {**drawn, "parents": [number_of[parent] for parent in node.parents]}


def said(value: Any) -> Any:
    """Return a value of a program as JSON values, which are the same in every process.
    A function becomes "function".
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Serde):
        return value.name if value.schema is None else [value.name, value.schema]
    if callable(value):
        return "function"
    if isinstance(value, Pattern):
        return [value.pattern, value.flags]
    if isinstance(value, tuple | list):
        return [said(item) for item in value]
    if isinstance(value, StoreSpec):
        shown = _fields(value) | {"name": value.name}
        if value.ttl_ms is None:  # keeps the fingerprint of versions without this field
            del shown["ttl_ms"]
        return shown
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, Windows):  # the user's own class, and no dataclass
        return {
            "": type(value).__name__,
            "size_ms": value.size_ms,
            "grace_ms": value.grace_ms,
        }
    return _text(value)


def _fields(value: Any) -> dict[str, Any]:
    """Return what counts of a dataclass's object, with the name of its class."""
    shown = {
        field.name: said(getattr(value, field.name))
        for field in fields(value)
        if field.name not in _LEFT_OUT
    }
    return {"": type(value).__name__} | shown


def _text(value: object) -> str:
    """Return the text of a value in a user's windows, such as a time zone.

    For an object whose text shows its address, and for a container without a fixed
    order, return its class name.
    """
    if isinstance(value, set | frozenset | Mapping):
        return type(value).__name__
    shown = (
        type(value).__repr__ is not object.__repr__
        or type(value).__str__ is not object.__str__
    )
    return str(value) if shown else type(value).__name__
