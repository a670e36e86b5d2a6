"""Sessions: runs of records of a key without a long pause; a record between two
sessions merges them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coopstreams import SessionWindows, StreamsBuilder, Windowed, serdes
from coopstreams.testing import Row, TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from tests.durations import ms


@cache
def counts(gap: int, grace: int = 0) -> Topology:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.text)
    stream.group_by_key().windowed_by(
        SessionWindows(milliseconds=gap, grace=ms(grace))
    ).count(store="counts", retention=ms(1 << 40)).to_stream().to("out")
    return builder.build()


def outputs(driver: TopologyTestDriver) -> list[tuple[str, Any, int]]:
    return [
        (str(record.key), record.value, record.timestamp) for record in driver.outputs()
    ]


def test_a_record_near_a_session_extends_it_the_old_one_is_deleted_first() -> None:
    with TopologyTestDriver(counts(gap=5)) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for timestamp in (10, 15, 21):
            topic.send("a", "x", timestamp)
        assert outputs(driver) == [
            ("[a@10/10]", 1, 10),
            ("[a@10/10]", None, 10),
            ("[a@10/15]", 2, 15),
            ("[a@21/21]", 1, 21),
        ]
        assert driver.store("counts").all() == [
            Row(Windowed("a", 10, 15), 2, 15),
            Row(Windowed("a", 21, 21), 1, 21),
        ]
        assert driver.store("counts").get(Windowed("a", 10, 15)) == 2


def test_a_record_that_fails_leaves_the_session_that_it_was_to_extend() -> None:
    builder = StreamsBuilder("app")
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    stream.group_by_key().windowed_by(SessionWindows(milliseconds=5)).aggregate(
        lambda: 0,
        lambda _, value, total: total + 6 // value,
        lambda _, one, other: one + other,
        value=serdes.int64,
    ).to_stream().to("out")
    with TopologyTestDriver(
        builder.build(), config={"processing.exception.handler": "continue"}
    ) as driver:
        for value, timestamp in [(1, 10), (0, 12), (2, 14)]:
            driver.input("in", serdes.text, serdes.int64).send("a", value, timestamp)
        assert outputs(driver) == [
            ("[a@10/10]", 6, 10),
            ("[a@10/10]", None, 10),
            ("[a@10/14]", 9, 14),
        ]


def test_a_late_record_bridges_two_sessions() -> None:
    with TopologyTestDriver(counts(gap=5, grace=100)) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for timestamp in (10, 20, 15):
            topic.send("a", "x", timestamp)
        assert outputs(driver)[2:] == [
            ("[a@10/10]", None, 10),
            ("[a@20/20]", None, 20),
            ("[a@10/20]", 3, 20),
        ]


def test_a_session_is_closed_when_gap_and_grace_have_passed_since_its_end_by_any_key() -> (
    None
):
    with TopologyTestDriver(counts(gap=5, grace=2), ranges=4) as driver:
        topic = driver.input("in", serdes.text, serdes.text)
        for key, timestamp in [("a", 10), ("b", 17), ("a", 10), ("b", 18), ("a", 10)]:
            topic.send(key, "x", timestamp)
        assert driver.store("counts").get(Windowed("a", 10, 10)) == 2
        assert [(reason, count) for (_, reason), count in driver.dropped.items()] == [
            ("late", 1)
        ]


def test_reduce_and_aggregate_work_in_sessions(flow: Any) -> None:
    def both(stream: Any) -> Any:
        sessions = stream.group_by_key().windowed_by(
            SessionWindows(milliseconds=5, grace=ms(50))
        )
        reduced = sessions.reduce(lambda total, value: total + value).to_stream()
        folded = sessions.aggregate(
            str,
            lambda key, value, text: f"{text}{value}",
            lambda key, one, other: f"({one},{other})",
            value=serdes.json,
        )
        return reduced.map(
            lambda at, value: (str(at), value), key=serdes.text, value=serdes.json
        ).merge(
            folded.to_stream().map(
                lambda at, value: (str(at), value), key=serdes.text, value=serdes.json
            )
        )

    assert flow(both, ("a", 1, 1), ("a", 2, 9), ("a", 4, 5))[4:] == [
        ("[a@1/1]", None, 1),
        ("[a@9/9]", None, 9),
        ("[a@1/9]", 7, 9),
        ("[a@1/1]", None, 1),
        ("[a@9/9]", None, 9),
        ("[a@1/9]", "((,1),2)4", 9),
    ]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200)), max_size=30),
    st.integers(0, 20),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_sessions_equal_the_offline_merge_of_intervals(
    records: list[tuple[str, int]], gap: int, ranges: int, commits: bool
) -> None:
    expected: dict[Windowed[str], int] = {}
    for key in "abc":
        runs: list[list[int]] = []
        for timestamp in sorted(at for k, at in records if k == key):
            if runs and timestamp - runs[-1][-1] <= gap:
                runs[-1].append(timestamp)
            else:
                runs.append([timestamp])
        expected |= {Windowed(key, run[0], run[-1]): len(run) for run in runs}
    with TopologyTestDriver(counts(gap, grace=1000), ranges) as driver:
        for key, timestamp in records:
            driver.input("in", serdes.text, serdes.text).send(key, "x", timestamp)
            if commits:
                driver.commit()
        assert {row.key: row.value for row in driver.store("counts").all()} == expected
