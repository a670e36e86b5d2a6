"""The partitions that lack a transaction marker, from the answers of coordinator and
leaders.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.common.acl_errors import Login
from coopstreams.group.missing_markers import (
    ENDED,
    ENDING,
    ONGOING,
    Marker,
    Open,
    TransactionDescription,
    believed,
    missing_markers,
    refusal,
)
from coopstreams.topology.columns import TopicPartition

HERE, THERE = TopicPartition("here", 0), TopicPartition("there", 1)


def told(state: str, epoch: int = 3) -> TransactionDescription:
    return TransactionDescription(state, 66, epoch)


@pytest.mark.parametrize(
    ("state", "commit"),
    [("CompleteCommit", True), ("CompleteAbort", False), ("Empty", False)],
)
def test_a_partition_lacks_the_marker_that_the_coordinator_decided_on(
    state: str, commit: bool
) -> None:
    open_ = {
        HERE: (Open(66, 3, 5, 100), Open(67, 0, 0, 200)),
        THERE: (Open(67, 3, 0, 0),),
    }
    assert missing_markers(told(state), open_) == {HERE: Marker(66, 3, 5, commit)}


def test_a_producer_that_no_coordinator_has_written_to_gets_the_first_epoch_of_one() -> (
    None
):
    assert missing_markers(told("CompleteCommit"), {HERE: (Open(66, 3, -1, 0),)}) == {
        HERE: Marker(66, 3, 0, True)
    }


def test_an_open_transaction_of_an_epoch_that_was_fenced_is_the_last_one_too() -> None:
    """An abort by time-out or by `InitProducerId` raises the epoch first."""
    assert missing_markers(
        told("CompleteAbort", epoch=4), {HERE: (Open(66, 3, 0, 0),)}
    ) == {HERE: Marker(66, 4, 0, False)}


@given(
    state=st.sampled_from(sorted(ENDED | ENDING | {ONGOING, "Dead"})),
    epoch=st.integers(0, 3),
    found=st.lists(
        st.builds(
            Open,
            st.integers(65, 67),
            st.integers(0, 4),
            st.integers(-1, 3),
            st.integers(0, 9),
        ),
        max_size=4,
    ),
)
def test_nothing_is_written_for_others_for_a_later_life_or_before_the_end_is_decided(
    state: str, epoch: int, found: list[Open]
) -> None:
    ours = [one for one in found if one.producer == 66 and one.epoch <= epoch]
    markers = missing_markers(told(state, epoch), {HERE: found})
    assert bool(markers) == (state in ENDED and bool(ours))
    for marker in markers.values():
        assert (marker.producer, marker.epoch, marker.commit) == (
            66,
            epoch,
            state == "CompleteCommit",
        )
        assert marker.coordinator_epoch >= 0


def test_a_refusal_says_what_is_wrong_what_it_would_cost_and_the_cure() -> None:
    open_ = {HERE: (Open(67, 0, 0, 4), Open(66, 3, 5, 100))}
    me, done, begun = Login("User:me", "PLAIN"), told("CompleteCommit"), told("Empty")
    said = refusal(
        "app-1", done, missing_markers(done, open_), open_, "not allowed", me
    )
    for part in (
        '"app-1"',
        "producer 66",
        "here-0 (from offset 100)",
        "KAFKA-20734",
        "lose its records",
        "--allow-principal User:me --operation ClusterAction --cluster",
        "Do not use",
    ):
        assert part in said
    said = refusal(
        "app-1", begun, missing_markers(begun, open_), open_, "not allowed", me
    )
    assert "double its records" in said
    assert (
        "Or, for each of these partitions: `kafka-transactions.sh --bootstrap-server … abort --topic here --partition "
        "0 --start-offset 100`" in said
    )


@pytest.mark.parametrize(
    ("told_by", "named", "right"),
    [
        (1, {2: 1, 3: 1}, True),
        (1, {2: 1}, True),
        (1, {1: 2, 2: 1}, True),
        (1, {2: 3, 3: 3}, False),
        (1, {2: 1, 3: 3}, False),
        (1, {1: 1}, False),
        (1, {}, False),
        (None, {2: 1}, False),
    ],
)
def test_a_coordinator_is_believed_if_all_others_name_it(
    told_by: int | None, named: dict[int, int], right: bool
) -> None:
    assert believed(told_by, [1, 2, 3], named) is right


def test_a_coordinator_is_believed_where_it_is_the_only_broker() -> None:
    assert believed(1, [1], {})
    assert not believed(None, [1], {1: 1})
