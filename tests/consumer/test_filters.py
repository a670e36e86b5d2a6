"""The records that pass a filter; and when a commit in offset order has to wait."""

from __future__ import annotations

import pytest

from coopstreams.consumer.consumer_commit import behind
from coopstreams.consumer.filters import RecordFilter
from coopstreams.topology.columns import Columns


@pytest.mark.parametrize(
    ("filter_", "key", "value", "passes"),
    [
        (RecordFilter(), None, None, True),
        (RecordFilter(allow_keys=frozenset({b"a"})), b"a", b"", True),
        (RecordFilter(allow_keys=frozenset({b"a"})), b"b", b"", False),
        (RecordFilter(allow_keys=frozenset({b"a"})), None, b"", False),
        (RecordFilter(deny_keys=frozenset({b"a"})), b"a", b"", False),
        (RecordFilter(deny_keys=frozenset({b"a"})), None, b"", True),
        (RecordFilter(min_record_bytes=3), b"a", b"b", False),
        (RecordFilter(min_record_bytes=2, max_record_bytes=2), b"a", b"b", True),
        (RecordFilter(max_record_bytes=2), b"a", b"bc", False),
        (RecordFilter(max_record_bytes=0), b"", None, True),
    ],
)
def test_a_record_passes_if_it_meets_all_conditions(
    filter_: RecordFilter, key: bytes | None, value: bytes | None, passes: bool
) -> None:
    assert filter_.passes(key, value) is passes
    records = Columns([key, key], [value, value], [1, 2], [5, 7], [1, 2])
    assert list(filter_.columns(records).offsets) == ([5, 7] if passes else [])


def test_the_purgatory_of_the_proposal() -> None:
    # Everything below 40 is done; A has [40,44], B [45,49].
    assert behind({"tp": 45}, {"tp": 40}) == {"tp": 40}, "B waits"
    assert behind({"tp": 40}, {"tp": 40}) == {}, "A proceeds"
    assert behind({"tp": 45}, {"tp": 45}) == {}, "then B does"


def test_a_commit_waits_for_each_of_its_partitions_and_for_those_of_which_nothing_is_known() -> (
    None
):
    assert behind({"a": 5, "b": 5, "c": 5}, {"a": 9, "b": 4, "c": None}) == {
        "b": 4,
        "c": None,
    }
