"""Stores of this process, read without HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coopstreams.instance.read_only import ReadOnlyStore
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.errors import QueryError
from coopstreams.topology.failures import Failure
from tests.query.cluster import HOUR, INFOS, Cluster, Data, Node

DATA: Data = {
    "counts": {f"w{number}": (number, number) for number in range(40)},
    "points": {"a": ({"x": 1}, 1), 7: (3, 3)},
    "hours": {("k", hour * HOUR): ({"n": hour}, hour) for hour in range(4)},
    "visits": {("k", 1, 5): (1, 5), ("k", 20, 30): (2, 30)},
    "prices": {
        "old": ([(1, b"1"), (200, b"2")], 200),
        "gone": ([(1, b"1"), (2, None)], 2),
    },
}


def code_of(node: Node, store: str, method: str, key: Any) -> str:
    with pytest.raises(QueryError) as caught:
        getattr(ReadOnlyStore(node, INFOS[store]), method)(key)
    return caught.value.code


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        yield cluster


def test_the_owner_reads_a_key_and_another_instance_is_told_the_owner(
    cluster: Cluster,
) -> None:
    for key, (value, _) in [*DATA["counts"].items(), ("nowhere", (None, 0))]:
        owner, other = cluster.owner("counts", key), cluster.other("counts", key)
        assert ReadOnlyStore(owner, INFOS["counts"]).get(key) == value
        with pytest.raises(
            QueryError, match=f"instance {owner.name} owns the key"
        ) as caught:
            ReadOnlyStore(other, INFOS["counts"]).get(key)
        assert (caught.value.code, caught.value.details["url"]) == (
            "NOT_OWNER",
            owner.url,
        )


def test_of_a_key_of_an_instance_without_an_address_the_owner_is_told_too(
    cluster: Cluster,
) -> None:
    """Nothing moves: who asks again, as `TASK_MOVING` says, would do so for ever."""
    owner, other = cluster.owner("counts", "w1"), cluster.other("counts", "w1")
    cluster.locate(cluster.placed, without_url=[owner.name, other.name])
    assert ReadOnlyStore(owner, INFOS["counts"]).get("w1") == 1
    with pytest.raises(
        QueryError, match=f"instance {owner.name} owns the key; it serves no queries"
    ) as caught:
        ReadOnlyStore(other, INFOS["counts"]).get("w1")
    assert (caught.value.code, caught.value.retryable) == ("NOT_OWNER", False)
    assert caught.value.details == {"owner": owner.name, "url": None}


def test_each_kind_of_store_gives_python_values(cluster: Cluster) -> None:
    def read(store: str, key: Any) -> ReadOnlyStore:
        return ReadOnlyStore(cluster.owner(store, key), INFOS[store])

    assert [read("points", key).get(key) for key in ("a", 7)] == [{"x": 1}, 3]
    assert [read("prices", key).get(key) for key in ("old", "gone", "never")] == [
        b"2",
        None,
        None,
    ]
    hours = read("hours", ("k", 0)).fetch("k", HOUR, 2 * HOUR)
    assert [(window.start_ms, window.end_ms, value) for window, value in hours] == [
        (hour * HOUR, (hour + 1) * HOUR, {"n": hour}) for hour in (1, 2)
    ]
    visits = read("visits", ("k", 0, 0))
    assert [
        (window.key, window.start_ms, value)
        for window, value in visits.fetch("k", 5, 19)
    ] == [("k", 1, 1)]
    assert len(visits.fetch("k")) == 2


def test_every_instance_reads_a_global_table(cluster: Cluster) -> None:
    def refused(failure: Failure) -> None:
        raise failure.error

    names = INFOS["names"]
    for node in cluster.nodes:
        assert node.names is not None
        node.names.apply(
            TopicPartition("names", 0), Columns([b"k"], [b"1"], [1], [0], []), refused
        )
    assert [
        ReadOnlyStore(node, names).get(key)
        for node in cluster.nodes
        for key in ("k", "l")
    ] == [1, None] * 2
    cluster["a"].names = None
    assert code_of(cluster["a"], "names", "get", "k") == "TASK_MOVING"


def test_a_read_that_cannot_be_answered_says_why(cluster: Cluster) -> None:
    owner, task = cluster.owner("counts", "w1"), cluster.task("counts", "w1")
    assert code_of(owner, "counts", "fetch", "w1") == "WRONG_KIND"
    assert code_of(owner, "hours", "get", "k") == "WRONG_KIND"
    owner.close(task)
    owner.pending[task] = "restoring"
    assert code_of(owner, "counts", "get", "w1") == "TASK_MOVING"
