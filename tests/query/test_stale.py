"""Queries that allow staleness: a standby answers for an owner that does not, and says how
far it is behind; without that, only owners answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from typer.testing import CliRunner

from coopstreams.query.access import Access
from coopstreams.query.client import QueryClient
from coopstreams.query.client_requests import Standby
from coopstreams.query.parameters import RequestLimits
from coopstreams.topology.errors import QueryError
from coopstreams.topology.task_id import TaskId
from tests.command_line import app
from tests.query.cluster import HOUR, Cluster, Data, Node

OLD: Data = {
    "counts": {f"word-{i}": (i, 1000 + i) for i in range(60)},
    "hours": {("k", hour * HOUR): (hour, hour) for hour in range(5)},
    "visits": {("k", 10, 15): (1, 1)},
    "prices": {"k": ([(0, b"1")], 0)},
}
NEW: Data = OLD | {"counts": {f"word-{i}": (i + 1, 2000 + i) for i in range(60)}}
"""What owners have. Standbys have the old rows, so that it shows who answers."""
BEHIND = {"position": 90, "lag": 10, "staleness_ms": 500}


class Shop:
    """Three nodes; each task has a standby, 500 ms old, on the node after its owner."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.deal(2, NEW)
        for number, node in enumerate(cluster.nodes):
            for task in list(node.openings):
                self.next(number).stand_by(task, OLD, 500)
        cluster.locate(cluster.placed)

    def next(self, number: int) -> Node:
        return self.cluster.nodes[(number + 1) % len(self.cluster.nodes)]

    def away(self, node: Node) -> None:
        """Have an owner not answer for its tasks: they are being restored."""
        for task in list(node.openings):
            del node.openings[task]
            node.pending[task] = "restoring"

    def get(
        self, path: str, node: Node | None = None, **headers: str
    ) -> httpx.Response:
        return self.asked(node or self.cluster.nodes[0], path, **headers)

    @staticmethod
    def asked(node: Node, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{node.url}/v1/stores/{path}", headers=headers, timeout=60)

    def key_of(self, node: Node) -> str:
        return next(
            str(key)
            for key in OLD["counts"]
            if self.cluster.owner("counts", key) is node
        )


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Cluster(3) as cluster:
        yield Shop(cluster)


def test_the_owner_answers_while_it_can(shop: Shop) -> None:
    for key, (value, _) in NEW["counts"].items():
        answer = shop.get(f"counts/keys/{key}?max_staleness=60000").json()
        assert answer["value"] == value
        assert "standby" not in answer


@pytest.mark.parametrize("asked", ["a", "b", "c"])
def test_a_standby_answers_for_an_owner_that_does_not(shop: Shop, asked: str) -> None:
    [owner, stands, _] = shop.cluster.nodes
    shop.away(owner)
    key = shop.key_of(owner)
    node = shop.cluster[asked]
    assert shop.get(f"counts/keys/{key}", node).json()["error"] == "TASK_MOVING"
    answer = shop.get(f"counts/keys/{key}?max_staleness=500", node).json()
    assert answer["value"] == OLD["counts"][key][0]
    assert (answer["owner"], answer["epoch"], answer["lag"]) == (stands.name, 5, None)
    assert answer["standby"] == BEHIND


def test_a_standby_that_is_too_old_does_not_answer(shop: Shop) -> None:
    owner = shop.cluster.nodes[0]
    shop.away(owner)
    answer = shop.get(f"counts/keys/{shop.key_of(owner)}?max_staleness=499")
    assert answer.status_code == 503
    assert answer.json()["error"] == "TASK_MOVING"
    assert "is 500 ms old" in answer.json()["message"]


def test_a_process_that_is_gone_is_stood_in_for(shop: Shop) -> None:
    owner = shop.cluster.nodes[2]
    key = shop.key_of(owner)
    owner.server.stop()
    answer = shop.get(f"counts/keys/{key}?max_staleness=500").json()
    assert answer["value"] == OLD["counts"][key][0]


def test_a_key_that_a_standby_does_not_have_is_not_found_with_its_position(
    shop: Shop,
) -> None:
    for node in shop.cluster.nodes:
        shop.away(node)
    answer = shop.get("counts/keys/nobody?max_staleness=500")
    assert answer.status_code == 404
    assert answer.json()["error"] == "KEY_NOT_FOUND"
    assert answer.json()["standby"] == BEHIND


def test_of_several_keys_each_comes_from_whoever_can_answer(shop: Shop) -> None:
    owner = shop.cluster.nodes[1]
    shop.away(owner)
    keys = list(OLD["counts"])
    asked = "&".join(f"key={key}" for key in keys)
    answer = shop.get(f"counts/keys?{asked}&max_staleness=500").json()
    assert [entry["key"] for entry in answer["entries"]] == keys
    for entry in answer["entries"]:
        stale = shop.cluster.owner("counts", entry["key"]) is owner
        assert entry["value"] == (OLD if stale else NEW)["counts"][entry["key"]][0]
        assert entry.get("standby") == (BEHIND if stale else None)


@pytest.mark.parametrize("store", ["hours", "visits"])
def test_windows_and_sessions_come_from_standbys_too(shop: Shop, store: str) -> None:
    for node in shop.cluster.nodes:
        shop.away(node)
    what = "windows" if store == "hours" else "sessions"
    answer = shop.get(f"{store}/{what}/k?max_staleness=500").json()
    assert len(answer[what]) == len(OLD[store])
    assert answer["standby"] == BEHIND


def test_versions_come_from_owners_only(shop: Shop) -> None:
    """A standby does not know the stream time by which versions are forgotten."""
    answer = shop.get("prices/versions/k?max_staleness=500")
    assert answer.json()["error"] == "BAD_PARAMETER"
    assert shop.get("prices/keys/k?max_staleness=500").json()["value"]


@pytest.mark.parametrize("gone", [(), (0,), (1, 2), (0, 1, 2)])
def test_a_scan_has_each_key_once_from_owners_and_from_standbys_for_the_others(
    shop: Shop, gone: tuple[int, ...]
) -> None:
    away = [shop.cluster.nodes[number] for number in gone]
    for node in away:
        shop.away(node)
    found: dict[str, Any] = {}
    cursor = ""
    while True:
        path = f"counts/range?limit=7&max_staleness=500{cursor}"
        answer = shop.get(path).json()
        for entry in answer["entries"]:
            assert entry["key"] not in found
            found[entry["key"]] = entry["value"]
        assert any("standby" in each for each in answer["ranges"]) is bool(gone)
        if answer["cursor"] is None:
            break
        cursor = f"&cursor={answer['cursor']}"
    assert found == {
        key: (OLD if shop.cluster.owner("counts", key) in away else NEW)["counts"][key][
            0
        ]
        for key in OLD["counts"]
    }


def test_without_standbys_a_scan_waits_for_owners_as_long_as_any_other() -> None:
    limits = RequestLimits(request_s=60.0, forward_s=0.0, connect_s=60.0, retry_s=0.3)
    with Cluster(2, limits) as cluster:
        cluster.deal(2, NEW)
        cluster.locate(cluster.placed)
        answer = Shop.asked(cluster.nodes[0], "counts/range?max_staleness=500").json()
    assert len(answer["entries"]) == len(NEW["counts"])


def test_a_scan_is_refused_if_a_range_has_no_fresh_standby(shop: Shop) -> None:
    shop.away(shop.cluster.nodes[0])
    answer = shop.get("counts/range?max_staleness=499")
    assert answer.json()["error"] == "TASK_MOVING"
    assert shop.get("counts/range").json()["error"] == "TASK_MOVING"


def test_with_local_an_instance_answers_of_its_own_tasks_and_standbys(
    shop: Shop,
) -> None:
    [owner, stands, _] = shop.cluster.nodes
    key = shop.key_of(owner)
    local = f"counts/keys/{key}?local=true"
    assert shop.get(local, stands).json()["error"] == "NOT_OWNER"
    answer = shop.get(f"{local}&max_staleness=500", stands).json()
    assert answer["value"] == OLD["counts"][key][0]
    scan = shop.get("counts/range?local=true&max_staleness=500", stands).json()
    assert {entry["key"] for entry in scan["entries"]} == {
        key
        for key in OLD["counts"]
        if shop.cluster.owner("counts", key) in (owner, stands)
    }


def test_a_standby_that_ends_during_the_read_does_not_count(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may be dropped meanwhile: no wrong "not found"."""
    [owner, stands, _] = shop.cluster.nodes
    shop.away(owner)
    key = shop.key_of(owner)
    view = stands.standby_view

    def ends(*asked: Any, **how: Any) -> Any:
        found = view(*asked, **how)
        stands.standing.clear()
        return found

    monkeypatch.setattr(stands, "standby_view", ends)
    answer = shop.get(f"counts/keys/{key}?max_staleness=500")
    assert answer.json()["error"] == "TASK_MOVING"


def test_the_client_says_which_answers_are_stale(shop: Shop) -> None:
    owner = shop.cluster.nodes[0]
    shop.away(owner)
    key = shop.key_of(owner)
    with QueryClient(shop.cluster.nodes[1].url, deadline_s=0) as client:
        with pytest.raises(QueryError, match="restoring"):
            client.get("counts", key)
        found = client.get("counts", key, max_staleness_ms=500)
        assert found is not None
        assert found.standby == Standby(**BEHIND)
        [one] = client.get_many("counts", [key], max_staleness_ms=500)
        assert one == found
        assert len(client.windows("hours", "k", max_staleness_ms=500)) == 5
        assert len(list(client.range("counts", page=7, max_staleness_ms=500))) == 60


def test_the_command_line_asks_standbys_if_it_may(shop: Shop) -> None:
    owner = shop.cluster.nodes[0]
    shop.away(owner)
    url = shop.cluster.nodes[1].url

    def asked(*words: str) -> list[Any]:
        done = CliRunner().invoke(app, ["query", url, *words, "--max-staleness", "500"])
        assert done.exit_code == 0, done.output
        return [orjson.loads(line) for line in done.stdout.splitlines()]

    (found,) = asked("counts", shop.key_of(owner))
    assert found["standby"] == BEHIND
    assert len(asked("counts")) == len(OLD["counts"])
    assert len(asked("hours", "k")) == len(OLD["hours"])
    assert len(asked("visits", "k")) == len(OLD["visits"])
    words = ["query", url, "prices", "k", "--from", "1", "--max-staleness", "500"]
    refused = CliRunner().invoke(app, words)
    assert "only the owner of a key knows its versions" in str(refused.exception)


def test_metadata_names_the_standbys_of_key_ranges(shop: Shop) -> None:
    [owner, stands, _] = shop.cluster.nodes
    told = httpx.get(f"{owner.url}/v1/metadata").json()
    named = {
        each["id"]: {standby["id"] for standby in each["standbys"]}
        for each in told["instances"]
    }
    placed: dict[str, list[TaskId]] = shop.cluster.placed
    assert named[stands.name] == {str(task) for task in placed[owner.name]}
    key = shop.key_of(owner)
    of_key = httpx.get(f"{owner.url}/v1/metadata/counts/{key}").json()
    assert of_key["standbys"] == [{"id": stands.name, "url": stands.url}]


def test_who_may_not_read_may_not_read_standbys() -> None:
    tokens = [Access({"read": ["secret"], "operate": ["secret"]}) for _ in range(3)]
    with Cluster(3, access=tokens) as cluster:
        shop = Shop(cluster)
        shop.away(cluster.nodes[0])
        path = f"counts/keys/{shop.key_of(cluster.nodes[0])}?max_staleness=500"
        assert shop.get(path).json()["error"] == "UNAUTHORIZED"
        assert shop.get(path, authorization="Bearer secret").json()["standby"] == BEHIND
