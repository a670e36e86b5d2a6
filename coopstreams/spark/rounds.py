"""The order in which a backfill runs sub-topologies. Those that wait for each other
(foreign-key joins) run in rounds.

    sub-topology 0, round 1    orders                   asks: runs only the nodes before its questions
    sub-topology 1             people, questions        answers
    sub-topology 0, round 2    orders, answers          everything except the asking nodes, from the beginning

The last round reads its sources again from the beginning, merged with the answers: each
answer meets the row that asked, as if it had come at once. For that, records in the
topics between the rounds are *placed*: ordered by the time at which their task made
them, not by their timestamp, which may be older.

Invariant: a round completes at least one forwarded topic, after all rounds that lead to
it. So there are at most as many rounds as topics between sub-topologies.
Invariant: a topic is read only after all of it has been written.
Turned down: state that goes from round to round (answers would meet only the last row
of each key, and records that read the join would find no rows), and rounds until
nothing is forwarded any more (a plan could not know the number of tasks, and a run
could not be resumed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.join_nodes import ForeignKeyAsk, stores_of
from coopstreams.topology.graph.nodes import (
    Node,
    Processing,
    Sink,
    Source,
    SubTopology,
)
from coopstreams.topology.graph.topology import Topology


@dataclass(frozen=True, slots=True)
class Round:
    """A sub-topology, or the part of it that a round needs.

    `forwards` are the internal topics that it writes. `placed` are the topics, among
    those it writes or reads, whose records are placed.
    """

    part: SubTopology
    forwards: tuple[str, ...]
    round: int = 1
    rounds: int = 1
    placed: frozenset[str] = frozenset()

    @property
    def is_last(self) -> bool:
        """Whether this is the last round of the sub-topology. Earlier rounds only
        forward records.
        """
        return self.round == self.rounds


def rounds_of(topology: Topology) -> list[Round]:
    """Return the rounds in the order in which they run, each after the rounds whose
    records it reads.

    Raises:
        TopologyError: a topic feeds itself, so the backfill would have no end.
    """
    leads = {
        topic: _leading(part, (topic,))
        for part in topology.subtopologies
        for topic in forwarded(part)
    }
    taken = _in_order(topology, leads)
    counts = Counter(round_.part.id for round_ in taken)
    placed = _placed(topology, leads, taken, counts)
    result = list[Round]()
    seen = Counter[int]()
    for round_ in taken:
        part = round_.part
        seen[part.id] += 1
        result.append(
            replace(
                round_,
                round=seen[part.id],
                rounds=counts[part.id],
                placed=placed.intersection((*part.topics, *round_.forwards)),
            )
        )
    return result


def _in_order(topology: Topology, leads: Mapping[str, frozenset[str]]) -> list[Round]:
    """Return the rounds in the order in which they run, without their numbers. `leads`:
    for each internal topic, the topics from which its records come.
    """
    waiting = list(topology.subtopologies)
    written = set[str]()
    taken = list[Round]()
    while waiting:
        open_ = leads.keys() - written
        ready = [part for part in waiting if open_.isdisjoint(part.topics)]
        chosen = [_last(part, written) for part in ready]
        if not chosen:
            chosen = [_asking(waiting, leads, open_)]
        written.update(topic for round_ in chosen for topic in round_.forwards)
        waiting = [part for part in waiting if part not in ready]
        taken += chosen
    return taken


def round_of(
    topology: Topology,
    subtopology: int,
    number: int,
) -> Round:
    """Return a round of a sub-topology."""
    return next(
        round_
        for round_ in rounds_of(topology)
        if (round_.part.id, round_.round) == (subtopology, number)
    )


def forwarded(part: SubTopology) -> tuple[str, ...]:
    """Return the internal topics that a sub-topology writes, without changelogs."""
    return tuple(
        dict.fromkeys(
            node.topic
            for node in part.nodes
            if isinstance(node, Sink) and node.internal
        )
    )


def _asking(
    waiting: Sequence[SubTopology],
    leads: Mapping[str, frozenset[str]],
    open_: Collection[str],
) -> Round:
    """Return a round that lets other sub-topologies run, preferably of a sub-topology
    that waits for its own results.

    `leads`: as for `_in_order`. `open_`: the topics that are not written yet.

    Raises:
        TopologyError: a topic feeds itself.
    """
    able = [
        (part, topic)
        for part in waiting
        for topic in forwarded(part)
        if topic in open_ and leads[topic].isdisjoint(open_)
    ]
    back = [
        (part, topic)
        for part, topic in able
        if not _beyond(topic, leads).isdisjoint(part.topics)
    ]
    if not able:
        parts = " and ".join(str(part.id) for part in waiting)
        raise TopologyError(
            f"a backfill runs sub-topologies one after the other, but {parts} wait for records that come of their own: "
            "start the application live"
        )
    chosen = back or able
    part = chosen[0][0]
    topics = tuple(topic for other, topic in chosen if other is part)
    return Round(_cut(part, _above(part, _sinks(part, topics))), topics)


def _last(part: SubTopology, written: set[str]) -> Round:
    """Return the last round of a sub-topology: without the nodes that only write topics
    of earlier rounds.
    """
    done = [topic for topic in forwarded(part) if topic in written]
    gone = {node.name for node in _sinks(part, done)}
    gone |= {
        node.name
        for node in part.nodes
        if isinstance(node, ForeignKeyAsk)
        and any(node.name in other.parents for other in _sinks(part, done))
    }
    return Round(
        _cut(part, {node.name for node in part.nodes} - gone),
        tuple(topic for topic in forwarded(part) if topic not in written),
    )


def _placed(
    topology: Topology,
    leads: Mapping[str, frozenset[str]],
    taken: Iterable[Round],
    counts: Mapping[int, int],
) -> frozenset[str]:
    """Return the topics that lie between a round and a later round of the same
    sub-topology, among those that it reads or that feed its topics.

    `leads`: for each internal topic, the topics from which its records come
    (`_leading`). `taken`: all rounds, in order. `counts`: the number of rounds of each sub-topology.
    """
    found = set[str]()
    for round_ in taken:
        if counts[round_.part.id] > 1:
            own = topology.subtopologies[round_.part.id].topics
            between = {
                each
                for topic in round_.forwards
                for each in (topic, *_beyond(topic, leads))
            }
            found |= {
                topic
                for topic in between
                if topic in own or not _beyond(topic, leads).isdisjoint(own)
            }
    return frozenset(found)


def _beyond(topic: str, leads: Mapping[str, frozenset[str]]) -> set[str]:
    """Return the internal topics whose records depend on the records of `topic`."""
    found = set[str]()
    new = {topic}
    while new:
        new = {
            other for other, sources in leads.items() if not new.isdisjoint(sources)
        } - found
        found |= new
    return found


def _leading(part: SubTopology, topics: Iterable[str]) -> frozenset[str]:
    """Return the source topics on which the records that a sub-topology writes to
    `topics` depend.
    """
    return frozenset(_cut(part, _above(part, _sinks(part, topics))).topics)


def _sinks(part: SubTopology, topics: Iterable[str]) -> list[Node]:
    """Return the nodes of a part that write these topics."""
    wanted = set(topics)
    return [
        node for node in part.nodes if isinstance(node, Sink) and node.topic in wanted
    ]


def _above(part: SubTopology, nodes: Iterable[Node]) -> set[str]:
    """Return the names of nodes and of all they depend on: their parents, and the nodes
    that share stores with them.
    """
    by_name = {node.name: node for node in part.nodes}
    found = set[str]()
    new = {node.name for node in nodes}
    while new:
        found |= new
        stores = {store for name in new for store in _used(by_name[name])}
        beside = {
            node.name for node in part.nodes if not stores.isdisjoint(_used(node))
        }
        new = (
            {parent for name in new for parent in by_name[name].parents} | beside
        ) - found
    return found


def _used(node: Node) -> set[str]:
    """Return the stores that a node owns, or that a processor uses."""
    return {
        *(store.name for store in stores_of(node)),
        *(node.store_names if isinstance(node, Processing) else ()),
    }


def _cut(part: SubTopology, names: set[str]) -> SubTopology:
    """Return the part of a sub-topology with these nodes, and with their topics and
    stores only.
    """
    nodes = tuple(node for node in part.nodes if node.name in names)
    topics = {
        topic for node in nodes if isinstance(node, Source) for topic in node.topics
    }
    stores = {store for node in nodes for store in _used(node)}
    return SubTopology(
        part.id,
        nodes,
        tuple(topic for topic in part.topics if topic in topics),
        tuple(each for each in part.stores if each.name in stores),
    )
