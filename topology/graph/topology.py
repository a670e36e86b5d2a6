"""`Topology`: the structure of a program, and what users ask of it."""

from __future__ import annotations

from dataclasses import dataclass

from coopstreams.topology.graph.describe import describe
from coopstreams.topology.graph.nodes import Structure
from coopstreams.topology.graph.optimizing import optimized


@dataclass(frozen=True, slots=True)
class Topology(Structure):
    """A program: what to compute, as a value. Made by `StreamsBuilder.build()`."""

    def optimized(self, optimization: str) -> Topology:
        """Return the topology as the setting `topology.optimization` makes it: `none`, `all`, or names with commas
        between.
        """
        return optimized(self, optimization)

    def describe(self, format: str = "text") -> str:  # noqa: A002 the word users type
        """Return the topology drawn as `text`, `mermaid`, `dot` or `json`."""
        return describe(self, format)
