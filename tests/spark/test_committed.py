"""The decisions of a rebuild, without Kafka and Spark: the records of each task, the
number of key ranges, and the differences of tables.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    Processor,
    StreamsBuilder,
    TimeWindows,
    Topology,
    key_value_store,
    serdes,
    until_window_closes,
)
from coopstreams.commit.offset_runs import normalise
from coopstreams.commit.record import Segment
from coopstreams.spark import plan as planning
from coopstreams.spark.changelog_repair import Differences, differences
from coopstreams.spark.committed_records import Cut, Now, Rebuild, Stands, aligned
from coopstreams.spark.plan import Plan
from coopstreams.spark.rounds import forwarded
from coopstreams.spark.source_plan import check_whole, stages_of
from coopstreams.topology.columns import Columns
from coopstreams.topology.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    TopologyError,
)
from coopstreams.topology.keys import GROUPS, WHOLE, KeyRange, key_hash

RECORDS = 60


@st.composite
def segments(draw: st.DrawFn) -> tuple[Segment, ...]:
    """Return key ranges cut at key groups, each at a position of its own, with runs
    above it.
    """
    cuts = sorted({0, GROUPS, *draw(st.sets(st.integers(1, GROUPS - 1), max_size=4))})
    made = []
    for first, end in pairwise(cuts):
        position = draw(st.integers(0, RECORDS))
        bounds = draw(
            st.lists(st.integers(position + 1, RECORDS + 5), max_size=4, unique=True)
        )
        runs = normalise(zip(*[iter(sorted(bounds))] * 2, strict=False))
        made.append(Segment(KeyRange.of_groups(first, end - 1), position, 0, runs))
    return tuple(made)


@pytest.mark.ci
@given(st.integers(1, 12), st.lists(segments(), max_size=3))
def test_each_task_lies_within_one_segment_and_fewer_would_not_do(
    wanted: int, stands: list[tuple[Segment, ...]]
) -> None:
    def fits(count: int) -> bool:
        return all(
            any(each.key_range.covers(key_range) for each in stand)
            for stand in stands
            for key_range in KeyRange.split(count)
        )

    count = aligned(wanted, stands)
    assert count is not None
    assert count >= wanted
    assert fits(count)
    assert not any(fits(fewer) for fewer in range(wanted, count))


def test_a_segment_that_is_cut_within_a_key_group_fits_no_task() -> None:
    middle = KeyRange.of_groups(0, 0).end // 2
    assert (
        aligned(
            1,
            [
                (
                    Segment(KeyRange(0, middle), 1),
                    Segment(KeyRange(middle + 1, KeyRange.MAX), 2),
                )
            ],
        )
        is None
    )


@given(
    segments(),
    st.integers(1, 6),
    st.sets(st.integers(0, RECORDS - 1)).map(sorted),
    st.sets(st.integers(1, RECORDS)),
)
def test_what_is_committed_counts_and_a_task_ends_where_its_segment_does(
    stand: tuple[Segment, ...], ranges: int, offsets: list[int], batches: set[int]
) -> None:
    keys = {offset: b"key-%d" % (offset % 7) for offset in offsets}
    cut = Cut(KeyRange.split(ranges), stand)
    assert cut.segment_ranges[0].key_range.start == 0
    assert [
        after.key_range.start - before.key_range.end
        for before, after in pairwise(cut.segment_ranges)
    ] == [1] * (len(cut.segment_ranges) - 1)
    counted: list[tuple[int, int]] = []
    for start, end in pairwise(sorted({0, RECORDS, *batches})):
        part = [offset for offset in offsets if start <= offset < end]
        seen: list[int] = []
        for first, last in cut.spans(part):
            span = part[first:last]
            seen += span
            cut.tell(span[-1], Now(span[-1], span[-1], []))
            for number, segment_range in enumerate(cut.segment_ranges):
                mine = [
                    offset
                    for offset in span
                    if key_hash(keys[offset]) in segment_range.key_range
                ]
                columns = Columns(
                    [keys[offset] for offset in mine],
                    [None] * len(mine),
                    mine,
                    mine,
                    mine,
                    None,
                )
                counted += [
                    (offset, segment_range.slot)
                    for offset in cut.committed(number, columns).offsets
                ]
        assert seen == part
    right = [
        (offset, segment)
        for offset in offsets
        for segment in stand
        if key_hash(keys[offset]) in segment.key_range and segment.has_done(offset)
    ]
    assert sorted(offset for offset, _ in counted) == [offset for offset, _ in right]
    for slot, time in enumerate(cut.ends):
        until = min(
            segment_range.segment.position
            for segment_range in cut.segment_ranges
            if segment_range.slot == slot
        )
        below = [offset for offset in offsets if offset < until]
        assert time == (Now(below[-1], below[-1], []) if below else None)
    assert all(offset < max(segment.end for segment in stand) for offset, _ in counted)


rows = st.dictionaries(st.binary(max_size=3), st.binary(max_size=2))


@given(rows, rows)
def test_the_differences_make_one_table_the_other_and_are_as_few_as_can_be(
    found: dict[bytes, bytes], right: dict[bytes, bytes]
) -> None:
    counted, table = Differences(), dict(found)
    changes = list(
        differences(iter(sorted(found.items())), iter(sorted(right.items())), counted)
    )
    for key, row in changes:
        assert table.get(key) != row
        if row is None:
            del table[key]
        else:
            table[key] = row
    assert table == right
    assert counted.wrong == len(changes)
    assert counted.equal == sum(right.get(key) == row for key, row in found.items())
    assert (counted.added, counted.deleted) == (
        len(right.keys() - found.keys()),
        len(found.keys() - right.keys()),
    )


def chain() -> Topology:
    builder = StreamsBuilder("chain")
    words = builder.stream("words", key=serdes.text, value=serdes.text)
    words.group_by_key().count(store="by-key")
    words.select_key(lambda _, value: value, key=serdes.text).repartition(
        name="by-value"
    ).group_by_key().count(store="by-value")
    builder.stream("others", key=serdes.text, value=serdes.text).group_by_key().count(
        store="others"
    )
    return builder.build()


def stages(
    rebuild: Rebuild, ranges: int = 2
) -> list[tuple[tuple[str, ...], int, int, tuple[int, ...] | None]]:
    topology = chain()
    (repartition,) = (
        topic for part in topology.subtopologies for topic in forwarded(part)
    )
    made = stages_of(
        topology, {"words": 2, "others": 1, repartition: 2}, rebuild, ranges
    )
    plan = Plan(
        "r",
        "chain",
        planning.digest(topology),
        {"words": {0: (0, 9), 1: (0, 9)}},
        made,
        {"words": 2},
        rebuild=rebuild,
    )
    assert Plan.from_json(plan.to_json()) == plan
    return [(stage.stores, stage.ranges, stage.first, stage.only) for stage in made]


def test_the_sub_topologies_run_that_a_store_needs_and_the_last_one_in_part() -> None:
    at, apart = (
        (Segment(WHOLE, 5),),
        (
            Segment(KeyRange.of_groups(0, 84), 3),
            Segment(KeyRange.of_groups(85, 255), 5),
        ),
    )
    (repartition,) = (
        topic for part in chain().subtopologies for topic in forwarded(part)
    )
    stands: Stands = {
        "words": {0: at, 1: apart},
        repartition: {0: at, 1: at},
        "others": {0: at},
    }
    assert stages(Rebuild(("others",), None, WHOLE, stands, {})) == [
        (("others",), 2, 0, (0, 1))
    ]
    # The first is needed as a whole, and its key ranges are cut at a third.
    both = stages(Rebuild(("by-value",), (1,), KeyRange.of_groups(0, 127), stands, {}))
    assert both == [(("by-key",), 3, 0, None), (("by-value",), 2, 6, (2,))]


def counting() -> Topology:
    builder = StreamsBuilder("counting")
    builder.stream("words", key=serdes.text, value=serdes.text).group_by_key().count(
        store="counts"
    )
    return builder.build()


@pytest.mark.parametrize("gone", [(7, 9), (9, 9)])
def test_a_partition_that_has_lost_all_its_records_is_as_incomplete_as_one_that_has_lost_some(
    gone: tuple[int, int],
) -> None:
    """Rebuilt from nothing, all its rows would be deleted."""
    topology, at = counting(), (Segment(WHOLE, 9),)
    stands: Stands = {"words": {0: at, 1: at}}

    def check(partitions: tuple[int, ...]) -> None:
        made = stages_of(
            topology,
            {"words": 2},
            Rebuild(("counts",), partitions, WHOLE, stands, {}),
            2,
        )
        check_whole(made, {"words": {0: (0, 9), 1: gone}})

    check((0,))
    with pytest.raises(
        OffsetOutOfRangeError, match=f"records are gone: words-1 begins at {gone[0]}"
    ):
        check((0, 1))


def test_time_that_advanced_in_the_silence_of_a_repartition_topic_is_in_no_source() -> (
    None
):
    """Windows that had closed then would be open in the rebuilt state, and told again."""
    builder = StreamsBuilder("silent")
    words = builder.stream("words", key=serdes.text, value=serdes.text)
    words.group_by_key().count(store="by-key")
    moved = words.select_key(lambda _, value: value, key=serdes.text)
    moved = moved.repartition(name="by-value", idle_advance=timedelta(seconds=5))
    windows = (
        moved.group_by_key().windowed_by(TimeWindows(minutes=1)).count(store="by-value")
    )
    windows.suppress(until_window_closes()).to_stream().to("out")
    topology, (repartition,) = builder.build(), ("silent-by-value-repartition",)
    at: Stands = {topic: {0: (Segment(WHOLE, 5),)} for topic in ("words", repartition)}
    counts = dict.fromkeys(at, 1)
    (alone,) = stages_of(topology, counts, Rebuild(("by-key",), None, WHOLE, at, {}), 1)
    assert alone.stores == ("by-key",)
    with pytest.raises(
        TopologyError, match=f'sub-topology 1 reads "{repartition}" with idle_advance='
    ):
        stages_of(topology, counts, Rebuild(("by-value",), None, WHOLE, at, {}), 1)


class Keeps(Processor[str, str, str, str]):
    """Has a store that all keys share."""


def test_a_task_that_cannot_be_divided_must_stand_in_one_place() -> None:
    builder = StreamsBuilder("undivided")
    store = key_value_store("seen", key=serdes.text, value=serdes.text)
    builder.stream("words", key=serdes.text, value=serdes.text).process(
        Keeps, stores=[store], by_key=False
    )
    lower, upper = KeyRange.split(2)
    stands = {"words": {0: (Segment(lower, 1), Segment(upper, 2))}}
    with pytest.raises(ConfigError, match="cannot be divided there"):
        stages_of(
            builder.build(),
            {"words": 1},
            Rebuild(("seen",), None, WHOLE, stands, {}),
            4,
        )
