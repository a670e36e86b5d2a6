"""The sub-topologies whose key ranges would make records late for each other.

Tasks that share a partition read it at different speeds, by hours of records if there is a backlog. What they send
through a topic of the application arrives out of order by as much, and the one that is ahead moves the stream time of
windows there: the records of the others are late. A partition that one task reads keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coopstreams.topology.graph.nodes import Sink, SubTopology


def before_windows(subtopologies: Iterable[SubTopology]) -> Mapping[int, frozenset[str]]:
    """Return the sub-topologies that write, through others or not, to one with windows or other rows that expire.

    Shape: by number, with the names of these stores.
    """
    parts = list(subtopologies)
    written = {part.id: {node.topic for node in part.nodes if isinstance(node, Sink)} for part in parts}
    readers = {
        part.id: [reader for reader in parts if not written[part.id].isdisjoint(reader.topics)] for part in parts
    }
    found: dict[int, frozenset[str]] = {part.id: frozenset() for part in parts}
    before: dict[int, frozenset[str]] = {}
    while before != found:  # a sub-topology may write to one that comes earlier
        before = dict(found)
        for part in parts:
            below = (_expiring(reader) | before[reader.id] for reader in readers[part.id])
            found[part.id] = frozenset().union(*below)
    return {number: stores for number, stores in found.items() if stores}


def _expiring(part: SubTopology) -> frozenset[str]:
    """Return the stores whose rows expire in stream time."""
    limits = {spec.name: (spec.retention_ms, spec.ttl_ms, spec.history_ms) for spec in part.stores}
    return frozenset(name for name, times in limits.items() if any(time is not None for time in times))
