"""De-duplication: the first record of each key, or of each id within a key, passes, and
others that follow within a time do not.

It is a processor with a store. What has passed is remembered by key, so key ranges of a
partition remain separate tasks. A row of the store has the time of the record that
passed, or, with ids, these times by id.

Invariant: whether a record passes follows from the records of its key before it, and
from their timestamps, not from when they were processed. Stream time only decides how
long the store remembers: at least `within` beyond the time in which duplicates count.
Relies on: `processors` (the context), `repartition` (before it, if keys have changed).
Turned down: a store with a row for each id (its hash would not be that of the record's
key, so the partition could not be shared).
Source: Kafka Streams' KIP-655, which was never built.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from coopstreams.topology import serdes
from coopstreams.topology.aggregates import (
    Argument,
    checked_argument,
    plain_of,
    takes_key,
)
from coopstreams.topology.dsl.attach_processors import process
from coopstreams.topology.dsl.repartition import keyed
from coopstreams.topology.durations import Duration, checked_ms
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.processors import Processor, key_value_store
from coopstreams.topology.records import Record
from coopstreams.topology.serde import Serde

Times = dict[str | int | float, int]
"""When the record of each id passed."""

_PREFIX = "KSTREAM-DISTINCT-"
_CURE = "the operator that changed them"
times_by_id: Serde[Times] = Serde(
    "times by id",
    msgspec.msgpack.Encoder().encode,
    msgspec.msgpack.Decoder(Times).decode,
    immutable=True,
)


def distinct(
    flow: Flow,
    within: Duration,
    by: Argument | None,
    store: str | None,
    name: str | None,
) -> Flow:
    """Return the flow without the records that are duplicates.

    Raises:
        TopologyError: a time below 1 ms, or no duration; no argument for ids; a serde
        is missing, or a name is taken or not legal.
    """
    within_ms = checked_ms(within, "distinct(): within", 1)
    id_of = None if by is None else checked_argument("distinct(by=)", by)
    store_name = store or flow.graph.names.free_store(_PREFIX)
    flow = keyed(flow, name or store_name, "distinct()", cure=_CURE)
    key = flow.needed("key", "distinct()", _CURE)
    kept = partial(key_value_store, store_name, key=key)
    if id_of is None:
        seen = kept(value=serdes.int64, ttl=timedelta(milliseconds=2 * within_ms))
        make: Callable[[], _First] = partial(_First, store_name, within_ms)
    else:
        seen = kept(value=times_by_id, ttl=timedelta(milliseconds=4 * within_ms))
        make = partial(_FirstOfId, store_name, within_ms, id_of)
    return process(flow, make, [seen], name, by_key=True, fixed_key=True)


class _First(Processor[Any, Any, Any, Any]):
    """Forwards the first record of each key, and none without a key."""

    def __init__(self, store: str, within_ms: int) -> None:
        self._store = store
        self._within_ms = within_ms

    def init(self, context: Any) -> None:
        self._seen = context.store(self._store)
        self._forward = context.forward

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is None:
            return
        passed = self._seen.get(record.key)
        if passed is None or record.timestamp >= passed + self._within_ms:
            self._seen.put(record.key, record.timestamp)
            self._forward(record)


class _FirstOfId(_First):
    """Forwards the first record of each id of a key, and records without an id."""

    def __init__(
        self,
        store: str,
        within_ms: int,
        id_of: Callable[..., Any],
    ) -> None:
        super().__init__(store, within_ms)
        self._id_of = id_of
        self._with_key = takes_key(id_of)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is None:
            return
        id_ = self._id(record)
        if id_ is None:
            self._forward(record)
            return
        times: Times = self._seen.get(record.key) or {}
        passed = times.get(id_)
        if passed is not None and record.timestamp < passed + self._within_ms:
            return
        newest = max(record.timestamp, *times.values(), -1)
        oldest = newest - 2 * self._within_ms
        if record.timestamp > oldest:
            left = {of: time for of, time in times.items() if time > oldest}
            self._seen.put(record.key, {**left, id_: record.timestamp})
        self._forward(record)

    def _id(self, record: Record[Any, Any]) -> Any:
        if record.value is None:
            return None
        id_ = (
            self._id_of(record.key, record.value)
            if self._with_key
            else self._id_of(record.value)
        )
        return None if id_ is None else plain_of(id_, "distinct(by=)")
