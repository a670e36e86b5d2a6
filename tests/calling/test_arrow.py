"""Batches as Arrow columns: the results are those of a function that takes lists."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.calling.arrow_calls import arrow_columns, called_with_arrow
from coopstreams.calling.lanes import Call, Lane
from coopstreams.topology.calls import batching
from coopstreams.topology.errors import TopologyError

PATIENCE_S = 60.0
rows = st.fixed_dictionaries(
    {"name": st.text(), "number": st.integers(-(2**63), 2**63 - 1) | st.none()}
)


def same(columns: Any) -> Any:
    return columns


async def same_later(columns: Any) -> Any:
    return columns


def doubled(numbers: pa.Array) -> pa.Array:
    return pa.array([2 * number for number in numbers.to_pylist()])


@given(
    st.lists(rows | st.none(), max_size=10)
    | st.lists(st.floats(allow_nan=False) | st.none(), max_size=10)
)
def test_values_come_back_as_they_went(values: list[Any]) -> None:
    none = {"name": None, "number": None}
    in_columns = any(
        isinstance(value, dict) for value in values
    )  # there, None is a row of nulls
    expected = [none if value is None and in_columns else value for value in values]
    for given_back in (same, lambda columns: columns.to_pylist()):
        assert called_with_arrow(given_back, values) == expected
    if in_columns:
        assert (
            called_with_arrow(lambda columns: pa.Table.from_batches([columns]), values)
            == expected
        )


def test_dicts_are_columns_and_other_values_an_array() -> None:
    batch = arrow_columns([{"a": 1, "b": "x"}, {"a": 2}])
    assert batch.schema.names == ["a", "b"]
    assert batch["b"].to_pylist() == ["x", None]
    assert arrow_columns([1, 2]).type == pa.int64()


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (doubled, {}, [0, 2, 4]),
        (doubled, {"executor": "process"}, [0, 2, 4]),
        (same_later, {}, [0, 1, 2]),
    ],
)
def test_a_batch_is_given_in_columns_on_threads_in_processes_and_to_coroutines(
    function: Callable[..., Any], options: dict[str, Any], expected: list[int]
) -> None:
    told: queue.SimpleQueue[Sequence[Call]] = queue.SimpleQueue()
    calls = [Call(function, (number,), b"%d" % number) for number in range(3)]
    Lane(batching("f", function, max_records=3, arrow=True, **options), told.put).begin(
        calls
    )
    while not all(call.value is not None or call.error for call in calls):
        told.get(timeout=PATIENCE_S)
    assert [call.error for call in calls] == [None] * 3
    assert [call.value for call in calls] == expected


def test_without_pyarrow_it_is_refused_while_the_topology_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TopologyError, match="map_batches: arrow=True needs pyarrow"):
        batching("map_batches", same, arrow=True)
