"""Generates the code of aggregations: of streams, with or without windows, and of
tables.

The row of a key, or of a key and a window, is an `Entry` of the store's write buffer,
changed in place and marked dirty once. The code of tumbling and hopping windows is
generated; sliding windows and sessions are in `moving_windows`.

Invariant: the forwarded update is the row in the store: (key bytes, new value or None,
timestamp of the row).
Source: Kafka Streams `KStreamAggregate`, `KStreamReduce`, `KStreamWindowAggregate`,
`KTableAggregate`, `KTableReduce`, `KTableRepartitionMap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from struct import Struct
from typing import Any, TypeAlias

from coopstreams.topology.graph.aggregate_nodes import (
    CogroupMerge,
    TableAggregate,
    TableGroup,
)
from coopstreams.topology.graph.join_nodes import TableTableJoin
from coopstreams.topology.graph.nodes import Aggregate, Node
from coopstreams.topology.operators import moving_windows, native_folds
from coopstreams.topology.operators.analysis import aggregate_reads
from coopstreams.topology.operators.codegen import RecordVariables
from coopstreams.topology.operators.compiler import Body, Compiler, Operator
from coopstreams.topology.operators.moving_windows import UNCHANGEABLE, snapshot
from coopstreams.topology.operators.tables import drop_null_key, drop_the_past
from coopstreams.topology.stores import StoreSpec
from coopstreams.topology.windows import (
    AnyWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Windows,
)

_START_BYTES = Struct(">q").pack
"""A function that returns a window start as the last 8 bytes of a `window_key`."""


def aggregate(
    function: Body,
    node: Aggregate,
    record: RecordVariables,
) -> None:
    """Generate the code of a count, a reduce or an aggregate of a stream, with or
    without windows.
    """
    drop_null_key(function, node, record)
    record = replace(record, has_key=True)
    if aggregate_reads(node).value:
        function.value(record)
    if node.drops_null_values and not record.dense:
        function.drop_if(
            f"{record.value or record.value_bytes} is None",
            node,
            "null-value",
        )
        record = replace(record, dense=True)
    if aggregate_reads(node).key:
        function.key(record)
    key_bytes = function.key_as_bytes(record, node.store.key, node)
    if node.store.name in function.compiler.native:
        native_folds.fold(function, node, record, key_bytes)
        return
    if node.windows is None:
        _add_to_row(function, node, record, _Place(key_bytes))
    else:
        _add_by_time(function, node, node.windows, record, key_bytes)


def _add_by_time(
    function: Body,
    node: Aggregate,
    windows: AnyWindows,
    record: RecordVariables,
    key_bytes: str,
) -> None:
    """Generate code that adds a record to its windows."""
    moves = isinstance(windows, SlidingWindows | SessionWindows)
    operator_time = function.operator_time(node)
    expire = function.compiler.expire(operator_time, node.store)
    native = node.store.name in function.compiler.native_by_record
    if node.cogrouped or (moves and not native):
        # These windows look back beyond the open ones, or another stream is ahead of
        # theirs: expired rows must be gone, however records are cut into batches.
        observed = _observed(function, node) if node.cogrouped else operator_time
        with function.block(f"if {observed} >= 0:"):
            function.line(f"{expire}({observed})")
    before = operator_time
    if moves and native:
        before = function.fresh("before")
        function.line(f"{before} = {operator_time}")
    birth = function.birth(node, record)
    if isinstance(windows, SlidingWindows | SessionWindows):
        _add_to_moving_windows(
            function,
            node,
            record,
            key_bytes,
            operator_time,
            before,
        )
        return
    in_place = not node.emit_on_close
    if in_place and isinstance(windows, TimeWindows) and windows.tumbles:
        place = _in_tumbling_window(function, node, windows, record, key_bytes, birth)
        _add_to_row(function, node, record, place)
    else:
        _add_to_windows(function, node, windows, record, key_bytes, birth)
        _forward_closed(function, node, operator_time)


def _observed(function: Body, node: Aggregate) -> str:
    """Generate the latest stream time of all streams that are cogrouped with the node's
    stream; return its variable.
    """
    observed = function.fresh("observed")
    analysis = function.analysis
    times = [
        function.unit.operator_time(
            analysis.numbers[other.name],
            analysis.topics(other),
        )
        for other in analysis.nodes
        if isinstance(other, Aggregate) and other.store.name == node.store.name
    ]
    function.line(f"{observed} = max(({', '.join(times)},))")
    return observed


def cogroup_merge(
    function: Body,
    node: CogroupMerge,
    record: RecordVariables,
) -> None:
    """Generate code that forwards the update of a cogrouped aggregation."""
    function.forward(node, record)


def table_group(
    function: Body,
    node: TableGroup,
    record: RecordVariables,
) -> None:
    """Generate code that turns an update of a row into updates of the rows of its new
    keys: one row, or two if the key has changed.
    """
    drop_the_past(function, node, record)
    value = function.value(record)
    new = function.fresh("new")
    old = function.fresh("old")
    assert record.old is not None  # `group_table` requested old values
    one = function.call_of("mapper", node.mapper, record, ("key", "value"))
    other = function.call_of("mapper", node.mapper, record, ("key", record.old))
    regroup = function.unit.constant("regrouped", regrouped)
    many = function.fresh("pairs")
    key = function.fresh("key")
    pair = function.fresh("pair")
    with function.guard("processing", node.name):
        function.line(f"{new} = None if {value} is None else {one}")
        function.line(f"{old} = None if {record.old} is None else {other}")
        function.line(f"{many} = {regroup}({new}, {old})")
    with function.loop(f"for {key}, {pair} in {many}:"):
        function.forward(
            node,
            replace(
                record.with_key(key).with_value(pair),
                has_key=True,
                dense=True,
                latest=None,
            ),
        )


def regrouped(
    new: tuple[Any, Any] | None,
    old: tuple[Any, Any] | None,
) -> list[tuple[Any, tuple[Any, Any]]]:
    """Return the updates of the rows of new keys: (key, (new value, old value)). Null
    keys and values are left out.

    `new`, `old`: the new key and value of the row, now and before the update. Equal
    keys with different texts are different rows, as 1, 1.0 and True are in JSON.
    """
    if new is not None and (new[0] is None or new[1] is None):
        new = None
    if old is not None and (old[0] is None or old[1] is None):
        old = None
    if old is None:
        return [] if new is None else [(new[0], (new[1], None))]
    taken_out = (old[0], (None, old[1]))
    if new is None:
        return [taken_out]
    if new[0] == old[0] and repr(new[0]) == repr(old[0]):
        return [(new[0], (new[1], old[1]))]
    return [taken_out, (new[0], (new[1], None))]


def table_aggregate(
    function: Body,
    node: TableAggregate,
    record: RecordVariables,
) -> None:
    """Generate code that subtracts the old value from the aggregate of a key, and adds
    the new value.
    """
    drop_null_key(function, node, record)
    record = replace(record, has_key=True)
    unit = function.unit
    pair = function.value(record)
    key_bytes = function.key_as_bytes(record, node.store.key, node)
    key = function.key(record) if node.initializer is not None else "None"
    entry = function.entry_of(node.store, key_bytes)
    before = function.fresh("before")
    fold = unit.constant("changed_aggregate", _folding(node))
    forwards = not function.compiler.caches(node) and function.analysis.edges(node)
    function.line(f"{before} = {entry}.value")
    old = (
        _kept(function, node.store, before, plain=node.adder is None)
        if forwards and function.analysis.wants_old(node)
        else None
    )
    undo = (
        ()
        if node.adder is None
        else undo_of(function, node.store, before, f"{entry}.value = {{}}")
    )
    new = function.guarded("new", f"{fold}({key}, {pair}, {before})", node, undo=undo)
    later = f"{record.timestamp} > {entry}.timestamp"
    with function.block(f"if {before} is None or {later}:"):
        function.line(f"{entry}.timestamp = {record.timestamp}")
    function.line(f"{entry}.value = {new}")
    function.touch(node.store, key_bytes, entry)
    function.keep_headers(node, entry)
    if forwards:
        timestamp = function.fresh("timestamp")
        function.line(f"{timestamp} = {entry}.timestamp")
        row = RecordVariables(
            node.name,
            key_bytes,
            node.store.key,
            new,
            timestamp,
            record.stream_time,
            has_key=True,
        )
        function.forward(node, replace(row, key=record.key, old=old))


_Fold: TypeAlias = Callable[[Any, tuple[Any, Any], Any], Any]
"""A function `(key, (new, old), aggregate) -> aggregate`."""


def _folding(node: TableAggregate) -> _Fold:
    if node.adder is None or node.subtractor is None:
        return _counted
    if node.initializer is None:
        return _reducing(node.adder, node.subtractor)
    return _aggregating(node.initializer, node.adder, node.subtractor)


def _counted(
    _: Any,
    pair: tuple[Any, Any],
    total: int | None,
) -> int | None:
    new, old = pair
    left = total - 1 if old is not None and total is not None else total
    return left if new is None else (left or 0) + 1


def _reducing(adder: Callable[..., Any], subtractor: Callable[..., Any]) -> _Fold:
    def reduced(
        _: Any,
        pair: tuple[Any, Any],
        total: Any,
    ) -> Any:
        new, old = pair
        if old is not None and total is not None:
            total = subtractor(total, old)
        if new is None:
            return total
        return new if total is None else adder(total, new)

    return reduced


def _aggregating(
    initializer: Callable[[], Any],
    adder: Callable[..., Any],
    subtractor: Callable[..., Any],
) -> _Fold:
    def aggregated(
        key: Any,
        pair: tuple[Any, Any],
        total: Any,
    ) -> Any:
        new, old = pair
        if old is not None and total is not None:
            total = subtractor(key, old, total)
        if new is None:
            return total
        return adder(key, new, initializer() if total is None else total)

    return aggregated


@dataclass(frozen=True, slots=True)
class _Place:
    """The generated variables that say which row a record changes: that of a key, or of
    a key and a window.
    """

    key_bytes: str
    start: str = "None"
    start_bytes: str | None = None
    """The start as the last bytes of the row's key. None: there is no window, or
    nothing needs the key.
    """

    def row_key(self, function: Body) -> str:
        """Generate the key of the row; return its variable."""
        if self.start_bytes is None:
            return self.key_bytes
        key = function.fresh("window_key")
        function.line(f"{key} = {self.key_bytes} + {self.start_bytes}")
        return key


class _LiveRow:
    """Generates the changes of a row that is an entry of the store's write buffer."""

    def __init__(
        self,
        function: Body,
        node: Aggregate,
        row_key: str,
    ) -> None:
        self._function = function
        self._node = node
        self._row_key = row_key
        self._entry = function.entry_of(node.store, row_key)
        self.before = function.fresh("old")
        """The variable of the value before the record."""
        function.line(f"{self.before} = {self._entry}.value")
        self.restore = f"{self._entry}.value = {{}}"
        """The statement that sets the value back: see `undo_of`."""

    def put(self, new: str, timestamp: str) -> None:
        """Generate code that sets the value, and the timestamp if the record is the
        latest of the row.
        """
        function = self._function
        entry = self._entry
        function.line(f"{entry}.value = {new}")
        with function.block(
            f"if {self.before} is None or {timestamp} > {entry}.timestamp:"
        ):
            function.line(f"{entry}.timestamp = {timestamp}")
        function.touch(self._node.store, self._row_key, entry)
        if not self._node.emit_on_close:
            function.keep_headers(self._node, entry)

    def timestamp(self) -> str:
        """Generate the timestamp of the row; return its variable."""
        timestamp = self._function.fresh("timestamp")
        self._function.line(f"{timestamp} = {self._entry}.timestamp")
        return timestamp


class _NativeRow:
    """Generates the changes of a row in native memory: see `NativeTable`."""

    def __init__(
        self,
        function: Body,
        node: Aggregate,
        place: _Place,
    ) -> None:
        self._function = function
        self._node = node
        self._store = function.unit.store(node.store)
        self._timestamp = function.fresh("timestamp")
        function.unit.bind(
            f"value_{self._store}",
            f"value_{self._store} = {self._store}.rows.value",
            f"put_{self._store} = {self._store}.rows.put",
            f"loaded_{self._store} = {self._store}.loaded",
        )
        self.before = function.fresh("old")
        """The variable of the value before the record."""
        function.line(
            f"{self.before} = value_{self._store}"
            f"({place.key_bytes}, {place.start}, loaded_{self._store})"
        )
        function.remember(node.store, self.before)
        self.restore = f"{self._store}.rows.restore({{}})"
        """The statement that sets the value back: see `undo_of`."""

    def put(self, new: str, timestamp: str) -> None:
        """Generate code that sets the value, and the timestamp if the record is the
        latest of the row.
        """
        function = self._function
        function.line(f"{self._timestamp} = put_{self._store}({new}, {timestamp})")
        if not self._node.emit_on_close:
            keep = f"{self._store}.rows.keep(process.headers or ())"
            function.if_headers_are_kept(self._node, keep)

    def timestamp(self) -> str:
        """Return the variable of the row's timestamp."""
        return self._timestamp


def _add_to_row(
    function: Body,
    node: Aggregate,
    record: RecordVariables,
    place: _Place,
    skip: str | None = None,
) -> None:
    """Generate code that aggregates a record into its row and forwards the row. It is
    the last code for this record.

    `skip`: the statement that goes on with the next record after a failure; None: the
    function's own.
    """
    forwards = _forwards(function, node)
    native = _is_native(function.compiler, node)
    row: _NativeRow | _LiveRow
    if native:
        row = _NativeRow(function, node, place)
        row_key = place.row_key(function) if forwards else ""
    else:
        row_key = place.row_key(function)
        row = _LiveRow(function, node, row_key)
    old = (
        _kept(function, node.store, row.before, plain=_is_count(node))
        if forwards and function.analysis.wants_old(node)
        else None
    )
    if old is not None:
        old = _begun(function, node, row.before, old, skip)
    value = _new_aggregate(function, node, record, row, skip)
    row.put(value, record.timestamp)
    if forwards:
        forwarded = _row(node, record, row_key, value, row.timestamp())
        function.forward(node, replace(forwarded, old=old))


def _forwards(function: Body, node: Aggregate) -> bool:
    """Whether each update of a row is forwarded at once."""
    return bool(
        not function.compiler.caches(node)
        and not node.emit_on_close
        and function.analysis.edges(node)
    )


def _add_to_windows(
    function: Body,
    node: Aggregate,
    windows: Windows,
    record: RecordVariables,
    key_bytes: str,
    birth: str,
) -> None:
    """Generate code that adds a record to all windows that hold it and were open at its
    birth.
    """
    operator_time = function.operator_time(node)
    pack = function.unit.constant("window_start_bytes", _START_BYTES)
    start = function.fresh("start")
    if isinstance(windows, TimeWindows):
        first = (
            f"max(0, {record.timestamp} - {windows.size_ms - windows.advance_ms}) // {windows.advance_ms} * "
            f"{windows.advance_ms}"
        )
        each = (
            f"{start} in range({first}, {record.timestamp} + 1, {windows.advance_ms})"
        )
        if windows.tumbles:
            each = f"{start} in ({record.timestamp} - {record.timestamp} % {windows.size_ms},)"
        start_bytes = f"{pack}({start})"
        closed = f"{start} + {windows.size_ms + windows.grace_ms}"
    else:  # of the user's, whose methods may fail
        name = function.unit.constant("windows", windows)
        found = function.fresh("found")
        start_bytes = function.fresh("start_bytes")
        closed = function.fresh("closed")
        each = f"{start_bytes}, {closed} in {found}"
        pair = f"({pack}({start}), {name}.end({start}) + {windows.grace_ms})"
        with function.guard("processing", node.name, skip=f"{found} = ()"):
            function.line(
                f"{found} = [{pair} for {start} in {name}.starts({record.timestamp})]"
            )
    late = function.fresh("late") if function.analysis.late_edges(node) else None
    if late:
        function.line(f"{late} = None")
    with function.loop(f"for {each}:"):
        with function.block(f"if {closed} <= {birth}:"):
            if late:
                function.line(f"{late} = {late} is not False")
            function.drop(node, "late")
        if late:
            function.line(f"{late} = False")
        place = _Place(key_bytes, start, start_bytes)
        if node.emit_on_close and not _is_native(function.compiler, node):
            key = place.row_key(function)
            place = _Place(key)
            function.line(
                f"{_closing(function.compiler, node, windows, operator_time)}.add({key})"
            )
        # A record fails once, with the windows that remain.
        _add_to_row(function, node, replace(record), place, skip="break")
    if late:
        with function.block(f"if {late}:"):
            function.call_late(node, record)


def _add_to_moving_windows(
    function: Body,
    node: Aggregate,
    record: RecordVariables,
    key_bytes: str,
    operator_time: str,
    before: str,
) -> None:
    """Generate code that adds a record to sliding windows or sessions, and forwards
    their updates. `before`: the operator time before the record.
    """
    unit = function.unit
    windows = node.windows
    updates = function.fresh("updates")
    assert windows is not None
    native = node.store.name in function.compiler.native_by_record
    made = _moving(node, native=native, forwards=_forwards(function, node))
    name = unit.made("windows", node.name, made, unit.store(node.store))
    reads = aggregate_reads(node)
    key = function.key(record) if reads.key else "None"
    value = function.value(record) if reads.value else "None"
    arguments = [key_bytes, key, value, record.timestamp, operator_time]
    # The record cache takes updates from native rows themselves.
    told = not native or node.emit_on_close or _forwards(function, node)
    if native:
        arguments.append(before)
    arguments.append(updates if told else "None")
    if told:
        function.line(f"{updates} = []")
    call = f"{name}.update({', '.join(arguments)})"
    if isinstance(windows, SlidingWindows):
        function.drop_late(
            node,
            record,
            f"{name}.is_late({record.timestamp}, {operator_time})",
        )
    taken = function.fresh("taken")
    with function.block("try:"):
        function.line(f"{taken} = {call}")
    with function.block("except Exception as error:"):
        function.line(f"fail({unit.site('processing', node.name)}, error)")
    if isinstance(windows, SessionWindows):
        with function.block("else:"):
            with function.block(f"if not {taken}:"):
                function.line(f"dropped[{unit.drop(node.name, 'late')}] += 1")
                function.call_late(node, record)
            if not told and function.analysis.edges(node):
                with function.block("elif headed:"):
                    function.line(
                        f"{unit.store(node.store)}.rows.keep(process.headers or ())"
                    )
    if not told:
        return
    if node.emit_on_close:
        with function.loop(f"for update in {updates}:"):
            function.line(
                f"{_closing(function.compiler, node, windows, operator_time)}.add(update.key)"
            )
        _forward_closed(function, node, operator_time)
    elif not function.analysis.edges(node):
        return
    elif function.compiler.caches(node):
        with function.loop(f"for update in {updates}:"):
            function.keep_headers(node, f"get_{unit.store(node.store)}(update.key)")
    elif isinstance(windows, SessionWindows):
        looked_up = any(
            isinstance(other, TableTableJoin) for other in function.analysis.nodes
        )
        in_order = f"{name}.in_turn({updates})" if looked_up else updates
        _forward_without_headers(function, node, in_order, operator_time)
    else:
        _forward_updates(function, node, updates, record.stream_time)


def _moving(
    node: Aggregate,
    *,
    native: bool,
    forwards: bool,
) -> Callable[[Any], object]:
    """Return the function that makes the sliding windows or sessions of a task, given
    its store.

    `native`: whether the store's rows are in native memory. `forwards`: whether updates
    are forwarded at once.
    """
    initializer: Any = node.initializer
    aggregator: Any = node.aggregator
    merger: Any = node.merger
    if aggregator is None:
        initializer = moving_windows.zero
        aggregator = moving_windows.counting
        merger = moving_windows.added
    elif initializer is None:
        initializer = moving_windows.none
        merger = moving_windows.merging(aggregator)
        aggregator = moving_windows.reducing(aggregator)
    given: dict[str, Any] = {
        "windows": node.windows,
        "initializer": initializer,
        "aggregator": aggregator,
    }
    if isinstance(node.windows, SlidingWindows):
        return partial(moving_windows.Sliding, **given)
    given["merger"] = merger
    if native:
        return partial(moving_windows.NativeSessions, **given)
    return partial(moving_windows.Sessions, **given, forwards=forwards)


def _forward_updates(
    function: Body,
    node: Aggregate,
    updates: str,
    stream_time: str,
) -> None:
    key, value, old, timestamp = (
        function.fresh(part) for part in ("key_bytes", "value", "old", "timestamp")
    )
    with function.loop(f"for {key}, {value}, {old}, {timestamp} in {updates}:"):
        row = RecordVariables(
            node.name,
            key,
            node.store.row_key,
            value,
            timestamp,
            stream_time,
            has_key=True,
        )
        function.forward(
            node,
            replace(row, old=old if function.analysis.wants_old(node) else None),
        )


def _forward_without_headers(
    function: Body,
    node: Aggregate,
    updates: str,
    operator_time: str,
) -> None:
    """Generate code that forwards updates of sessions without headers, as Kafka Streams
    does.
    """
    unit = function.unit
    name = f"{unit.identifier('windows', node.name)}_forward"
    if all(known.name != name for known in unit.functions):
        emit = function.compiler.function(name)
        emit.parameters = ("updates",)
        _forward_updates(emit, node, "updates", operator_time)
    function.line(f"process.under_headers(None, lambda: {name}({updates}))")


def _closing(
    compiler: Compiler,
    node: Aggregate,
    windows: AnyWindows,
    operator_time: str,
) -> str:
    """Return the name of the generated variable for a task's open windows, and generate
    the function that forwards them when they close.
    """
    unit = compiler.unit
    topics = tuple(sorted(unit.operator_times[operator_time].topics))
    native = _is_native(compiler, node) and isinstance(windows, TimeWindows)
    made = moving_windows.NativeClosing if native else moving_windows.Closing
    make = partial(_closing_windows, made, windows, node.name, topics, compiler.clocked)
    name = unit.made("closing", node.name, make, f"{unit.store(node.store)}, process")
    if f"{name}_due" not in unit.operator_times[operator_time].due:
        unit.operator_times[operator_time].due.append(f"{name}_due")
        unit.operator_times[operator_time].resumed.append(f"{name}.resume")
        due = compiler.function(f"{name}_due")
        due.over_batch = True
        if native:
            native_folds.forward_closed_at_once(due, node, name, operator_time)
        _forward_updates(
            due,
            node,
            f"process.held({name}.closed({operator_time}))",
            operator_time,
        )
    return name


def _is_native(compiler: Compiler, node: Aggregate) -> bool:
    """Whether the rows of an aggregation are in native memory and change one by one."""
    return node.store.name in compiler.native_by_record


def _closing_windows(
    made: type[moving_windows.Closing],
    windows: AnyWindows,
    node: str,
    topics: Sequence[str],
    clocked: bool,
    store: Any,
    process: Any,
) -> moving_windows.Closing:
    parts = process.parts_of(node, topics)
    return made(store, windows, parts, clocked=clocked)


def _forward_closed(
    function: Body,
    node: Aggregate,
    operator_time: str,
) -> None:
    windows = node.windows
    if node.emit_on_close and windows is not None:
        name = _closing(function.compiler, node, windows, operator_time)
        with function.block(f"if {name}.next <= {operator_time}:"):
            function.line(f"{name}_due()")


def _row(
    node: Aggregate,
    record: RecordVariables,
    key_bytes: str,
    value: str,
    timestamp: str,
) -> RecordVariables:
    """Return the update of a row as a record. If the record's key is the row's key, it
    is not deserialised twice.
    """
    key = record.key if node.windows is None and record.key_bytes == key_bytes else None
    serde = node.store.row_key or node.store.key
    row = RecordVariables(
        node.name,
        key_bytes,
        serde,
        value,
        timestamp,
        record.stream_time,
        has_key=True,
    )
    return replace(row, key=key, dense=_is_count(node))


def _is_count(node: Aggregate) -> bool:
    return node.aggregator is None


def _kept(
    function: Body,
    store: StoreSpec,
    before: str,
    *,
    plain: bool,
) -> str:
    """Generate a copy of the old value, because an aggregator may change the value in
    place; return its variable. `plain`: the value is of an immutable type, so no copy
    is needed.
    """
    if plain or store.value.immutable:
        return before
    old = function.fresh("old")
    unit = function.unit
    function.line(
        f"{old} = {unit.constant('snapshot', snapshot)}({before}, {unit.constant('value_serde', store.value)})"
    )
    return old


def _begun(
    function: Body,
    node: Aggregate,
    before: str,
    old: str,
    skip: str | None,
) -> str:
    """Generate the old value of a row and return its variable. The old value of a new
    row is the initial value, as in Kafka Streams. A reduce has no initial value.
    """
    if node.initializer is None and not _is_count(node):
        return old
    initial = (
        "0"
        if _is_count(node)
        else f"{function.unit.constant('initializer', node.initializer)}()"
    )
    return function.guarded(
        "old",
        f"{initial} if {before} is None else {old}",
        node,
        skip,
    )


def _new_aggregate(
    function: Body,
    node: Aggregate,
    record: RecordVariables,
    row: _NativeRow | _LiveRow,
    skip: str | None,
) -> str:
    """Generate the new value of a row; return its variable. A deleted row starts from
    the initial value.
    """
    old = row.before
    if node.aggregator is None:
        first = "1"
        later = f"{old} + 1"
    elif node.initializer is None:
        first = function.value(record)
        later = function.call_of("reducer", node.aggregator, record, (old, "value"))
    else:
        initial = f"{function.unit.constant('initializer', node.initializer)}()"
        first = function.call_of(
            "aggregator",
            node.aggregator,
            record,
            ("key", "value", initial),
        )
        later = function.call_of(
            "aggregator",
            node.aggregator,
            record,
            ("key", "value", old),
        )
    if node.aggregator is None:
        new = function.fresh("new")
        function.line(f"{new} = {first} if {old} is None else {later}")
        return new
    return function.guarded(
        "new",
        f"{first} if {old} is None else {later}",
        node,
        skip,
        undo_of(function, node.store, row.before, row.restore),
    )


def _in_tumbling_window(
    function: Body,
    node: Aggregate,
    windows: TimeWindows,
    record: RecordVariables,
    key_bytes: str,
    birth: str,
) -> _Place:
    """Generate code that computes the window of a record and drops a late record;
    return the place of the window's row.
    """
    start = function.fresh("start")
    start_bytes = function.fresh("start_bytes")
    pack = function.unit.constant("window_start_bytes", _START_BYTES)
    function.line(
        f"{start} = {record.timestamp} - {record.timestamp} % {windows.size_ms}"
    )
    function.drop_late(
        node,
        record,
        f"{start} + {windows.size_ms + windows.grace_ms} <= {birth}",
    )
    native = node.store.name in function.compiler.native_by_record
    if native and not _forwards(function, node):
        return _Place(key_bytes, start)
    if function.over_batch:
        # Most neighbours in a batch are in the same window.
        last = function.fresh("last_start")
        function.prologue.append(f"{last} = None")
        with function.block(f"if {start} != {last}:"):
            function.line(f"{last} = {start}")
            function.line(f"{start_bytes} = {pack}({start})")
    else:
        function.line(f"{start_bytes} = {pack}({start})")
    return _Place(key_bytes, start, start_bytes)


OPERATORS: Mapping[type[Node], Operator] = {
    Aggregate: aggregate,
    CogroupMerge: cogroup_merge,
    TableGroup: table_group,
    TableAggregate: table_aggregate,
}


def undo_of(
    function: Body,
    store: StoreSpec,
    before: str,
    restore: str,
) -> Sequence[str]:
    """Generate code before a call that may change the value of a row; return the lines
    that undo the change.

    `restore`: the statement that sets the value of the row to `{}`.

    A store hands out its rows as live objects, and an aggregator may change them in
    place before it raises. If a failed record may be dropped while the task goes on,
    the bytes of a mutable value are kept before each call *(about 1 us for a small
    dict)*. So the row is as it was before the record, as in Kafka Streams, where each
    call reads the row from its bytes. If the value cannot be serialised, the task ends.
    If every failure ends the task, nothing is generated. Turned down: a value read from
    bytes for each call (twice the cost); copies of flat dicts (the same cost).
    """
    if store.value.immutable or not function.compiler.may_drop:
        return ()
    kept = function.fresh("kept")
    unit = function.unit
    encode, decode = (
        unit.constant(f"{way}_value", getattr(store.value, way))
        for way in ("encode", "decode")
    )
    changeable = (
        f"if {before}.__class__ not in {unit.constant('unchangeable', UNCHANGEABLE)}:"
    )
    function.line(f"{kept} = None")
    with function.block(changeable):
        with function.block("try:"):
            function.line(f"{kept} = {encode}({before})")
        with function.block("except Exception:"):
            function.line(
                "pass  # it has no bytes: the next commit names it and ends the task, if it is still so"
            )
    return (
        changeable,
        f"    if {kept} is None:",
        "        raise  # nothing tells what the row was: dropping the record could leave a part of it",
        f"    {restore.format(f'{decode}({kept})')}",
    )
