"""Attaches joins: of a stream with a table, a stream or a global table, and of two
tables.

A stream-stream join stores several values with the same timestamp, and records that
wait for a match: `values_of` and `waiting_of` are their serdes.

Invariant: both sides of a join have equal keys on equal partitions and in equal key
ranges, with the same bytes.
Relies on: `naming`: each name that is taken is a number, and the order in which they are
taken here is Kafka Streams'. Another order renames stores and topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from struct import Struct
from typing import Any

from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.attach_views import ask_for_old_values, materialize
from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.dsl.materialized import (
    FOLLOWS_TABLES,
    StoreOption,
    kept_as,
    name_of,
)
from coopstreams.topology.dsl.repartition import keyed
from coopstreams.topology.durations import Duration, duration_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.foreign_keys import ANSWERS, SUBSCRIBERS, SUBSCRIPTION
from coopstreams.topology.graph.graph import (
    Flow,
    Graph,
    Repartition,
    serde_or_none,
)
from coopstreams.topology.graph.join_nodes import (
    BufferedJoin,
    ForeignKeyAnswer,
    ForeignKeyAsk,
    ForeignKeyResult,
    JoinKind,
    StreamGlobalJoin,
    StreamStreamJoin,
    TableTableJoin,
)
from coopstreams.topology.graph.nodes import (
    GlobalTable,
    Node,
    StreamTableJoin,
    TableSource,
)
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.kept_headers import with_headers
from coopstreams.topology.naming import check_name
from coopstreams.topology.serde import wrong_length
from coopstreams.topology.serdes import Serde, raw
from coopstreams.topology.stores import SUBSCRIBER_BYTES, StoreSpec

Function = Callable[..., Any]

LEFT_AND_RIGHT = ("left", "right")


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """The user's arguments for a join of a stream. The other side decides which of them
    are allowed: a table, a stream, or a global table.
    """

    joiner: Function
    kind: JoinKind
    with_key: bool = False
    on: Function | None = None
    windows: JoinWindows | None = None
    grace: Duration | None = None
    value: Serde[Any] | None = None
    store: str | None = None
    name: str | None = None

    @property
    def left(self) -> bool:
        """Whether it is a left join: a record without a match has a result."""
        return self.kind == "left"

    @property
    def method(self) -> str:
        """The name of the method that the user called."""
        outer = "" if self.kind == "inner" else f"{self.kind}_"
        return f"{outer}join{'_with_key' if self.with_key else ''}"

    def function(self, other: str) -> Function:
        """Return the joiner after checking that it takes the arguments of the method."""
        key = ["key"] if self.with_key else []
        return checked(self.method, self.joiner, *key, "value", other)


def joined(
    flow: Flow,
    other: Flow | TableFlow | GlobalTable,
    join: StreamJoin,
) -> Flow:
    """Return the join of a stream with a stream, a table or a global table.

    Raises:
        TopologyError: an option belongs to another kind of join, or the join is
        invalid.
    """
    if isinstance(other, Flow):
        return _join_streams(flow, other, join)
    if isinstance(other, GlobalTable):
        return _join_global(flow, other, join)
    return _join_table(flow, other, join)


def _check_table_options(join: StreamJoin, table: TableFlow) -> None:
    """Raise an error for an option that a join with a table does not take."""
    where = f"{join.method} with {table.flow.node}"
    if join.on is not None:
        raise TopologyError(
            f"{where}: on= is for global tables; select_key() gives the records another key"
        )
    for given, what in (
        (join.kind == "outer", "outer_join()"),
        (join.windows is not None, "windows="),
        (join.store is not None, "store="),
    ):
        if given:
            raise TopologyError(
                f"{where}: {what} is for two streams; a stream meets the row that a table has at "
                "the moment"
            )


def _join_table(
    flow: Flow,
    table: TableFlow,
    join: StreamJoin,
) -> Flow:
    """Return the flow of the joiner's results for each record and the table's row of
    its key.
    """
    _check_table_options(join, table)
    where = f"{join.method} with {table.flow.node}"
    flow.same_graph(table.flow, where)
    function = join.function("table_value")
    if table.is_windowed:
        raise TopologyError(
            f"{where}: its keys are windows, a stream's are not. Join .to_stream() with select_key(), or aggregate "
            "without windows."
        )
    if flow.key != table.flow.key and isinstance(flow.key, Serde):
        raise TopologyError(
            f"{where}: the keys of the stream are written as {flow.key}, those of the table as {table.flow.key}, so "
            "equal keys have different bytes and never meet. Write .select_key(lambda key, value: ..., "
            f"key=serdes.{table.flow.key}) before the join."
        )
    # Equal keys must be equal bytes, so the table's serde is the only one that new keys
    # can have.
    flow = keyed(
        replace(flow, key=table.flow.key),
        join.name or flow.node,
        where,
        named=join.name is not None,
    )
    materialize(flow.graph, table.flow.node)
    node: dict[str, Any] = {
        "store": table.store,
        "joiner": function,
        "with_key": join.with_key,
        "left": join.left,
    }
    make: Callable[..., Node] = partial(StreamTableJoin, **node)
    if join.grace is not None:
        grace_ms = duration_ms(join.grace, f"{where}: grace")
        make = _held(flow, table, node, grace_ms, join.name, where)
    return flow.then(
        _prefix(join),
        join.name,
        lambda name, parents: make(name=name, parents=(*parents, table.flow.node)),
    ).with_value(join.value, join.method)


def _prefix(join: StreamJoin) -> str:
    return "KSTREAM-LEFTJOIN-" if join.left else "KSTREAM-JOIN-"


def _held(
    flow: Flow,
    table: TableFlow,
    node: dict[str, Any],
    grace_ms: int,
    name: str | None,
    where: str,
) -> Callable[..., BufferedJoin]:
    """Return what makes the node of a join with a grace: with the store of the records
    that wait. `node`: its other fields.
    """
    history_ms = table.store.history_ms
    if history_ms is None:
        raise TopologyError(
            f"{where}: grace= looks the row up as it was, which a table without history does not know. Read it with "
            "table(…, history=…)."
        )
    if not 0 <= grace_ms <= history_ms:
        raise TopologyError(
            f"{where}: a grace of {grace_ms} ms must not be negative, nor longer than the table's history of "
            f"{history_ms} ms"
        )
    key = table.flow.needed("key", where)
    value = with_headers(flow.needed("value", where))
    buffer = f"{name or flow.graph.names.node('KSTREAM-JOIN-')}-Buffer"
    spec = StoreSpec(
        flow.graph.names.store("", buffer),
        "key_value",
        key,
        waiting_of(value, value),
    )
    return partial(BufferedJoin, **node, buffer=spec, grace_ms=grace_ms)


def _join_global(
    flow: Flow,
    table: GlobalTable,
    join: StreamJoin,
) -> Flow:
    """Return the flow of the joiner's results for each record and the row of the key
    that `on` returns. The records keep their keys.
    """
    where = f'{join.method} with the global table "{table.topic}"'
    others = (join.windows, join.grace, join.store)
    if join.kind == "outer" or join.on is None or any(x is not None for x in others):
        raise TopologyError(
            f"{where}: it takes on=, a function (key, value) of the key to "
            "look up, a joiner, no more"
        )
    if table not in flow.graph.global_tables:
        raise TopologyError(f"{where}: both must come from the same StreamsBuilder")
    make = partial(
        StreamGlobalJoin,
        store=table.store,
        joiner=join.function("table_value"),
        mapper=checked("on=", join.on, "key", "value"),
        with_key=join.with_key,
        left=join.left,
    )
    return flow.then(_prefix(join), join.name, make).with_value(join.value, join.method)


def joined_tables(
    left: TableFlow,
    right: TableFlow,
    joiner: Function,
    *,
    kind: JoinKind,
    foreign_key: Function | None = None,
    foreign_key_with_key: Function | None = None,
    value: Serde[Any] | None = None,
    store: StoreOption = None,
    name: str | None = None,
) -> TableFlow:
    """Return the join of two tables, by their keys or by a foreign key."""
    if foreign_key is None and foreign_key_with_key is None:
        return join_tables(left, right, joiner, value, store, name, kind=kind)
    return join_foreign(
        left,
        right,
        foreign_key,
        foreign_key_with_key,
        joiner,
        value,
        store,
        name,
        is_left=kind == "left",
    )


def join_tables(
    left: TableFlow,
    right: TableFlow,
    joiner: Function,
    value: Serde[Any] | None,
    store: StoreOption,
    name: str | None,
    *,
    kind: JoinKind,
) -> TableFlow:
    """Return the join of two tables by key. A table whose rows may lack a match then
    forwards old values.

    Raises:
        TopologyError: the tables are of two builders or have different keys, or a store
        has no serde for its values.
    """
    method = "join" if kind == "inner" else f"{kind}_join"
    where = f"{method} with {right.flow.node}"
    left.flow.same_graph(right.flow, where)
    check_same_keys(left.flow, right.flow, where)
    if left.is_windowed != right.is_windowed:
        raise TopologyError(
            f"{where}: one side aggregates in windows, the other reads windows in the keys of its topic, so equal keys "
            "are in different partitions. Write .to_stream().to_table() before the join, on the side that "
            "aggregates."
        )
    function = checked(method, joiner, "value", "other_value")
    graph = left.flow.graph
    value = serde_or_none(value, "value", where)
    key = left.flow.needed("key", where)
    node_name = graph.names.node("KTABLE-MERGE-", name)
    for prefix in (
        "KTABLE-JOINTHIS-",
        "KTABLE-JOINOTHER-",
    ):  # Kafka Streams counts three nodes
        graph.names.node(prefix)
    retention_ms = max(
        (ms for table in (left, right) if (ms := table.store.retention_ms) is not None),
        default=None,
    )
    rows = replace(
        left,
        store=replace(
            left.store,
            history_ms=None,
            ttl_ms=None,
            retention_ms=retention_ms,
        ),
    )
    spec = None
    if store is not None:
        if value is None:
            raise TopologyError(
                f'{where}: store="{name_of(store)}" keeps the joined values as bytes. Write value=serdes.… there.'
            )
        store_name = graph.names.store("KTABLE-MERGE-", name_of(store))
        spec = kept_as(store, rows.kept(store_name, value), no_ttl=FOLLOWS_TABLES)
        graph.needed_stores.add(spec.name)
    for table in (left, right):
        materialize(graph, table.flow.node)
    if kind != "inner":
        ask_for_old_values(graph, left.flow.node, force=True)
    if kind == "outer":
        ask_for_old_values(graph, right.flow.node, force=True)
    parents = (left.flow.node, right.flow.node)
    graph.attach(
        TableTableJoin(
            name=node_name,
            parents=parents,
            kind=kind,
            joiner=function,
            key=key,
            store=spec,
        )
    )
    flow = replace(left.flow, node=node_name).with_value(value, method)
    return TableFlow(flow, spec or rows.store)


def _join_streams(
    left: Flow,
    right: Flow,
    join: StreamJoin,
) -> Flow:
    """Return the join of two streams."""
    if join.grace is not None:
        raise TopologyError(
            f"the join with {right.node}: give the grace to the windows, JoinWindows(…, grace=…)"
        )
    where = f"{join.method} with {right.node}"
    left.same_graph(right, where)
    function = join.function("other_value")
    if not isinstance(join.windows, JoinWindows):
        raise TopologyError(
            f"{where}: two streams are joined within windows such as JoinWindows(minutes=5), not {join.windows!r}"
        )
    if join.store is not None:
        check_name(join.store, "the store name")
    left, right = _with_same_keys(left, right, join.name, where)
    graph = left.graph
    names = graph.names
    for _ in LEFT_AND_RIGHT:
        names.node("KSTREAM-WINDOWED-")
    this = names.node(
        "KSTREAM-OUTERTHIS-" if join.kind == "outer" else "KSTREAM-JOINTHIS-"
    )
    other = names.node(
        "KSTREAM-JOINOTHER-" if join.kind == "inner" else "KSTREAM-OUTEROTHER-"
    )
    node_name = names.node("KSTREAM-MERGE-", join.name)
    stores = _join_stores(
        left,
        right,
        join.windows,
        join.store,
        (this, other),
        join.kind,
        where,
    )
    for spec in stores:
        graph.needed_stores.add(names.store("", spec.name))
    graph.attach(
        StreamStreamJoin(
            name=node_name,
            parents=(left.node, right.node),
            kind=join.kind,
            windows=join.windows,
            joiner=function,
            with_key=join.with_key,
            key=left.needed("key", where),
            stores=stores,
        )
    )
    return replace(left, node=node_name).with_value(join.value, join.method)


def _with_same_keys(
    left: Flow,
    right: Flow,
    name: str | None,
    where: str,
) -> tuple[Flow, Flow]:
    """Return both sides of a join, repartitioned where their keys are new. A new key
    has the serde of the other side.
    """
    if not isinstance(left.key, Serde):
        left = replace(left, key=right.key)
    elif not isinstance(right.key, Serde):
        right = replace(right, key=left.key)
    check_same_keys(left, right, where)
    topics = (f"{name}-left", f"{name}-right") if name else (left.node, right.node)
    if left.node == right.node:
        topics = (topics[0], topics[0])
    named = name is not None
    return (
        keyed(left, topics[0], where, named=named),
        keyed(right, topics[1], where, named=named),
    )


def _join_stores(
    left: Flow,
    right: Flow,
    windows: JoinWindows,
    store: str | None,
    generated: tuple[str, str],
    kind: JoinKind,
    where: str,
) -> tuple[StoreSpec, ...]:
    """Return the stores of a join: one for each side and, if records may wait for a
    match, one for the waiting records.

    Source: the names are those of Kafka Streams.
    """
    names = generated
    if store is not None:
        names = (
            f"{store}-outer-this-join" if kind == "outer" else f"{store}-this-join",
            f"{store}-other-join" if kind == "inner" else f"{store}-outer-other-join",
        )
    key = left.needed("key", where)
    values = (left.needed("value", where), right.needed("value", where))
    # The store must keep a row for as long as the join may look it up; the join itself
    # checks the exact limit.
    window = StoreSpec(
        "",
        "window",
        key,
        values_of(values[0]),
        window_ms=1,
        retention_ms=windows.retention_ms + 1,
    )
    sides = tuple(
        replace(window, name=f"{side}-store", value=values_of(value))
        for side, value in zip(names, values, strict=True)
    )
    if kind == "inner" or windows.eager:
        return sides
    shared = (
        f"KSTREAM-OUTERSHARED-{names[0][-10:]}"
        if store is None
        else f"{store}{'-outer' if kind == 'outer' else '-left'}-shared-join"
    )
    return (*sides, StoreSpec(f"{shared}-store", "key_value", key, waiting_of(*values)))


def check_same_keys(
    left: Flow,
    right: Flow,
    where: str,
) -> None:
    """Check that both sides have the same key serde.

    Raises:
        TopologyError: the serdes differ, so equal keys would have different bytes and
        never match.
    """
    if left.key != right.key:
        raise TopologyError(
            f"{where}: the keys of one side are written as {left.key}, those of the other as {right.key}, so equal "
            "keys have different bytes and never meet. Use one serde for the keys of both."
        )


_LENGTH = Struct(">i")
_WAITING = Struct(">qBi")


@cache
def values_of(inner: Serde[Any]) -> Serde[list[Any]]:
    """Return the serde of a list of values: each value after its length (4 bytes
    big-endian).
    """

    def encode(values: list[Any]) -> bytes:
        if len(values) == 1:  # nearly all are
            data = inner.encode(values[0])
            return _LENGTH.pack(len(data)) + data
        written = [inner.encode(value) for value in values]
        return b"".join(
            part for data in written for part in (_LENGTH.pack(len(data)), data)
        )

    def decode(data: bytes) -> list[Any]:
        values = []
        at = 0
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if not 0 <= length <= len(data) - at:
                raise wrong_length(length, len(data) - at)
            at += length
            values.append(inner.decode(data[at - length : at]))
        return values

    return Serde(f"values({inner.name})", encode, decode, parts=(inner,))


@cache
def waiting_of(
    left: Serde[Any],
    right: Serde[Any],
) -> Serde[list[tuple[int, int, Any]]]:
    """Return the serde of waiting records (timestamp, side, value).

    Shape: for each, timestamp (8 bytes), side (1), length (4), value.
    """

    def encode(rows: list[tuple[int, int, Any]]) -> bytes:
        written = [
            (at, side, (left, right)[side].encode(value)) for at, side, value in rows
        ]
        return b"".join(
            part
            for at, side, data in written
            for part in (_WAITING.pack(at, side, len(data)), data)
        )

    def decode(data: bytes) -> list[tuple[int, int, Any]]:
        rows = []
        position = 0
        while position < len(data):
            at, side, length = _WAITING.unpack_from(data, position)
            position += _WAITING.size
            if not 0 <= length <= len(data) - position:
                raise wrong_length(length, len(data) - position)
            if side > 1:
                raise ValueError(f"a join has no side {side}")
            position += length
            rows.append(
                (
                    at,
                    side,
                    (left, right)[side].decode(data[position - length : position]),
                )
            )
        return rows

    return Serde(
        f"waiting({left.name}, {right.name})",
        encode,
        decode,
        parts=(left, right),
    )


_PREFIX = "KTABLE-FK-JOIN-"


def join_foreign(
    left: TableFlow,
    right: TableFlow,
    foreign_key: Callable[..., Any] | None,
    foreign_key_with_key: Callable[..., Any] | None,
    joiner: Callable[..., Any],
    value: Serde[Any] | None,
    store: StoreOption,
    name: str | None,
    *,
    is_left: bool,
) -> TableFlow:
    """Return the table of the joiner's results for each left row and the right row that
    it names.

    Raises:
        TopologyError: the tables are of two builders or windowed, a serde is missing,
            or not exactly one function of the foreign key is given.
    """
    method = "left_join" if is_left else "join"
    graph = left.flow.graph
    where = f"{method} with {right.flow.node}"
    left.flow.same_graph(right.flow, where)
    if left.is_windowed or right.is_windowed:
        raise TopologyError(
            f"{where}: a foreign key cannot be joined with a windowed table"
        )
    extract = _extractor(where, foreign_key, foreign_key_with_key)
    checked(method, joiner, "value", "other_value")
    value = serde_or_none(value, "value", where)
    if value is None:
        raise TopologyError(
            f"{where}: how do the joined values become bytes? Write value=serdes.… there: a join by foreign key may "
            "have to keep them."
        )
    key = left.flow.needed("key", where)
    left_value = left.flow.needed("value", where)
    other_key = right.flow.needed("key", where)
    right_value = right.flow.needed("value", where)
    for table in (left, right):
        ask_for_old_values(graph, table.flow.node, force=True)
        materialize(graph, table.flow.node)
    names = graph.names
    subscriptions, answers, subscribers = (
        _name(graph, name, part) for part in ("registration", "response", "store")
    )
    asking = left.flow.then(
        f"{_PREFIX}SUBSCRIPTION-SEND-",
        None,
        partial(
            ForeignKeyAsk,
            extract=extract,
            left=is_left,
            key=key,
            value=left_value,
            foreign_key=other_key,
        ),
    )
    asked = _through(asking, subscriptions, other_key, SUBSCRIPTION)
    stored = names.store("", subscribers)
    spec = StoreSpec(
        stored,
        "subscribers",
        other_key,
        SUBSCRIBERS,
        row_key=raw,
        suffix_bytes=SUBSCRIBER_BYTES,
    )
    answering = names.node(f"{_PREFIX}SUBSCRIPTION-PROCESSOR-")
    graph.attach(
        ForeignKeyAnswer(
            name=answering,
            parents=(asked, right.flow.node),
            store=spec,
            value=right_value,
            primary_key=key,
        )
    )
    answered = _through(Flow(graph, answering, key, ANSWERS), answers, key, ANSWERS)
    resulting = names.node(f"{_PREFIX}SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-")
    graph.attach(
        ForeignKeyResult(
            name=resulting,
            parents=(answered, left.flow.node),
            ask=asking.node,
            joiner=joiner,
            left=is_left,
            key=key,
            value=left_value,
            right_value=right_value,
        )
    )
    output = names.node(f"{_PREFIX}OUTPUT-", name)
    kept = kept_as(
        store,
        StoreSpec(
            names.store(f"{_PREFIX}OUTPUT-", name_of(store)),
            "key_value",
            key,
            value,
        ),
        no_ttl=FOLLOWS_TABLES,
    )
    if store is not None:
        graph.needed_stores.add(kept.name)
    graph.attach(TableSource(name=output, parents=(resulting,), store=kept))
    return TableFlow(Flow(graph, output, key, value), kept)


def _extractor(
    where: str,
    foreign_key: Callable[..., Any] | None,
    with_key: Callable[..., Any] | None,
) -> Callable[[Any, Any], Any]:
    if with_key is not None and foreign_key is None:
        return checked("foreign_key_with_key=", with_key, "key", "value")
    if foreign_key is None or with_key is not None:
        raise TopologyError(
            f"{where}: give it one function, foreign_key=(value) or foreign_key_with_key=(key, value)"
        )
    extract = checked("foreign_key=", foreign_key, "value")
    return lambda _, value: extract(value)


def _name(
    graph: Graph,
    name: str | None,
    part: str,
) -> str:
    """Return the name of a topic or store of a foreign-key join, as in Kafka Streams.
    `name`: the user's; `part`: `registration`, `response` or `store`.
    """
    if name is not None:
        return f"{check_name(name, 'the node name')}-subscription-{part}{'' if part == 'store' else '-topic'}"
    word = "STATE-STORE" if part == "store" else part.upper()
    generated = graph.names.node(f"{_PREFIX}SUBSCRIPTION-{word}-")
    return generated if part == "store" else f"{generated}-topic"


def _through(
    flow: Flow,
    topic: str,
    key: Serde[Any],
    value: Serde[Any],
) -> str:
    """Send the records of a flow through an internal topic; return the name of the node
    that reads it.
    """
    graph = flow.graph
    if any(made.topic == topic for made in graph.repartitions):
        raise TopologyError(
            f'two internal topics are named "{topic}". Give one of the joins another name=.'
        )
    wanted = Repartition(
        flow.node,
        key,
        value,
        False,
        topic,
        source="",
        partitions=None,
        explicit=True,
    )
    sink = graph.names.node("KTABLE-SINK-")
    source = graph.names.node("KTABLE-SOURCE-")
    return graph.through(flow.node, sink, source, wanted).node
