"""In which order the sub-topologies of a backfill run, and which of them in several rounds: those that wait for each
other, as foreign-key joins do.

    sub-topology 0, round 1    orders                   asks: runs what leads to its questions, and nothing else counts
    sub-topology 1             people, questions        answers
    sub-topology 0, round 2    orders, answers          all of it but what has asked, from the beginning

The last round takes the questions' own records once more, with the answers between them: each answer meets the row that
asked, as if it had come at once. For that, what goes from one to the other is *placed*: by the time at which its task
made it, not by its timestamp, which may be older.

Invariant: a round forwards at least one topic for good, after all that leads to it; so there are at most as many rounds
as topics between them.
Invariant: nothing is read before all of it has been written.
Turned down: state that goes from round to round (the answers would meet the last row of each key only, and records that
look into the join nothing at all), and rounds until nothing comes any more (no plan could say how many tasks there are,
and no run be resumed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.join_nodes import ForeignKeyAsk, stores_of
from coopstreams.topology.graph.nodes import Node, Processing, Sink, Source, SubTopology
from coopstreams.topology.graph.topology import Topology


@dataclass(frozen=True, slots=True)
class Round:
    """What runs at a time: a sub-topology, or as much of it as a round needs.

    `forwards` are the internal topics that it writes; `placed` are those of them, and of the topics it reads, whose
    records are placed.
    """

    part: SubTopology
    forwards: tuple[str, ...]
    round: int = 1
    rounds: int = 1
    placed: frozenset[str] = frozenset()

    @property
    def is_last(self) -> bool:
        """Whether it is the one that counts: earlier rounds do nothing but forward."""
        return self.round == self.rounds


def rounds_of(topology: Topology) -> list[Round]:
    """Return what runs, one after the other, each after those whose records it reads.

    Raises:
        TopologyError: a topic is written because of its own records, so that it would have no end.
    """
    leads = {topic: _leading(part, (topic,)) for part in topology.subtopologies for topic in forwarded(part)}
    waiting, written, taken = list(topology.subtopologies), set[str](), list[Round]()
    while waiting:
        open_ = leads.keys() - written
        ready = [part for part in waiting if open_.isdisjoint(part.topics)]
        chosen = [_last(part, written) for part in ready] or [_asking(waiting, leads, written)]
        written.update(topic for round_ in chosen for topic in round_.forwards)
        waiting = [part for part in waiting if part not in ready]
        taken += chosen
    counts = {part.id: sum(round_.part.id == part.id for round_ in taken) for part in topology.subtopologies}
    placed = _placed(topology, leads, taken, counts)
    result, seen = list[Round](), dict.fromkeys(counts, 0)
    for round_ in taken:
        seen[round_.part.id] += 1
        touched = placed.intersection((*round_.part.topics, *round_.forwards))
        result.append(replace(round_, round=seen[round_.part.id], rounds=counts[round_.part.id], placed=touched))
    return result


def round_of(topology: Topology, subtopology: int, number: int) -> Round:
    """Return a round of a sub-topology."""
    return next(round_ for round_ in rounds_of(topology) if (round_.part.id, round_.round) == (subtopology, number))


def forwarded(part: SubTopology) -> tuple[str, ...]:
    """Return the internal topics that a sub-topology writes, changelogs left out."""
    return tuple(dict.fromkeys(node.topic for node in part.nodes if isinstance(node, Sink) and node.internal))


def _asking(waiting: Sequence[SubTopology], leads: Mapping[str, frozenset[str]], written: set[str]) -> Round:
    """Return the round that lets others go on: of a sub-topology that waits for what comes of it, if there is one."""
    able = [
        (part, topic)
        for part in waiting
        for topic in forwarded(part)
        if topic not in written and not any(source in leads and source not in written for source in leads[topic])
    ]
    back = [(part, topic) for part, topic in able if not _beyond(topic, leads).isdisjoint(part.topics)]
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
    """Return a sub-topology without what has forwarded all that it will."""
    done = [topic for topic in forwarded(part) if topic in written]
    gone = {node.name for node in _sinks(part, done)}
    gone |= {
        node.name
        for node in part.nodes
        if isinstance(node, ForeignKeyAsk) and any(node.name in other.parents for other in _sinks(part, done))
    }
    return Round(
        _cut(part, {node.name for node in part.nodes} - gone),
        tuple(topic for topic in forwarded(part) if topic not in written),
    )


def _placed(
    topology: Topology, leads: Mapping[str, frozenset[str]], taken: Iterable[Round], counts: Mapping[int, int]
) -> frozenset[str]:
    """Return the topics between a round and a later one of the same sub-topology."""
    found = set[str]()
    for round_ in taken:
        if counts[round_.part.id] > 1:
            own = topology.subtopologies[round_.part.id].topics
            between = {each for topic in round_.forwards for each in (topic, *_beyond(topic, leads))}
            found |= {topic for topic in between if topic in own or not _beyond(topic, leads).isdisjoint(own)}
    return frozenset(found)


def _beyond(topic: str, leads: Mapping[str, frozenset[str]]) -> set[str]:
    """Return the internal topics that are written because of the records of one."""
    found, new = set[str](), {topic}
    while new:
        new = {other for other, sources in leads.items() if not new.isdisjoint(sources)} - found
        found |= new
    return found


def _leading(part: SubTopology, topics: Iterable[str]) -> frozenset[str]:
    """Return the source topics on which it depends what a sub-topology writes to some topics."""
    return frozenset(_cut(part, _above(part, _sinks(part, topics))).topics)


def _sinks(part: SubTopology, topics: Iterable[str]) -> list[Node]:
    wanted = set(topics)
    return [node for node in part.nodes if isinstance(node, Sink) and node.topic in wanted]


def _above(part: SubTopology, nodes: Iterable[Node]) -> set[str]:
    """Return the names of nodes and of all on which it depends what they do: what they hear, look into, and share a
    store with.
    """
    by_name = {node.name: node for node in part.nodes}
    found, new = set[str](), {node.name for node in nodes}
    while new:
        found |= new
        stores = {store for name in new for store in _used(by_name[name])}
        beside = {node.name for node in part.nodes if not stores.isdisjoint(_used(node))}
        new = ({parent for name in new for parent in by_name[name].parents} | beside) - found
    return found


def _used(node: Node) -> set[str]:
    """Return the stores that a node keeps, or that a processor uses."""
    return {*(store.name for store in stores_of(node)), *(node.store_names if isinstance(node, Processing) else ())}


def _cut(part: SubTopology, names: set[str]) -> SubTopology:
    """Return these nodes of a sub-topology, with their topics and stores."""
    nodes = tuple(node for node in part.nodes if node.name in names)
    topics = {topic for node in nodes if isinstance(node, Source) for topic in node.topics}
    stores = {store for node in nodes for store in _used(node)}
    return SubTopology(
        part.id,
        nodes,
        tuple(topic for topic in part.topics if topic in topics),
        tuple(each for each in part.stores if each.name in stores),
    )
