"""Repartition topics that carry time: their records have births, and tasks write time
marks to them.

Behind a repartition topic, records of several partitions and key ranges meet, which
their tasks read at different speeds. So the time of the newest record would depend on
which task reads faster. On a timed topic each record has a *birth*, the stream time
that its own source partition had when it was read, and each writer tells by *marks* how
far it has come. A record is late by its birth; windows close by the *clock*, the least
of all marks. Both are functions of the source topics alone.

A topic is timed if both its readers and its writers allow it. Its writers take record
by record from topics of the user, or from timed topics. Its readers depend on time, or
write to another timed topic. They take records in one of two orders:

* As they come: tumbling and hopping windows of one topic, with or without `suppress`
  and `emit_on_close`. Their rows are the same in whatever order records come. Tables
  of the user's topics may be looked up on the way: these topics move no time.
* In the order of births (`reads_in_birth_order`): everything else that depends on time,
  such as sessions, sliding windows, stream joins and rows with a time to live. What a
  record meets there depends on what came before it. So a task holds each record until
  the clock has reached its birth (`coopstreams.tasks.birth_order`). Such a reader may
  also read streams of the user's topics: there a record is born at the stream time of
  its partition, and the clock is how far the partition was read.

All other readers keep the time of the newest record, and the partitions in front of
them are not cut (`subtopologies.before_windows`). These are processors, functions that
wait, `suppress` until a time limit, tables of the user's topics beside what needs the
order of births, and streams of topics that the application itself writes.

What follows: `log/clocks.py` (marks), `tasks/birth_order.py`, `commit.record` (`Ahead`),
`tasks/promised_times.py` (silence), `spark/reached_times.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.join_nodes import (
    BufferedJoin,
    ForeignKeyAnswer,
    ForeignKeyAsk,
    ForeignKeyResult,
    StreamGlobalJoin,
    StreamStreamJoin,
    stores_of,
)
from coopstreams.topology.graph.nodes import (
    RECORD_BY_RECORD,
    Aggregate,
    ApplyTo,
    AsyncMap,
    DynamicSink,
    Late,
    Node,
    Processing,
    Sink,
    Source,
    StreamTableJoin,
    SubTopology,
    TableSource,
    ToStream,
)
from coopstreams.topology.windows import TimeWindows

_WRITERS = (*RECORD_BY_RECORD, StreamTableJoin, StreamGlobalJoin)
_READERS = (
    *_WRITERS,
    TableSource,
    Aggregate,
    Suppress,
    ToStream,
    Late,
    Sink,
    DynamicSink,
    ApplyTo,
)
_NOT_IN_BIRTH_ORDER = (
    Processing,
    AsyncMap,
    ApplyTo,
    ForeignKeyAsk,
    ForeignKeyAnswer,
    ForeignKeyResult,
    TableSource,
)
"""Nodes that need records in the order of their offsets (calls, external sinks, tables
that are restored from their topic), or the records at which time advances. These are
processors, and `suppress` until a time limit: the record that reaches the limit counts.
"""


def timed_topics(parts: Iterable[SubTopology]) -> frozenset[str]:
    """Return the timed topics among the repartition topics of these sub-topologies."""
    parts = list(parts)
    timed = {
        topic
        for part in parts
        if _may_follow_a_clock(part) or _may_read_in_birth_order(part)
        for topic in _internal_topics(part)
    }
    while True:
        # What one topic is depends on those above and below it: leave out those of
        # which one end is not timed, until there are none.
        kept = {topic for topic in timed if _is_timed(topic, timed, parts)}
        if kept == timed:
            return frozenset(timed)
        timed = kept


def reads_in_birth_order(part: SubTopology, timed: frozenset[str]) -> bool:
    """Return whether the tasks of a sub-topology take their records in the order of
    births. `timed`: the timed topics.
    """
    return not timed.isdisjoint(part.topics) and not _may_follow_a_clock(part)


def writers_of(
    timed: frozenset[str],
    parts: Iterable[SubTopology],
    tasks: Iterable[int],
) -> dict[str, int]:
    """Return, for each timed topic, the number of source partitions of its writers.

    `tasks`: the number of partitions of each sub-topology.
    """
    return {
        topic: count
        for part, count in zip(parts, tasks, strict=True)
        for topic in timed & _written(part)
    }


def _is_timed(
    topic: str,
    timed: set[str],
    parts: Sequence[SubTopology],
) -> bool:
    """Return whether a topic's reader needs it timed, and all that read and write it
    allow it, if the topics in `timed` are timed.
    """
    reader = next(part for part in parts if topic in part.topics)
    writers = [part for part in parts if topic in _written(part)]
    needed = _depends_on_time(reader) or not timed.isdisjoint(_written(reader))
    return (
        needed
        and timed.issuperset(_internal_topics(reader))
        and (_may_follow_a_clock(reader) or not _reads_what_is_written(reader, parts))
        and all(_may_write(part, topic, timed) for part in writers)
    )


def _may_follow_a_clock(part: SubTopology) -> bool:
    """Whether the nodes of a sub-topology can take the clock of its one repartition
    topic as their time.
    """
    internal = _internal_topics(part)
    return (
        len(internal) == 1
        and _follows_no_silence(part)
        and all(
            isinstance(node, _READERS) and _has_lawful_rows(node, part)
            for node in part.nodes
        )
        and not any(
            _has_time(node) and _carried(node, part) - internal for node in part.nodes
        )
    )


def _may_read_in_birth_order(part: SubTopology) -> bool:
    """Whether the nodes of a sub-topology can take its records in the order of births."""
    sources = [node for node in part.nodes if isinstance(node, Source)]
    return (
        any(source.internal for source in sources)
        and not any(source.unordered for source in sources)
        and _follows_no_silence(part)
        and not any(
            isinstance(node, _NOT_IN_BIRTH_ORDER)
            or (isinstance(node, Suppress) and not node.until_close)
            for node in part.nodes
        )
    )


def _reads_what_is_written(part: SubTopology, parts: Iterable[SubTopology]) -> bool:
    """Whether a sub-topology reads a topic of the user that the application writes: its
    records have the order in which they arrive.
    """
    own = {*part.topics} - _internal_topics(part)
    return any(
        isinstance(node, Sink) and node.topic in own
        for each in parts
        for node in each.nodes
    )


def _internal_topics(part: SubTopology) -> set[str]:
    """Return the repartition topics that a sub-topology reads."""
    return {
        topic
        for node in part.nodes
        if isinstance(node, Source) and node.internal
        for topic in node.topics
    }


def _follows_no_silence(part: SubTopology) -> bool:
    """Whether no source of a sub-topology has its own silence (`idle_advance`)."""
    sources = [node for node in part.nodes if isinstance(node, Source)]
    return all(source.idle_ms is None for source in sources)


def _has_time(node: Node) -> bool:
    """Whether a node has rows that close by time, or passes births on."""
    if isinstance(node, Aggregate):
        return node.windows is not None
    return isinstance(node, Suppress) or (isinstance(node, Sink) and node.internal)


def _carried(node: Node, part: SubTopology) -> set[str]:
    """Return the source topics whose records reach a node."""
    sources = [each for each in _above(node, part) if isinstance(each, Source)]
    return {topic for source in sources for topic in source.topics}


def _has_lawful_rows(node: Node, part: SubTopology) -> bool:
    """Whether the rows of a node are the same in whatever order records of different
    births come.
    """
    if any(store.ttl_ms is not None for store in stores_of(node)):
        return False
    if isinstance(node, Suppress):
        return node.until_close
    if not isinstance(node, Aggregate) or node.windows is None:
        return True
    return (
        isinstance(node.windows, TimeWindows)
        and not node.cogrouped
        and all(_looks_up_or_passes(each) for each in _above(node, part))
    )


def _may_write(
    part: SubTopology,
    topic: str,
    timed: set[str],
) -> bool:
    """Whether a sub-topology knows the births of the records that it writes to a topic."""
    sources = [node for node in part.nodes if isinstance(node, Source)]
    if any(source.unordered for source in sources):
        return False
    begins = not any(source.internal for source in sources)
    sinks = [
        node for node in part.nodes if isinstance(node, Sink) and node.topic == topic
    ]
    return all(
        (begins or timed.issuperset(_carried(sink, part)))
        and all(_looks_up_or_passes(node) for node in _above(sink, part))
        for sink in sinks
    )


def _looks_up_or_passes(node: Node) -> bool:
    """Whether a node takes record by record, and may look up a table."""
    return isinstance(node, _WRITERS) and not isinstance(node, BufferedJoin)


def _depends_on_time(part: SubTopology) -> bool:
    """Whether rows of a sub-topology close, expire or match by time."""
    return any(
        isinstance(node, StreamStreamJoin | BufferedJoin)
        or getattr(node, "windows", None) is not None
        or any(store.ttl_ms or store.history_ms for store in stores_of(node))
        for node in part.nodes
    )


def _written(part: SubTopology) -> set[str]:
    """Return the repartition topics that a sub-topology writes."""
    return {
        node.topic for node in part.nodes if isinstance(node, Sink) and node.internal
    }


def _above(node: Node, part: SubTopology) -> list[Node]:
    """Return the nodes from which records come to a node."""
    by_name = {each.name: each for each in part.nodes}
    found: dict[str, Node] = {}
    looking = [node]
    for below in looking:  # the list grows while it is read
        # A join looks its table up: no record comes from there.
        carrying = below.parents[: 1 if isinstance(below, StreamTableJoin) else None]
        new = [by_name[name] for name in carrying if name not in found]
        found |= {each.name: each for each in new}
        looking += new
    return list(found.values())
