"""The compiled programs of test drivers, shared by all drivers of a topology."""

from __future__ import annotations

from functools import lru_cache

from coopstreams.common.config import Config
from coopstreams.log.kafka.native import native_tables
from coopstreams.state.task_state import MakeTable
from coopstreams.tasks.failure_handlers import may_drop
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.compile.program import Program
from coopstreams.topology.graph.known_folds import folds
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.operators.json_parts import MakeParts
from coopstreams.topology.processors import ProcessorWrapper

PROGRAMS = 64
"""How many compiled programs are cached: tests make a driver for each case, often of
the same topology.
"""


class Identity:
    """The cache key of a compiled program: a sub-topology with the settings that its
    code depends on.

    Sub-topologies are compared by identity, because their functions need not be
    hashable.
    """

    def __init__(
        self,
        topology: Topology,
        part: SubTopology,
        config: Config,
    ) -> None:
        self.topology = topology
        self.part = part
        self.wrapper: ProcessorWrapper | None = config["processor.wrapper"]
        self.may_drop = may_drop(config, ["processing"])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Identity)
            and self.part is other.part
            and self.wrapper is other.wrapper
            and self.may_drop == other.may_drop
            and self.topology.application_id == other.topology.application_id
        )

    def __hash__(self) -> int:
        return id(self.part)


@lru_cache(PROGRAMS)
def compiled(identity: Identity, parts: MakeParts | None) -> Program:
    """Return the program of a sub-topology, compiled or from the cache. `parts`: of the
    native data plane; None: pure Python.
    """
    return compile_subtopology(
        identity.topology,
        identity.part,
        identity.wrapper,
        parts,
        may_drop=identity.may_drop,
    )


def tables(
    part: SubTopology,
    config: Config,
    *,
    caching: bool,
) -> dict[str, MakeTable]:
    """Return the factories of the stores whose rows are in native memory, by store.

    Rows that change by batches forward a record's updates after the record's other
    results, unlike Kafka Streams. So without `caching` they are used only where there
    are no other results. Rows of objects stay live entries, which `changed_rows`
    watches.
    """
    parents = {parent for node in part.nodes for parent in node.parents}
    ends = sum(node.name not in parents for node in part.nodes)
    in_order = not caching and ends > 1
    made = native_tables(part, config, caching=caching, in_order=in_order)
    return {
        name: made[name]
        for name, fold in folds(part, caching=caching, in_order=in_order).items()
        if name in made and fold.number != "other"
    }
