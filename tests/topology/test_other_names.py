"""What Kafka Streams, Faust and Quix Streams call it: an attribute that is missing says
what to write.
"""

from __future__ import annotations

import copy
import re
from datetime import timedelta
from typing import Any

import pytest

from coopstreams import StreamsBuilder, TimeWindows, serdes
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compatibility.other_names import OtherNames


def objects() -> dict[str, Any]:
    """Return an object of each class whose names others have, and their classes."""
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    table = builder.table("rows", key=serdes.text, value=serdes.text)
    grouped = stream.group_by_key()
    found = [
        builder,
        stream,
        table,
        grouped,
        grouped.windowed_by(TimeWindows(minutes=1)),
        table.group_by(lambda k, v: (v, v), key=serdes.text),
    ]
    return {type(one).__name__: one for one in found}


OBJECTS = objects()


@pytest.mark.parametrize(
    ("of", "name", "written"),
    [
        ("KTable", "to", ".to_stream().to(...)"),
        ("KTable", "foreach", ".to_stream().foreach(...)"),
        ("KTable", "toStream", "to_stream"),
        (
            "KTable",
            "windowed_by",
            "it in front of the aggregation that makes the table",
        ),
        ("KTable", "final", ".suppress(until_window_closes()).to_stream()"),
        ("KStream", "count", ".group_by_key(), or .group_by(...), then .count(...)"),
        ("KStream", "mapValues", "map_values"),
        ("KStream", "flatTransformValues", ".process_values(...)"),
        (
            "KStream",
            "tumbling_window",
            ".group_by_key().windowed_by(TimeWindows(minutes=1))",
        ),
        ("KStream", "to_topic", ".to(...)"),
        ("KGroupedStream", "windowedBy", "windowed_by"),
        ("KGroupedStream", "sum", ".reduce(operator.add)"),
        (
            "TimeWindowedKStream",
            "to_stream",
            ".count(), .reduce(...) or .aggregate(...), then .to_stream()",
        ),
        ("KGroupedTable", "windowed_by", "windows of a stream"),
        ("StreamsBuilder", "globalTable", "global_table"),
        ("StreamsBuilder", "dataframe", '.stream("topic", key=..., value=...)'),
        (
            "StreamsBuilder",
            "addStateStore",
            "stream.process(..., stores=[key_value_store(...)])",
        ),
    ],
)
def test_a_name_of_another_library_says_what_to_write(
    of: str, name: str, written: str
) -> None:
    with pytest.raises(AttributeError) as missing:
        getattr(OBJECTS[of], name)
    assert str(missing.value).startswith(
        f"'{of}' object has no attribute '{name}': write {written}"
    )


def test_other_names_are_told_as_ever_and_similar_ones_by_python() -> None:
    for one in OBJECTS.values():
        with pytest.raises(AttributeError, match=r"no attribute 'fiter'$") as missing:
            getattr(one, "fiter")  # noqa: B009
        assert (missing.value.name, missing.value.obj) == ("fiter", one)
        assert not hasattr(one, "__aiter__")
        assert type(copy.copy(one)) is type(one)


def test_each_answer_is_one() -> None:
    """No name that is told is an operator of the class itself, and what is to be
    written exists.
    """
    known = {name for one in OBJECTS.values() for name in dir(one)} | {
        "count",
        "left_join",
        "branch",
        "run",
        "build",
    }
    functions = {
        "TimeWindows",
        "SlidingWindows",
        "JoinWindows",
        "TopologyBuilder",
        "CoopStreams",
        "timedelta",
    }
    functions |= {"until_window_closes", "key_value_store"}
    builder = {"add_global_store", "add_processor", "add_sink", "add_source"}
    for one in OBJECTS.values():
        assert isinstance(one, OtherNames)
        for name, written in one._written.items():
            assert not hasattr(type(one), name), (
                f"{name} is an operator of {type(one).__name__}"
            )
            assert (
                set(re.findall(r"([a-zA-Z_]\w*)\(", written))
                <= known | functions | builder
            ), written


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("String", "serdes.text"),
        ("Long", "serdes.int64"),
        ("ByteArray", "serdes.raw"),
        ("JSON", "json"),
        ("float", "serdes.float64"),
    ],
)
def test_a_serde_of_another_name_says_what_to_write(name: str, written: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"has no attribute '{name}': write {written}$"
    ):
        getattr(serdes, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'jsn'$"):
        getattr(serdes, "jsn")  # noqa: B009


def test_a_builder_in_the_place_of_its_topology_says_so() -> None:
    builder: Any = StreamsBuilder("app")
    with pytest.raises(
        AttributeError, match=r"write builder\.build\(\), which returns the topology"
    ):
        TopologyTestDriver(builder)


def test_the_length_of_windows_may_stand_first_as_that_of_join_windows() -> None:
    assert TimeWindows(timedelta(minutes=1)) == TimeWindows(minutes=1)
