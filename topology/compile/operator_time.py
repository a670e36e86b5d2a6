"""Computes operator times: the stream time of an operator where several tasks share a
partition.

The stream time of a windowed operator is the largest timestamp that has reached it;
records that are filtered out upstream do not count. A task sees only the records of its
own keys. So the reader, which sees all records, computes which of them reach the
operator. It gives every task a column of *operator times*: the operator's stream time
before each of the task's records. To do so it runs the functions of the filters and
mappers between source and operator a second time, on the thread that fetches for all
tasks, in each process that has a range of the partition. So it runs them only where the
answer can matter. Mappers below the last filter are skipped, unless a failed record is
dropped. Of the records that lie between two records of this process, it only needs the
largest timestamp that arrives: it tries them by descending timestamp, and stops at the
first that does. It cannot know what a store forwards. So for an operator below a store,
it counts every record that reaches the store.

What a node reads and drops is `operators/analysis.py`'s to say; a new kind of node must
be written there, and in `_STATELESS` or the lists beside it.

Invariant: with one range or many, an operator below stateless nodes has the same stream
time at each record. Turned down: the partition's stream time (a record that is filtered
out would close windows), and operator times in the task (siblings would disagree).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import (
    Any,
    NamedTuple,
    TypeAlias,
    cast,
)

from coopstreams.topology.columns import Columns
from coopstreams.topology.graph.join_nodes import stores_of
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Branch,
    Filter,
    FlatMapValues,
    MapValues,
    Merge,
    Node,
    Peek,
    Sink,
    Source,
    Split,
    StreamTableJoin,
    SubTopology,
    TableSource,
    ToStream,
)
from coopstreams.topology.keys import KeyRange, key_hash
from coopstreams.topology.operators.analysis import (
    Analysis,
    Edge,
    Reads,
    reads_step,
)
from coopstreams.topology.serdes import Serde

_NEEDS_VALUE = (Filter, FlatMapValues, MapValues, Branch)
_STATELESS = (Filter, MapValues, FlatMapValues, Peek, Merge, ToStream, Split, Branch)

OperatorTimes: TypeAlias = tuple[tuple[int, int], ...]
"""The operator times at a position of a partition: pairs of an operator's id and its
time, ascending, without times of -1.
"""
Arrivals: TypeAlias = Callable[[int], bool] | None
"""A function from the index of a record to whether it reaches an operator. None means
that all records do. It never raises.
"""
OperatorTimeColumns: TypeAlias = Callable[[Columns], list[Arrivals]]
"""A function from records of a partition to their arrivals at each operator that has an
operator time of the topic.
"""

_Chain: TypeAlias = tuple[Node, ...]


def operator_time_columns(
    subtopology: SubTopology,
    topic: str,
    nodes: Sequence[str],
    *,
    may_drop: bool,
) -> OperatorTimeColumns:
    """Return the function that computes which records of a topic reach each of these
    nodes.

    `may_drop`: whether a failed record may be dropped while the task goes on.
    """
    analysis = Analysis(subtopology)
    source = next(
        node
        for node in subtopology.nodes
        if isinstance(node, Source) and topic in node.topics
    )
    reached = [_reaches(source, analysis, name, may_drop=may_drop) for name in nodes]

    def columns(records: Columns) -> list[Arrivals]:
        return [arrivals(records) for arrivals in reached]

    return columns


class Part(NamedTuple):
    """A part of a task's key range, and the times that an earlier run had reached with
    it.
    """

    key_range: KeyRange
    stream_time: int
    operator_times: OperatorTimes = ()


class Operator(NamedTuple):
    """A node with a stream time of its own.

    Shape: `id` identifies the node in commits, and never changes. It is derived from
    the node's store, because nodes have other numbers in another version of the
    topology. `follows`: no node above drops records on purpose. If a commit has no time
    for such an operator, as commits of earlier versions, its time is the partition's.
    The true time may be earlier, because records that fail or have no key are dropped.
    """

    id: int
    follows: bool

    def time(self, times: OperatorTimes, stream_time: int) -> int:
        """Return the operator's time at a position with these times; -1 if no record
        had reached it.
        """
        return dict(times).get(self.id, stream_time if self.follows else -1)


def operator_of(node: Node, analysis: Analysis) -> Operator:
    """Return the operator that describes a node: its id and whether it follows the
    partition's time.
    """
    stores = stores_of(node)
    name = (
        stores[0].name
        if stores
        else node.topic
        if isinstance(node, Sink)
        else node.name
    )
    cogrouped = [
        other.name
        for other in analysis.nodes
        if isinstance(other, Aggregate) and other.cogrouped and other.store.name == name
    ]
    number = cogrouped.index(node.name) if node.name in cogrouped else 0
    return Operator(store_id(name, number), analysis.keeps_time(node))


def operators_of(subtopology: SubTopology) -> dict[str, list[Operator]]:
    """Return the operators that use each store, by the store's name."""
    analysis = Analysis(subtopology)
    found = dict[str, list[Operator]]()
    for node in subtopology.nodes:
        for store in stores_of(node):
            found.setdefault(store.name, []).append(operator_of(node, analysis))
    return found


def store_id(name: str, number: int = 0) -> int:
    """Return the id of the node that has this store. `number`: the node's index among
    those that are cogrouped into the store.
    """
    return key_hash(f"{name}/{number}".encode() if number else name.encode())


def latest(some: OperatorTimes, others: OperatorTimes) -> OperatorTimes:
    """Return the larger of the two times of each operator."""
    if not others or some == others:
        return some
    times = dict(some)
    for operator, time in others:
        times[operator] = max(time, times.get(operator, time))
    return tuple(sorted(times.items()))


def before_and_after(
    timestamps: Sequence[int],
    operator_time: int,
    arrives: Arrivals,
    taken: Sequence[bool] | None = None,
) -> tuple[list[int], int]:
    """Return an operator time before each of some records, and after all of them.

    `taken`: whether the time before each record is needed; None: all are.
    """
    if arrives is None:
        times = list(accumulate(timestamps, max, initial=operator_time))
        return times[:-1], times[-1]
    times = []
    later = list[int]()
    for i, timestamp in enumerate(timestamps):
        if later and (taken is None or taken[i]):
            operator_time = _latest_arrival(timestamps, operator_time, arrives, later)
            later = []
        times.append(operator_time)
        if timestamp > operator_time:
            later.append(i)
    return times, _latest_arrival(timestamps, operator_time, arrives, later)


def _latest_arrival(
    timestamps: Sequence[int],
    operator_time: int,
    arrives: Callable[[int], bool],
    later: Sequence[int],
) -> int:
    """Return the operator time after the records with the indexes `later`, whose
    timestamps are above the time before them.
    """
    for i in sorted(later, key=timestamps.__getitem__, reverse=True):
        if arrives(i):
            return timestamps[i]
    return operator_time


def _reaches(
    source: Source,
    analysis: Analysis,
    name: str,
    *,
    may_drop: bool,
) -> Callable[[Columns], Arrivals]:
    """Return the function that computes which records reach a node.

    On a path through a store, a record counts if it reaches the first node whose output
    depends on the store.
    """
    ways = list(
        dict.fromkeys(
            _deciding(_known_part(way), may_drop=may_drop)
            for way in _ways(source, analysis.named(name), analysis)
        )
    )
    reading = [(way, _read(way, source, analysis, may_drop=may_drop)) for way in ways]
    check = source.key.check_key if may_drop and not source.internal else None
    decides = check is not None or any(_decides(way, read) for way, read in reading)
    drops_nulls_of = _null_test(ways)

    def arrivals(records: Columns) -> Arrivals:
        if not decides and not drops_nulls_of(records):
            return None
        keys = records.keys
        values = records.values
        return lambda i: any(
            _arrives(source, way, keys[i], values[i], read, check)
            for way, read in reading
        )

    return arrivals


def _decides(way: _Chain, read: Reads) -> bool:
    """Return whether a path drops records for other reasons than null keys or values at
    its end.
    """
    return (
        read.key
        or read.value
        or any(isinstance(node, _NEEDS_VALUE) for node in way[:-1])
    )


def _null_test(ways: list[_Chain]) -> Callable[[Columns], bool]:
    """Return the test whether every path drops some of the records for a null key or
    value.
    """
    keys = all(_drops_null_keys(way[-1]) for way in ways)
    values = all(_drops_null_values(way[-1]) for way in ways)

    def drops(records: Columns) -> bool:
        return (keys and None in records.keys) or (values and None in records.values)

    return drops


def _ways(
    source: Source,
    node: Node,
    analysis: Analysis,
) -> list[_Chain]:
    """Return the paths from the source to a node, each as the list of nodes below the
    source.
    """
    ways: list[_Chain] = []
    for side, parent in enumerate(analysis.named(name) for name in node.parents):
        if not Edge(node, side).carries:
            continue
        ways += (
            [(node,)]
            if parent is source
            else [(*way, node) for way in _ways(source, parent, analysis)]
        )
    return ways


def _known_part(way: _Chain) -> _Chain:
    """Return the beginning of a path of nodes, up to the first node whose output
    depends on more than the record: on a store, or on its task.
    """
    for at, node in enumerate(way):
        if not isinstance(node, _STATELESS) or getattr(node, "table", False):
            return way[: at + 1]
    return way


def _deciding(way: _Chain, *, may_drop: bool) -> _Chain:
    """Return the part of a path of nodes that decides which records reach its end:
    without the last steps if they pass every record on.

    A mapper drops a record only if it fails and a handler goes on without the record.
    If the handler says `fail`, the record's task stops there and processes the record
    once more, so the record counts.
    """
    if may_drop or _drops_null_values(way[-1]):
        return way
    steps = list(way[:-1])
    while steps and not isinstance(steps[-1], Filter | FlatMapValues | Split | Branch):
        steps.pop()
    return (*steps, way[-1])


def _read(
    way: _Chain,
    source: Source,
    analysis: Analysis,
    *,
    may_drop: bool,
) -> Reads:
    """Return the parts of a source's record that are deserialised before it has reached
    the last node of a path.

    With `may_drop`, a part that cannot be deserialised drops the record. A value may
    also deserialise to null, as JSON's `null` does, and some nodes drop a null value
    that they read.
    """
    read = Reads(key=False, value=False)
    above = cast(Node, source)
    value: Serde[Any] | None = source.value
    for node in way:
        below = {
            edge.child.name: analysis.reads(edge, source.key, value)
            for edge in analysis.edges(above)
        }
        if node is not way[-1]:
            read |= _of_source(reads_step(node), value)
        elif may_drop or _drops_null_values(node):
            read |= _of_source(below[node.name], value)
        if may_drop and not isinstance(
            above,
            Split,
        ):  # what several children read is deserialised above them
            several = Reads(
                sum(each.key for each in below.values()) > 1,
                sum(each.value for each in below.values()) > 1,
            )
            read |= _of_source(several, value)
        above = node
        if isinstance(node, MapValues | FlatMapValues):
            value = None
    return read


def _of_source(read: Reads, value: Serde[Any] | None) -> Reads:
    return Reads(read.key, read.value and value is not None)


def _drops_null_keys(node: Node) -> bool:
    return isinstance(node, Aggregate | TableSource) or (
        isinstance(node, StreamTableJoin) and not node.left
    )


def _drops_null_values(node: Node) -> bool:
    return isinstance(node, StreamTableJoin) or (
        isinstance(node, Aggregate) and node.drops_null_values
    )


def _arrives(
    source: Source,
    way: _Chain,
    key: bytes | None,
    value: bytes | None,
    read: Reads,
    check: Callable[[bytes | None], None] | None,
) -> bool:
    """Return whether a record reaches the operator at the end of `way`. `read`: which
    of key and value the functions on the way need; `check`: raises for a key that the
    task would refuse.
    """
    if key is None and _drops_null_keys(way[-1]):
        return False
    try:
        if check is not None:
            check(key)
        values = _survivors(
            way[:-1],
            source.key.decode(key) if read.key and key is not None else key,
            source.value.decode(value) if read.value and value is not None else value,
        )
    except Exception:  # noqa: BLE001 the task that owns the record reports it; here it does not arrive
        return False
    return (
        any(value is not None for value in values)
        if _drops_null_values(way[-1])
        else bool(values)
    )


def _survivors(
    way: _Chain,
    key: Any,
    value: Any,
) -> list[Any]:
    """Return the values that these nodes forward for a record. A key or value that no
    node reads is passed as bytes.
    """
    values = [value]
    predicates: tuple[Any, ...] = ()
    for node in way:
        if isinstance(node, Filter):
            values = [
                value
                for value in values
                if bool(node.predicate(key, value)) is not node.negate
            ]
        elif isinstance(node, MapValues | FlatMapValues):
            values = _mapped(node, key, values)
        elif isinstance(node, Split):
            predicates = node.predicates
        elif isinstance(node, Branch):
            values = [
                value
                for value in values
                if _branch(predicates, key, value) == node.number
            ]
    return values


def _mapped(
    node: MapValues | FlatMapValues,
    key: Any,
    values: list[Any],
) -> list[Any]:
    """Return the values that a mapper makes of these values."""
    mapped: list[Any] = [
        node.mapper(key, value) if node.with_key else node.mapper(value)
        for value in values
    ]
    return mapped if isinstance(node, MapValues) else list(chain.from_iterable(mapped))


def _branch(
    predicates: tuple[Any, ...],
    key: Any,
    value: Any,
) -> int:
    """Return the number of the branch that takes the record: the index (from 0) of the
    first predicate that is true; if none is, `len(predicates)`, which is that of the
    default branch.
    """
    return next(
        (
            number
            for number, predicate in enumerate(predicates)
            if predicate(key, value)
        ),
        len(predicates),
    )
