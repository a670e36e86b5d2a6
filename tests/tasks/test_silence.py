"""The due advances of a silent partition's stream time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.log.log import RecordBatch
from coopstreams.tasks.silence import Silence
from coopstreams.topology.columns import NO_RECORDS, TopicPartition

IDLE_MS = 1000


def batch(stream_time: int, *, busy: bool = False, at_end: bool = True) -> RecordBatch:
    return RecordBatch(
        TopicPartition("t", 0), 0, NO_RECORDS, 0, stream_time, at_end, (), busy
    )


def test_it_advances_by_the_silence_once_for_each_interval() -> None:
    silence = Silence(IDLE_MS)
    silence.heard(batch(500, busy=True), 10.0)
    assert silence.advance(10.9) is None
    assert silence.advance(11.25) == 500 + 1250
    assert silence.advance(11.3) is None
    silence.heard(batch(1750), 11.4)  # its own mark
    assert silence.advance(12.25) == 500 + 2250


def test_a_record_of_any_key_range_ends_the_silence() -> None:
    silence = Silence(IDLE_MS)
    silence.heard(batch(500, busy=True), 10.0)
    silence.heard(batch(600, busy=True), 10.9)
    assert silence.advance(11.5) is None
    assert silence.advance(11.9) == 600 + 1000


def test_a_reader_that_has_records_before_it_hears_no_silence() -> None:
    silence = Silence(IDLE_MS)
    silence.heard(batch(500, busy=True, at_end=False), 10.0)
    assert silence.advance(99.0) is None
    assert silence.due_in(99.0) is None
    silence.heard(batch(500), 99.0)
    assert silence.due_in(99.25) == 0.75
    silence.broken()
    assert silence.advance(999.0) is None


def test_without_a_record_there_is_no_time_to_advance() -> None:
    silence = Silence(IDLE_MS)
    silence.heard(batch(-1), 0.0)
    assert silence.advance(99.0) is None


happenings = st.lists(
    st.tuples(
        st.sampled_from(["record", "behind", "mark", "look"]),
        st.integers(0, 3000),
        st.integers(0, 9000),
    ),
    max_size=30,
)


@given(happenings)
def test_stream_time_is_never_nearer_to_the_clock_than_at_the_last_record(
    some: list[tuple[str, int, int]],
) -> None:
    """Its lag behind the clock is never less than at the beginning of the silence."""
    silence, now_ms, stream_time, lag, advanced = Silence(IDLE_MS), 0, -1, 0, -IDLE_MS
    for what, passes_ms, time in some:
        now_ms += passes_ms
        if what in ("record", "behind"):
            stream_time = max(stream_time, time)
            lag = now_ms - stream_time
            silence.heard(
                batch(stream_time, busy=True, at_end=what == "record"), now_ms / 1000
            )
        elif what == "mark":
            silence.heard(batch(stream_time), now_ms / 1000)
        elif (told := silence.advance(now_ms / 1000)) is not None:
            assert stream_time >= 0
            assert told - 1 <= now_ms - lag
            assert now_ms - advanced >= IDLE_MS
            advanced, stream_time = now_ms, max(stream_time, told)
