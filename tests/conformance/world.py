"""A case being translated to the public API: the builder, the object of each id, and
the recorded side effects.

A translator takes one step of a case (`{"op": "filter", "id": "f", "in": "s", "fn":
...}`) and calls the method of the same meaning. `ops_*.py` have one function an op; an
op that is in none of them is not supported, which fails the case and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from coopstreams import KStream, KTable, StreamsBuilder, serdes
from coopstreams.testing import OutputRecord, TopologyTestDriver
from coopstreams.topology.serdes import Serde

KEY: Serde[Any] = serdes.text
VALUE: Serde[Any] = serdes.json
SIDE_EFFECT_TIMESTAMP = -1

Op: TypeAlias = dict[str, Any]


class NotSupportedError(Exception):
    """The public API has no counterpart of something in a case."""


@dataclass(slots=True)
class World:
    """One case while it is translated and run.

    Shape: `nodes` are the objects of the ids. `windowed` are the ids whose keys are
    windows. `untimed` are the stores whose rows have no timestamp, among them
    `sessions`. `side_effects`: the records of `peek` and `foreach`, each with the
    number of records forwarded before it.
    """

    builder: StreamsBuilder
    nodes: dict[str, Any] = field(default_factory=dict)
    windowed: set[str] = field(default_factory=set)
    untimed: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    side_effects: list[tuple[int, OutputRecord[Any, Any]]] = field(default_factory=list)
    driver: TopologyTestDriver | None = None

    def stream(self, id_: str) -> KStream[Any, Any]:
        """Return a stream, or the updates of a table."""
        node = self.nodes[id_]
        return node.to_stream() if isinstance(node, KTable) else node

    def keeps_window(self, op: Op) -> None:
        """Note that the keys are windows if those of the first input are."""
        if self.first(op) in self.windowed:
            self.windowed.add(op["id"])

    def first(self, op: Op) -> str:
        """Return the id of the first input."""
        inputs = op["in"]
        return str(inputs if isinstance(inputs, str) else inputs[0])

    def seen(self, label: str) -> Callable[[Any, Any], None]:
        """Return an action that records its calls under a topic name of its own."""

        def action(key: Any, value: Any) -> None:
            assert self.driver is not None
            self.side_effects.append(
                (
                    self.driver.forwarded,
                    OutputRecord(label, key, value, SIDE_EFFECT_TIMESTAMP),
                )
            )

        return action


Translator: TypeAlias = Callable[[World, Op], Any]
"""Returns the node of the step's id, None if it has none or has set it itself."""
Translators: TypeAlias = Mapping[str, Translator]


def require(op: Op, *known: str) -> None:
    """Check that the step has only these fields.

    Raises:
        NotSupportedError: it has others, and ignoring one would change its meaning.
    """
    for name in op:
        if name not in ("op", "id", "in", *known):
            raise NotSupportedError(f"{op['op']} with {name}")
