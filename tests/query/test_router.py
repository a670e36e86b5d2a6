"""Routing: a hash has one owner or none, and one without an owner is moving."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.query.backend import Peer, Placement, StoreInfo
from coopstreams.query.router import (
    Asked,
    Elsewhere,
    Here,
    KeyLocation,
    Moving,
    There,
    coverage_gap,
    locate,
    owner_of,
    route,
    scatter,
)
from coopstreams.topology import serdes
from coopstreams.topology.keys import (
    GROUPS,
    MAX_HASH,
    WHOLE,
    KeyRange,
    key_hash,
    partition_of,
)
from coopstreams.topology.task_id import TaskId

STORE = StoreInfo("counts", "key_value", 1, 2, serdes.text, serdes.int64)

hashes = st.integers(0, MAX_HASH)
locations = st.builds(KeyLocation, st.integers(0, 1), hashes)


@st.composite
def tilings(draw: st.DrawFn) -> list[KeyRange]:
    cuts = sorted(draw(st.sets(st.integers(1, GROUPS - 1), max_size=6)))
    return [
        KeyRange.of_groups(a, b - 1)
        for a, b in zip([0, *cuts], [*cuts, GROUPS], strict=True)
    ]


@st.composite
def placements(draw: st.DrawFn, *, whole: bool = False) -> Placement:
    """Tasks of two partitions on three instances; unless `whole`, some have no owner,
    two, or one without a url.
    """
    hands: dict[str, list[TaskId]] = {"a": [], "b": [], "c": []}
    for partition in (0, 1):
        for piece in draw(tilings()):
            most = 1 if whole else 2
            for holder in draw(
                st.sets(
                    st.sampled_from("abc"), min_size=1 if whole else 0, max_size=most
                )
            ):
                hands[holder].append(TaskId(1, partition, piece))
    urls = {
        name: f"http://{name}" if whole or draw(st.booleans()) else None
        for name in hands
    }
    instances = tuple(
        Peer(name, urls[name], tuple(tasks)) for name, tasks in hands.items()
    )
    return Placement(draw(st.integers(0, 9)), "a", instances)


def claims(placement: Placement, at: KeyLocation) -> list[Peer]:
    return [
        i
        for i in placement.instances
        for t in i.tasks
        if t.partition == at.partition and at.hash in t.key_range
    ]


@given(placements(), locations, st.sampled_from(["any", "local", "forwarded"]))
def test_a_key_goes_to_its_only_owner_or_is_moving(
    placement: Placement, at: KeyLocation, asked: Asked
) -> None:
    owners = claims(placement, at)
    decision = route(placement, STORE, at, asked)
    if len(owners) != 1:
        assert isinstance(decision, Moving)
        return
    [owner] = owners
    if owner.id == "a":
        assert isinstance(decision, Here)
        assert at.hash in decision.task.key_range
    elif asked == "forwarded" or owner.url is None:
        assert isinstance(decision, Moving)
    else:
        assert isinstance(decision, There if asked == "any" else Elsewhere)
        assert (decision.owner.instance, decision.url) == (owner, owner.url)


@pytest.mark.ci
@given(placements(whole=True), locations)
def test_when_everything_is_placed_nothing_is_moving(
    placement: Placement, at: KeyLocation
) -> None:
    assert owner_of(placement, STORE, at) is not None
    assert isinstance(route(placement, STORE, at), Here | There)


@pytest.mark.ci
@given(placements(), locations)
def test_another_sub_topology_owns_nothing_of_this_one(
    placement: Placement, at: KeyLocation
) -> None:
    assert owner_of(placement, replace(STORE, subtopology=2), at) is None


@pytest.mark.ci
@given(placements())
def test_a_range_query_asks_exactly_the_owners_or_is_moving(
    placement: Placement,
) -> None:
    everything = [
        (t.partition, t.key_range) for i in placement.instances for t in i.tasks
    ]
    asked = scatter(placement, STORE)
    silent = any(i.tasks and i.url is None for i in placement.instances if i.id != "a")
    if coverage_gap(STORE, everything) is not None or silent:
        assert isinstance(asked, Moving)
    else:
        assert not isinstance(asked, Moving)
        assert {i.id for i in asked} == {i.id for i in placement.instances if i.tasks}
        assert "a" not in {i.id for i in asked} or asked[0].id == "a"


@given(tilings(), tilings())
def test_a_store_is_covered_only_if_every_hash_is_covered_once(
    first: list[KeyRange], second: list[KeyRange]
) -> None:
    ranges = [(0, piece) for piece in first] + [(1, piece) for piece in second]
    assert coverage_gap(STORE, ranges) is None
    assert "no key range has" in str(coverage_gap(STORE, ranges[1:]))
    assert "overlaps" in str(coverage_gap(STORE, [*ranges, ranges[0]]))
    assert "has partition 2" in str(coverage_gap(STORE, [*ranges, (2, WHOLE)]))


@pytest.mark.parametrize("key", [b"", b"a", "grüße".encode(), bytes(8)])
def test_a_key_lies_where_producers_and_tasks_put_it(key: bytes) -> None:
    assert locate(STORE, key) == KeyLocation(partition_of(key, 2), key_hash(key))


@given(placements(whole=True), locations)
def test_an_instance_that_does_not_know_whose_tasks_are_whose_says_so(
    placement: Placement, at: KeyLocation
) -> None:
    waiting = replace(placement, waits="it runs another version")
    for decision in (route(waiting, STORE, at), scatter(waiting, STORE)):
        assert isinstance(decision, Moving)
        assert "does not know the owner" in decision.reason
        assert "it runs another version" in decision.reason
