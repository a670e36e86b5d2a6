"""`Topology`: the structure of a program, with the methods that users call."""

from __future__ import annotations

from dataclasses import dataclass

from coopstreams.topology.graph.description import describe
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.graph.optimization import optimized


@dataclass(frozen=True, slots=True)
class Topology(Structure):
    """A program as a value. Made by `StreamsBuilder.build()`."""

    def optimized(self, optimization: str) -> Topology:
        """Return the topology as it runs with this `topology.optimization`: `none`,
        `all`, or comma-separated names.
        """
        return optimized(self, optimization)

    def describe(self, format: str = "text") -> str:  # noqa: A002 the word users type
        """Return the description of the topology as `text`, `mermaid`, `dot`, `svg` or
        `json`.
        """
        return describe(self, format)
