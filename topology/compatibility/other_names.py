"""Names of operators in Kafka Streams, Faust and Quix Streams, each with what to write
in coopstreams.

A class with such names raises an AttributeError for them that says what to write.
Turned down: aliases (two names for one operator).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class OtherNames:
    """The base of a class whose operators have other names in other libraries."""

    __slots__ = ()

    _written: ClassVar[Mapping[str, str]] = {}
    """What to write in coopstreams, by the other library's name in small letters with
    underscores.
    """

    if (
        not TYPE_CHECKING
    ):  # with a __getattr__, a type checker would accept every attribute name

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that says what to write. If the name is not
            listed, Python suggests a similar one.
            """
            raise missing(self, f"{type(self).__name__!r} object", name, self._written)


def missing(
    of: object,
    what: str,
    name: str,
    written: Mapping[str, str],
) -> AttributeError:
    """Return the error for an attribute that `of` lacks.

    `what`: words for `of`. `written`: as of `OtherNames`.
    """
    told = f"{what} has no attribute {name!r}"
    snake = _CAPITAL.sub("_", name).lower()
    here = written.get(snake) or (
        snake if snake != name and hasattr(of, snake) else None
    )
    return (
        AttributeError(told, name=name, obj=of)
        if here is None
        else AttributeError(f"{told}: write {here}")
    )


_TUMBLING = "windowed_by(TimeWindows(minutes=1))"
_HOPPING = "windowed_by(TimeWindows(minutes=1, advance=timedelta(seconds=10)))"
_WINDOWED = {
    "hopping": _HOPPING,
    "hopping_window": _HOPPING,
    "sliding_window": "windowed_by(SlidingWindows(minutes=1))",
    "tumbling": _TUMBLING,
    "tumbling_window": _TUMBLING,
}
_REDUCED = {
    "sum": ".reduce(operator.add)",
    "min": ".reduce(min)",
    "max": ".reduce(max)",
    "agg": ".aggregate(...)",
    "collect": ".aggregate(list, lambda key, value, all: [*all, value], value=serdes.json)",
}


def _after(before: str, written: Mapping[str, str]) -> dict[str, str]:
    return {name: before + text for name, text in written.items()}


def _behind(before: str, *names: str) -> dict[str, str]:
    return {name: f"{before}{name}(...)" for name in names}


_OF_STREAMS = (
    "flat_map",
    "flat_map_values",
    "foreach",
    "group_by_key",
    "map",
    "merge",
    "peek",
    "print",
    "process",
    "process_values",
    "repartition",
    "select_key",
    "split",
    "to",
    "to_sink",
)
_GROUPED_FIRST = ".group_by_key(), or .group_by(...), then ."
_AGGREGATED_FIRST = ".count(), .reduce(...) or .aggregate(...), then ."

STREAM = {
    **_behind(
        _GROUPED_FIRST,
        "aggregate",
        "cogroup",
        "count",
        "mean",
        "reduce",
        "windowed_by",
    ),
    **_behind(".group_by_key().count(), or another aggregation, then .", "suppress"),
    **_after(".group_by_key().", _WINDOWED),
    **_after(".group_by_key()", _REDUCED),
    "apply": ".map_values(...), or .flat_map_values(...) for several values",
    "branch": ".split().branch(...)",
    "concat": ".merge(...)",
    "flat_transform": ".process(...)",
    "flat_transform_values": ".process_values(...)",
    "join_asof": ".join(...) with a table that has history=",
    "join_interval": ".join(...) with a stream and windows=JoinWindows(...)",
    "join_lookup": ".join(...) with a global_table",
    "sink": ".to_sink(...)",
    "through": ".repartition(...)",
    "to_stream": "nothing: it is a stream already",
    "to_topic": ".to(...)",
    "transform": ".process(...)",
    "transform_values": ".process_values(...)",
    "update": ".peek(...)",
}
TABLE = {
    **_behind(".to_stream().", *_OF_STREAMS),
    **_behind(".group_by(...).", "aggregate", "count", "reduce"),
    **_after(".to_stream().group_by_key().", _WINDOWED),
    "current": ".to_stream()",
    "final": ".suppress(until_window_closes()).to_stream()",
    "sink": ".to_stream().to_sink(...)",
    "through": ".to_stream().to(...)",
    "to_topic": ".to_stream().to(...)",
    "windowed_by": "it in front of the aggregation that makes the table: .group_by_key().windowed_by(...).count()",
}
_LIKE_A_TABLE = {
    **_behind(_AGGREGATED_FIRST, "filter", "join", "map_values", "suppress"),
    **_behind(f"{_AGGREGATED_FIRST}to_stream().", "foreach", "print", "to"),
    "to_stream": f"{_AGGREGATED_FIRST}to_stream()",
}
GROUPED_STREAM = {
    **_LIKE_A_TABLE,
    **_after(".", _WINDOWED),
    **_REDUCED,
}
WINDOWED_STREAM = {
    **_LIKE_A_TABLE,
    **_REDUCED,
    "current": f"{_AGGREGATED_FIRST}to_stream()",
    "final": f"{_AGGREGATED_FIRST}suppress(until_window_closes()).to_stream()",
}
GROUPED_TABLE = {
    **_LIKE_A_TABLE,
    "windowed_by": "windows of a stream: .to_stream() of the table, then .group_by(...).windowed_by(...)",
}
BUILDER = {
    **_behind(
        "TopologyBuilder(...).",
        "add_global_store",
        "add_processor",
        "add_sink",
        "add_source",
    ),
    "add_state_store": "stream.process(..., stores=[key_value_store(...)])",
    "agent": '.stream("topic", key=..., value=...), and an operator for each step',
    "application_id": "builder.build(), which returns the topology",
    "dataframe": '.stream("topic", key=..., value=...)',
    "run": "CoopStreams(builder.build(), settings).run(), or start it with `coopstreams run`",
    "start": "CoopStreams(builder.build(), settings).run(), or start it with `coopstreams run`",
    "topic": '.stream("topic", key=..., value=...)',
}
SERDES = {
    **dict.fromkeys(("string", "str", "utf8"), "serdes.text"),
    **dict.fromkeys(("bytes", "byte_array"), "serdes.raw"),
    **dict.fromkeys(("double", "float"), "serdes.float64"),
    **dict.fromkeys(("int", "long"), "serdes.int64"),
    "integer": "serdes.int64, or for Java's Integer, which has 4 bytes, a Serde of yours",
}
