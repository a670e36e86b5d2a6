"""Attaches joins: of a stream with a table, a stream or a global table, and of two
tables.

A stream-stream join stores several values with the same timestamp, and records that
wait for a match: `values_of` and `waiting_of` are their serdes.

Invariant: both sides of a join have equal keys on equal partitions and in equal key
ranges, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from struct import Struct
from typing import Any

from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.attach_foreign_keys import join_foreign
from coopstreams.topology.dsl.attach_views import ask_for_old_values, materialize
from coopstreams.topology.dsl.functions import checked
from coopstreams.topology.dsl.materialized import (
    FOLLOWS_TABLES,
    StoreOption,
    kept_as,
    name_of,
)
from coopstreams.topology.dsl.repartition import keyed
from coopstreams.topology.durations import Duration, duration_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow, serde_or_none
from coopstreams.topology.graph.join_nodes import (
    BufferedJoin,
    JoinKind,
    StreamGlobalJoin,
    StreamStreamJoin,
    TableTableJoin,
)
from coopstreams.topology.graph.nodes import GlobalTable, StreamTableJoin
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.kept_headers import with_headers
from coopstreams.topology.naming import check_name
from coopstreams.topology.serde import wrong_length
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import StoreSpec

Function = Callable[..., Any]

LEFT_AND_RIGHT = ("left", "right")


def joined(  # noqa: PLR0913
    flow: Flow,
    other: Flow | TableFlow | GlobalTable,
    joiner: Function,
    *,
    kind: JoinKind,
    with_key: bool = False,
    on: Function | None = None,
    windows: JoinWindows | None = None,
    grace: Duration | None = None,
    value: Serde[Any] | None = None,
    store: str | None = None,
    name: str | None = None,
) -> Flow:
    """Return the join of a stream with a stream, a table or a global table.

    Raises:
        TopologyError: an option belongs to another kind of join, or the join is
        invalid.
    """
    if isinstance(other, Flow):
        if grace is not None:
            raise TopologyError(
                f"the join with {other.node}: give the grace to the windows, JoinWindows(…, grace=…)"
            )
        return join_streams(
            flow,
            other,
            windows,
            joiner,
            value,
            store,
            name,
            kind=kind,
            with_key=with_key,
        )
    method = _method(kind, with_key=with_key)
    if isinstance(other, GlobalTable):
        if (
            kind == "outer"
            or on is None
            or windows is not None
            or grace is not None
            or store is not None
        ):
            raise TopologyError(
                f'{method} with the global table "{other.topic}": it takes on=, a function (key, value) of the key to '
                "look up, a joiner, no more"
            )
        return join_global(
            flow, other, on, joiner, value, name, left=kind == "left", with_key=with_key
        )
    if on is not None:
        raise TopologyError(
            f"{method} with {other.flow.node}: on= is for global tables; select_key() gives the records another key"
        )
    if kind == "outer" or windows is not None or store is not None:
        what = (
            "outer_join()"
            if kind == "outer"
            else "windows="
            if windows is not None
            else "store="
        )
        raise TopologyError(
            f"{method} with {other.flow.node}: {what} is for two streams; a stream meets the row that a table has at "
            "the moment"
        )
    return join_table(
        flow, other, joiner, value, grace, name, left=kind == "left", with_key=with_key
    )


def join_table(
    flow: Flow,
    table: TableFlow,
    joiner: Function,
    value: Serde[Any] | None,
    grace: Duration | None,
    name: str | None,
    *,
    left: bool,
    with_key: bool,
) -> Flow:
    """Return the flow of the joiner's results for each record and the table's row of
    its key.

    Raises:
        TopologyError: the joiner takes other arguments, the table is windowed, the
            sides are of two builders or have different key serdes, or a serde is
            missing.
    """
    method = _method("left" if left else "inner", with_key=with_key)
    where = f"{method} with {table.flow.node}"
    flow.same_graph(table.flow, where)
    function = _joiner(method, joiner, "table_value", with_key=with_key)
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
        name or flow.node,
        where,
        named=name is not None,
    )
    materialize(flow.graph, table.flow.node)
    node: dict[str, Any] = {
        "store": table.store,
        "joiner": function,
        "with_key": with_key,
        "left": left,
    }
    make = (
        partial(StreamTableJoin, **node)
        if grace is None
        else _held(
            flow, table, node, duration_ms(grace, f"{where}: grace"), name, where
        )
    )
    prefix = "KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-"
    return flow.then(
        prefix,
        name,
        lambda name, parents: make(name=name, parents=(*parents, table.flow.node)),
    ).with_value(value, method)


def _held(
    flow: Flow,
    table: TableFlow,
    node: dict[str, Any],
    grace_ms: int,
    name: str | None,
    where: str,
) -> Callable[..., BufferedJoin]:
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
        flow.graph.names.store("", buffer), "key_value", key, waiting_of(value, value)
    )
    return partial(BufferedJoin, **node, buffer=spec, grace_ms=grace_ms)


def join_global(
    flow: Flow,
    table: GlobalTable,
    on: Function,
    joiner: Function,
    value: Serde[Any] | None,
    name: str | None,
    *,
    left: bool,
    with_key: bool,
) -> Flow:
    """Return the flow of the joiner's results for each record and the row of the key
    that `on` returns; keys stay.

    Raises:
        TopologyError: stream and table come from two builders, or a function cannot be
        called with its arguments.
    """
    method = _method("left" if left else "inner", with_key=with_key)
    where = f'{method} with the global table "{table.topic}"'
    if table not in flow.graph.global_tables:
        raise TopologyError(f"{where}: both must come from the same StreamsBuilder")
    function = _joiner(method, joiner, "table_value", with_key=with_key)
    mapper = checked("on=", on, "key", "value")
    make = partial(
        StreamGlobalJoin,
        store=table.store,
        mapper=mapper,
        joiner=function,
        with_key=with_key,
        left=left,
    )
    return flow.then(
        "KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-", name, make
    ).with_value(value, method)


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
    """Return the join of two tables by key. It makes the tables whose rows may lack a
    match forward old values.

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
            left.store, history_ms=None, ttl_ms=None, retention_ms=retention_ms
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


def join_streams(
    left: Flow,
    right: Flow,
    windows: JoinWindows | None,
    joiner: Function,
    value: Serde[Any] | None,
    store: str | None,
    name: str | None,
    *,
    kind: JoinKind,
    with_key: bool,
) -> Flow:
    """Return the join of two streams.

    Raises:
        TopologyError: the joiner takes other arguments, there are no windows, the
            streams are of two builders or have different key serdes, or a serde is
            missing.
    """
    method = _method(kind, with_key=with_key)
    where = f"{method} with {right.node}"
    left.same_graph(right, where)
    function = _joiner(method, joiner, "other_value", with_key=with_key)
    if not isinstance(windows, JoinWindows):
        raise TopologyError(
            f"{where}: two streams are joined within windows such as JoinWindows(minutes=5), not {windows!r}"
        )
    if store is not None:
        check_name(store, "the store name")
    if not isinstance(left.key, Serde):
        left = replace(left, key=right.key)
    elif not isinstance(right.key, Serde):
        right = replace(right, key=left.key)
    check_same_keys(left, right, where)
    graph = left.graph
    names = left.graph.names
    left_topic, right_topic = (
        f"{name}-{side}" if name else flow.node
        for side, flow in (("left", left), ("right", right))
    )
    if left.node == right.node:
        right_topic = left_topic
    left, right = (
        keyed(flow, topic, where, named=name is not None)
        for flow, topic in ((left, left_topic), (right, right_topic))
    )
    for _ in LEFT_AND_RIGHT:
        names.node("KSTREAM-WINDOWED-")
    this = names.node("KSTREAM-OUTERTHIS-" if kind == "outer" else "KSTREAM-JOINTHIS-")
    other = names.node(
        "KSTREAM-JOINOTHER-" if kind == "inner" else "KSTREAM-OUTEROTHER-"
    )
    node_name = names.node("KSTREAM-MERGE-", name)
    stores = _join_stores(left, right, windows, store, (this, other), kind, where)
    for spec in stores:
        graph.needed_stores.add(names.store("", spec.name))
    parents = (left.node, right.node)
    key = left.needed("key", where)
    graph.attach(
        StreamStreamJoin(
            name=node_name,
            parents=parents,
            kind=kind,
            windows=windows,
            joiner=function,
            with_key=with_key,
            key=key,
            stores=stores,
        )
    )
    return replace(left, node=node_name).with_value(value, method)


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
    match, one for those that wait.

    Source: the names are those of Kafka Streams.
    """
    outer_left = kind == "outer"
    outer_right = kind != "inner"
    suffixes = (
        "-outer-this-join" if outer_left else "-this-join",
        "-outer-other-join" if outer_right else "-other-join",
    )
    names = (
        generated
        if store is None
        else (f"{store}{suffixes[0]}", f"{store}{suffixes[1]}")
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


def _method(kind: JoinKind, *, with_key: bool) -> str:
    """Return the name of the method that the user called."""
    return (
        f"{'' if kind == 'inner' else f'{kind}_'}join{'_with_key' if with_key else ''}"
    )


def _joiner(method: str, joiner: Function, other: str, *, with_key: bool) -> Function:
    """Return the joiner after checking that it takes the arguments of the method."""
    return checked(method, joiner, *(["key"] if with_key else []), "value", other)


def check_same_keys(left: Flow, right: Flow, where: str) -> None:
    """Check that both sides have the same key serde.

    Raises:
        TopologyError: they do not, so equal keys would have different bytes and never
        match.
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
    left: Serde[Any], right: Serde[Any]
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
        f"waiting({left.name}, {right.name})", encode, decode, parts=(left, right)
    )
