"""The order of the calls that read state, those of `process_async`: one at a time for
each key.

    add       a record needs such calls
    ended     one of them has ended
    passed    all calls of a record have ended, and their changes are in the stores

Each returns the call to begin next, if there is one. Its rows are read when it begins.

Invariant: a call finds in its rows what every earlier record of its key has left there,
and of its own record what the earlier calls have recorded. Only these calls write the
rows, so they do not change until the call ends. Turned down: to begin the next call of
a key when the one before has ended (its record may still fail, and the next call would
have read changes that are never made), and to read rows on the calls' thread (stores
belong to the task's).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coopstreams.tasks.waiting_records import NodeCall
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.call_order import Wanted
from coopstreams.topology.graph.nodes import AsyncProcessing, SubTopology
from coopstreams.topology.processors import (
    Put,
    RecordMetadata,
    Row,
    Visit,
    awaited,
    called,
)
from coopstreams.topology.stores import TableStore


@dataclass(slots=True, eq=False)
class _Turn:
    """The calls of one record that read state, in order. `rows`: those of its key, as
    the calls so far left them.
    """

    calls: deque[NodeCall]
    rows: dict[str, Row] = field(default_factory=dict)


class Turns:
    """The turns of one task's keys. One thread."""

    def __init__(
        self, subtopology: SubTopology, stores: Mapping[str, TableStore]
    ) -> None:
        self._nodes = {
            node.name: node
            for node in subtopology.nodes
            if isinstance(node, AsyncProcessing)
        }
        self._below = {
            name: tuple(node.name for node in subtopology.nodes if name in node.parents)
            for name in self._nodes
        }
        self._stores = stores
        self._of_keys: dict[bytes, deque[_Turn]] = {}
        """For each key, the turns of its records that have not passed, in order. The
        first may be under way.
        """

    def call(
        self, wanted: Wanted, source: TopicPartition, columns: Columns
    ) -> NodeCall:
        """Return the call that a record needs of a node that reads state."""
        row = wanted.row
        node = self._nodes[wanted.node]
        visit = Visit(
            node.name,
            self._below[node.name],
            RecordMetadata(source.topic, source.partition, columns.offsets[row]),
            wanted.key,
            wanted.value,
            columns.timestamps[row],
            columns.headers[row] if columns.headers is not None else None,
        )
        return NodeCall(
            awaited if node.calling.coroutine else called,
            (),
            columns.keys[row],
            node.name,
            visit,
        )

    def add(self, calls: Sequence[NodeCall]) -> NodeCall | None:
        """Line up the calls of one record, behind those of the earlier records of its
        key.
        """
        key = calls[0].key
        assert key is not None, "records without a key need no such call"
        turns = self._of_keys.setdefault(key, deque())
        turns.append(_Turn(deque(calls)))
        if len(turns) == 1:
            return self._next(turns)
        _hurry(turns)
        return None

    def ended(self, call: NodeCall) -> NodeCall | None:
        """Note that a call has ended."""
        assert call.key is not None
        turns = self._of_keys[call.key]
        turn = turns[0]
        turn.calls.popleft()
        if not turn.calls:
            return None
        assert call.visit is not None
        for effect in call.value if call.error is None else ():
            if isinstance(effect, Put):
                turn.rows[effect.store] = effect.value, call.visit.timestamp
        return self._next(turns)

    def passed(self, key: bytes) -> NodeCall | None:
        """Note that the first record of a key that needed such calls was processed."""
        turns = self._of_keys[key]
        turns.popleft()
        if turns:
            return self._next(turns)
        del self._of_keys[key]
        return None

    def clear(self) -> None:
        """Forget all."""
        self._of_keys.clear()

    def _next(self, turns: deque[_Turn]) -> NodeCall:
        """Return the next call to make, with the rows that it reads."""
        turn = turns[0]
        call = turn.calls[0]
        node = self._nodes[call.node]
        assert call.key is not None
        for name in node.store_names:
            if name not in turn.rows:
                entry = self._stores[name].load(call.key)
                turn.rows[name] = entry.value, entry.timestamp
        rows = {name: turn.rows[name] for name in node.store_names}
        call.arguments = node.supplier, call.visit, rows
        _hurry(turns)
        return call


def _hurry(turns: deque[_Turn]) -> None:
    """Signal the task as soon as the call under way has ended, if others wait for it."""
    if turns[0].calls and (len(turns) > 1 or len(turns[0].calls) > 1):
        turns[0].calls[0].prompt = True
