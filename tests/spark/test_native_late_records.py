"""The spans of windows show the same late records as a sort of all records."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.spark.native.late_records import SPANS, any_late, merged

TIMES = st.lists(st.integers(0, 60), max_size=30)


def windows_of(time: int, size: int, advance: int) -> range:
    first = max(0, time - size + advance)
    return range(first - first % advance, time + 1, advance)


def spans(times: Sequence[int], size: int, advance: int, grace: int) -> pa.Table:
    rest, rows = (size + grace) % advance, list[list[int | None]]()
    for offset, time in enumerate(times):
        for start in windows_of(time, size, advance):
            into = time - start
            opened = offset if into < advance else None
            rows.append(
                [start, opened, offset if rest <= into < advance else None, offset]
            )
    return pa.table([[row[at] for row in rows] for at in range(4)], schema=SPANS)


def late_in_order(times: Sequence[int], size: int, advance: int, grace: int) -> bool:
    reached = -1
    for time in times:
        reached = max(reached, time)
        if any(
            start <= reached - size - grace for start in windows_of(time, size, advance)
        ):
            return True
    return False


@pytest.mark.ci
@given(
    TIMES, st.integers(1, 9), st.integers(1, 4), st.integers(0, 12), st.integers(1, 5)
)
def test_spans_tell_what_the_order_tells(
    times: list[int], advance: int, advances: int, grace: int, pieces: int
) -> None:
    size = advance * advances
    found = spans(times, size, advance, grace)
    parts = [
        merged([found.slice(at, len(found) // pieces + 1)])
        for at in range(0, len(found), len(found) // pieces + 1)
    ]
    late = any_late([SPANS.empty_table(), *parts], advance, size + grace)
    assert late == late_in_order(times, size, advance, grace)


def test_a_record_is_late_once_its_window_and_grace_are_over() -> None:
    for last, late in ((14, False), (15, True)):
        assert any_late([spans([3, last, 4], 10, 10, 5)], 10, 15) is late
