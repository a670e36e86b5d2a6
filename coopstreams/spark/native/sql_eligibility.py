"""Decides which sub-topologies Spark SQL can fold with the same rows as Python, and why
others cannot.

Pure. It decides by nodes, functions and serdes, before any record is read. Cases that
depend on the records (an invalid number, a condition on a text, a sum that overflows)
are counted as doubts by `native_frames`; a doubt leaves the sub-topology to Python.

msgspec checks every field of typed JSON, read or not. So a type is plain only if no
code and no constraint of its own decides about a record, and SQL knows all fields.

Invariant: a sub-topology is translated as a whole or not at all, and only if every
function in it is known here. To refuse more is safe. What is accepted must be written
in `sql_values` (a value), `sql_expressions` (an expression) and `native_frames` (a fold
or a window) with the same bytes, and tested against Python there.
Turned down: reading lambdas (bytecode proves nothing
about the types it meets), nested types, floats of plain JSON in a store of plain JSON
(1 and 1.0 have different bytes there).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
)

import msgspec
from msgspec import inspect

from coopstreams.spark.native.sql_expressions import unreadable
from coopstreams.topology import serdes
from coopstreams.topology.fields import FLOAT, NUMBER, Expression, field, fields_of
from coopstreams.topology.graph.known_folds import Kind, Number, known_kind
from coopstreams.topology.graph.nodes import (
    Aggregate,
    Filter,
    MapValues,
    Node,
    Sink,
    Source,
    SubTopology,
    ToStream,
)
from coopstreams.topology.json_text import decoder_of
from coopstreams.topology.serde import Serde
from coopstreams.topology.windows import TimeWindows

Values = Literal["any", "int64", "float64", "json"]

_VALUES: tuple[tuple[Serde[Any], Values], ...] = (
    (serdes.json, "json"),
    (serdes.int64, "int64"),
    (serdes.float64, "float64"),
)
_NAME = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]+')


Plain: TypeAlias = Literal["str", "int", "float", "bool"]

_KINDS: Final[tuple[tuple[inspect.Type, Plain], ...]] = (
    (inspect.StrType(), "str"),
    (inspect.IntType(), "int"),
    (inspect.FloatType(), "float"),
    (inspect.BoolType(), "bool"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A field of typed JSON whose type is `str`, `int`, `float` or `bool`, or one of
    these and None.

    `key`: its name in JSON. `kind`: its type. `optional`: it may be null. `required`: a
    record without it is invalid. `default`: the JSON text of its value in a record
    without it; None: the default is not of type `kind`.
    """

    key: str
    kind: Plain
    optional: bool
    required: bool
    default: str | None


class Where(NamedTuple):
    """A filter: its condition, and whether it keeps the records of which that is not
    true.
    """

    condition: Expression
    negate: bool


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregation into a store, as SQL sees it.

    Shape: `values`: how record values become numbers: not at all ("any", to count),
    from 8 bytes, or from JSON; with `field` the JSON is an object that has it.
    `number`: the type of the folded number. `drops_null_values`: whether a record
    without a value is dropped. `parts`: the fields of typed JSON by attribute; None:
    the JSON has no declared type. `where`: the filters before it. `mapped`: the
    expression whose value is folded, if it is more than a field. Units: `size_ms`,
    `advance_ms` and `close_ms` (size + grace) of windows; 0 without windows.
    """

    node: str
    store: str
    fold: Kind
    values: Values
    field: str | None
    drops_null_values: bool
    number: Number = "int64"
    parts: Mapping[str, Part] | None = None
    where: tuple[Where, ...] = ()
    mapped: Expression | None = None
    size_ms: int = 0
    advance_ms: int = 0
    close_ms: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that the fold reads."""
        return tuple(dict.fromkeys(_fields(self.where, self.folded)))

    @property
    def folded(self) -> Expression | None:
        """The expression whose value is folded; None: the whole value, or none."""
        return self.mapped if self.field is None else field(self.field)

    @property
    def ordered(self) -> bool:
        """Whether its result depends on the order of the records."""
        return self.size_ms > 0 or (self.fold == "sum" and self.number == "float64")

    @property
    def mixed(self) -> bool:
        """Whether the fold adds floats that may be mixed with integers, which Python
        adds without rounding.
        """
        folded = self.folded
        typed = folded is not None and _kind(folded, self.parts) == "float"
        return (
            self.number == "float64"
            and self.fold == "sum"
            and self.values != "float64"
            and not typed
        )


def translated(
    part: SubTopology,
    outputs: str = "none",
) -> tuple[Aggregation, ...] | str:
    """Return the aggregations of a sub-topology, or why it is left to Python.

    `outputs`: "none", "topic" or "table", as `spark.plan.Outputs`.
    """
    if outputs != "none":
        return (
            "outputs are wanted, which are updates of rows; SQL knows the last one only"
        )
    if len(part.topics) != 1 or not part.stores:
        return (
            "it has no store to fold into"
            if not part.stores
            else f"it reads {len(part.topics)} topics"
        )
    nodes = {node.name: node for node in part.nodes}
    found = list[Aggregation]()
    for node in part.nodes:
        made = (
            _aggregation(node, nodes)
            if isinstance(node, Aggregate)
            else _other(node, nodes)
        )
        if isinstance(made, str):
            return f"{node.name} {made}"
        if made is not None:
            found.append(made)
    return tuple(found)


def _other(node: Node, nodes: dict[str, Node]) -> str | None:
    """Return why a node that is no aggregation cannot be translated; None if it can."""
    match node:
        case Source():
            return _source(node)
        case MapValues(table=False, with_key=False, mapper=Expression() as mapper):
            return unreadable(mapper) or _step(node, nodes)
        case MapValues():
            return 'calls a Python function; field("...") could be read'
        case Filter(table=False, predicate=Expression() as condition):
            return unreadable(condition) or _step(node, nodes)
        case Filter():
            return (
                'calls a Python function; a condition as field("...") > 1 could be read'
                if not node.table
                else "filters a table"
            )
        case ToStream():
            return None
        case Sink():
            return _sink(node, nodes)
        case _:
            return _unknown(node)


def _unknown(node: object) -> str:
    return f"is a {type(node).__name__}, which has no translation"


def _source(node: Source) -> str | None:
    if node.idle_ms is not None:
        return "advances time where its topic is silent"
    if node.timestamp is not None:
        return "takes timestamps by a Python function"
    return None


def _sink(node: Sink, nodes: dict[str, Node]) -> str | None:
    if node.partitioner is not None:
        return "chooses partitions by a Python function"
    if node.internal:
        return _unknown(node)
    if not _passes(node, nodes):
        return "writes rows with other serdes than their store's"
    return None


def _step(node: Node, nodes: dict[str, Node]) -> str | None:
    """Return why a step on the way to an aggregation cannot be translated; None if it
    can.
    """
    if not isinstance(nodes[node.parents[0]], Source | Filter):
        return "stands behind another step"
    # SQL evaluates only what a store needs; Python calls every function, and it may
    # raise.
    return (
        None
        if any(node.name in other.parents for other in nodes.values())
        else "leads nowhere"
    )


def _passes(node: Sink, nodes: dict[str, Node]) -> bool:
    above = nodes[node.parents[0]]
    while isinstance(above, ToStream):
        above = nodes[above.parents[0]]
    return (
        isinstance(above, Aggregate)
        and node.key == (above.store.row_key or above.store.key)
        and node.value == above.store.value
    )


def _aggregation(node: Aggregate, nodes: dict[str, Node]) -> Aggregation | str:
    store = node.store
    fold = known_kind(node)
    if fold is None:
        return "calls a Python function; reduce(operator.add), reduce(min), reduce(max) and count() could be read"
    way = _way(nodes[node.parents[0]], nodes)
    if way is None:
        return "stands behind another step"
    source, where, mapped = way
    if more := _more(node, source):
        return more
    parts = None if not where and mapped is None else parts_of(source.value)
    values = _values(source, where, mapped, fold, parts)
    if values is None:
        return (
            f'folds values of {source.value}; int64, float64, JSON, or field("...") of plain JSON or of a plain type '
            "have numbers that SQL can read"
        )
    if strange := _strange(_fields(where, mapped), parts):
        return strange
    number = _number(
        store.value,
        fold,
        values if mapped is None else _kind(mapped, parts),
    )
    if number is None:
        return (
            f"keeps values as {store.value}; int64 or plain JSON have one form for an integer, float64 or plain JSON "
            "for a float whose type is known"
        )
    return Aggregation(
        node.name,
        store.name,
        fold,
        values,
        mapped.name if isinstance(mapped, field) else None,
        node.drops_null_values,
        number,
        parts,
        where,
        None if isinstance(mapped, field) else mapped,
        *_sizes_ms(node.windows),
    )


def _kind(mapped: Expression, parts: Mapping[str, Part] | None) -> str:
    """Return what the number is that an expression has: "int", "float", "json" if it
    may be both, or what it is instead of a number.
    """
    if isinstance(mapped, field):
        return "json" if parts is None else parts[mapped.name].kind
    if not mapped.kinds & NUMBER:
        return "str"
    return "float" if mapped.kinds <= FLOAT else "json"


def _more(node: Aggregate, source: Source) -> str | None:
    """Return what else an aggregation does, which SQL cannot; None if it only folds."""
    windows = node.windows
    more = {
        "is told once a window closes": node.emit_on_close,
        "is cogrouped": node.cogrouped,
        "says what a row was before": node.sends_old,
        "keeps the past of its rows": node.store.history_ms is not None,
        "has rows that expire": node.store.ttl_ms is not None,
        "has windows that follow the records, or are of your own": windows is not None
        and not isinstance(windows, TimeWindows),
        "writes keys with another serde than they are read with": node.store.key
        != source.key,
    }
    return next((why for why, holds in more.items() if holds), None)


def _fields(
    where: Sequence[Where],
    mapped: Expression | None,
) -> tuple[str, ...]:
    """Return the fields that filters and a fold read."""
    read = [name for each in where for name in fields_of(each.condition)]
    return (*read, *fields_of(mapped))


def _sizes_ms(windows: object) -> tuple[int, int, int]:
    """Return size, advance, and size with grace; zeros without windows."""
    if not isinstance(windows, TimeWindows):
        return 0, 0, 0
    return windows.size_ms, windows.advance_ms, windows.size_ms + windows.grace_ms


def _way(
    above: Node,
    nodes: dict[str, Node],
) -> tuple[Source, tuple[Where, ...], Expression | None] | None:
    """Return the source of an aggregation, its filters, and the expression of its
    values.

    Return None if an unknown step is between them.
    """
    mapped = None
    where: tuple[Where, ...] = ()
    if isinstance(above, MapValues) and isinstance(above.mapper, Expression):
        mapped = above.mapper
        above = nodes[above.parents[0]]
    while isinstance(above, Filter) and isinstance(above.predicate, Expression):
        where = (Where(above.predicate, above.negate), *where)
        above = nodes[above.parents[0]]
    return (above, where, mapped) if isinstance(above, Source) else None


def _values(
    source: Source,
    where: Sequence[Where],
    mapped: Expression | None,
    fold: Kind,
    parts: Mapping[str, Part] | None,
) -> Values | None:
    """Return how SQL gets a number from each value: "any" (it needs none), "int64",
    "float64" or "json"; None: it cannot.
    """
    if where or mapped is not None:
        if source.value != serdes.json and parts is None:
            return None  # conditions and fields are about objects
        if mapped is not None:
            return "json"
        return "any" if fold == "count" else None
    if fold == "count":
        return "any"
    return next((name for serde, name in _VALUES if serde == source.value), None)


def _strange(names: Sequence[str], parts: Mapping[str, Part] | None) -> str | None:
    """Return why SQL may find other values of these fields in a record than Python
    does; None if it finds the same.

    Both must find a field, and JSON must have one spelling of its name: SQL does not
    read escapes in names. `parts`: the fields that the type of the record declares;
    None: JSON of any form.
    """
    if parts is not None and (missing := [name for name in names if name not in parts]):
        return f"reads the field {missing[0]!r}, which its type does not have"
    keys = names if parts is None else [part.key for part in parts.values()]
    odd = next((key for key in keys if not _NAME.fullmatch(key)), None)
    return (
        None
        if odd is None
        else f"reads objects with the field {odd!r}, which JSON may write in several ways"
    )


def _number(
    store: Serde[Any],
    fold: Kind,
    values: str,
) -> Number | None:
    """Return the type of number that a fold adds or compares; None if SQL does not know
    the bytes of its result.

    `store`: the serde of its rows. `values`: what it folds, as `_values` or `_kind` say.
    """
    floats = values in ("float", "float64")
    # A count is a whole number to `native_frames`; hardly anybody keeps it as a float.
    if values in ("str", "bool") or (fold == "count" and store == serdes.float64):
        return None
    if store == serdes.float64 or (store == serdes.json and floats):
        return "float64"
    return "int64" if store in (serdes.int64, serdes.json) and not floats else None


def parts_of(serde: Serde[Any]) -> Mapping[str, Part] | None:
    """Return the fields of the typed JSON that a serde reads, by attribute.

    None: the serde reads no typed JSON; or SQL cannot read each field as Python does,
    because one is not a `str`, `int`, `float` or `bool`, or code of the type decides
    about a record.
    """
    decoder = decoder_of(serde.decode)
    if (
        decoder is None
        or not decoder.strict
        or decoder.dec_hook is not None
        or decoder.float_hook is not None
    ):
        return None
    match inspect.type_info(decoder.type):
        case (
            inspect.StructType(
                cls=cls,
                fields=fields,
                tag_field=None,
                array_like=False,
                forbid_unknown_fields=False,
            )
            | inspect.DataclassType(cls=cls, fields=fields)
            | inspect.TypedDictType(cls=cls, fields=fields)
        ):
            pass
        case _:
            return None
    if hasattr(cls, "__post_init__"):
        return None
    parts = {each.name: part for each in fields if (part := _part(each)) is not None}
    return parts if len(parts) == len(fields) else None


def _part(each: inspect.Field) -> Part | None:
    """Return the description of a field of typed JSON; None if its type is not `str`,
    `int`, `float` or `bool`, with or without None.
    """
    members = (
        each.type.types if isinstance(each.type, inspect.UnionType) else (each.type,)
    )
    types = [member for member in members if not isinstance(member, inspect.NoneType)]
    kind: Plain | None = next(
        (kind for plain, kind in _KINDS if types == [plain]),
        None,
    )
    if kind is None:
        return None
    return Part(
        each.encode_name,
        kind,
        len(members) > len(types),
        each.required,
        _json(each.default, kind),
    )


def _json(default: Any, kind: Plain) -> str | None:
    """Return a default value as JSON; None if it is not of the field's type. A missing
    float field whose default is an int is an int in Python.
    """
    if default is not None and (
        type(default).__name__ != kind
        or default in (math.inf, -math.inf)
        or default != default
    ):
        return None
    return msgspec.json.encode(default).decode()
