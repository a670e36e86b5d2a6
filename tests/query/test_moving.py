"""While tasks move: never a wrong "not found", never a gap in a range, never an entry
twice.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from coopstreams.log.kafka.native import data_plane
from coopstreams.query.backend import NotOpen, OpenView
from coopstreams.state.memory_engine import Memory
from coopstreams.state.rocks import Rocks
from coopstreams.topology.task_id import TaskId
from tests.query.cluster import HOUR, INFOS, LIMITS, Cluster, Data, Node, tasks

COUNTS = {f"word-{i}": (i, i) for i in range(60)}
HOURS = {("k", hour * HOUR): (hour, hour) for hour in range(20)}
VISITS = {("k", 10 * number, 10 * number + 5): (number, number) for number in range(20)}
HISTORY = [(at, b"%d" % at) for at in range(0, 100, 10)]
DATA: Data = {
    "counts": COUNTS,
    "hours": HOURS,
    "visits": VISITS,
    "prices": {"k": (HISTORY, 90)},
}


def hand_over(cluster: Cluster, rng: random.Random) -> None:
    """Move a task or cut a partition again as a group does: closed, without an owner,
    assigned, open.
    """
    placed = {name: list(owned) for name, owned in cluster.placed.items()}
    if rng.random() < 0.3:
        partition = rng.randrange(2)
        leaving = [
            (name, task)
            for name, owned in placed.items()
            for task in owned
            if task.partition == partition
        ]
        coming = tasks(rng.choice([1, 2, 3, 5]), [partition])
    else:
        name = rng.choice([name for name, owned in placed.items() if owned])
        leaving = [(name, rng.choice(placed[name]))]
        coming = [leaving[0][1]]
    for name, task in leaving:
        cluster[name].close(task)
        placed[name].remove(task)
    if rng.random() < 0.5:
        cluster.locate(placed)
    homes = [(rng.choice(cluster.nodes), task) for task in coming]
    for node, task in homes:
        placed[node.name].append(task)
        node.pending[task] = "restoring"
    cluster.locate(placed)
    for node, task in homes:
        node.open(task, DATA)


LEAST_ANSWERS = 20
"""The least answers of each client, on any machine."""


def keep_asking(
    cluster: Cluster,
    seed: int,
    stop: threading.Event,
    check: Callable[[httpx.Client, Node, random.Random], str | None],
) -> list[str]:
    """Query random instances until `stop`; return the wrong answers. Retryable errors
    are right.
    """
    rng, wrong, answered = random.Random(seed), [], 0
    with httpx.Client(trust_env=False, timeout=60) as client:
        while not stop.is_set() or answered < LEAST_ANSWERS:
            found = check(client, rng.choice(cluster.nodes), rng)
            if found is None:
                answered += 1
            elif found:
                wrong.append(found)
    return wrong


def point(client: httpx.Client, node: Node, rng: random.Random) -> str | None:
    key = rng.choice(list(COUNTS))
    return judge(
        client.get(f"{node.url}/v1/stores/counts/keys/{key}"),
        lambda body: body["value"] == COUNTS[key][0],
    )


def several(client: httpx.Client, node: Node, rng: random.Random) -> str | None:
    keys = rng.sample(list(COUNTS), 8)
    answer = client.get(
        f"{node.url}/v1/stores/counts/keys?" + "&".join(f"key={key}" for key in keys)
    )
    return judge(
        answer,
        lambda body: (
            [entry["value"] for entry in body["entries"]]
            == [COUNTS[key][0] for key in keys]
        ),
    )


def everything(client: httpx.Client, node: Node, rng: random.Random) -> str | None:
    answer = client.get(f"{node.url}/v1/stores/counts/range")
    return judge(
        answer,
        lambda body: [entry["key"] for entry in body["entries"]] == sorted(COUNTS),
    )


def windows(client: httpx.Client, node: Node, rng: random.Random) -> str | None:
    return judge(
        client.get(f"{node.url}/v1/stores/hours/windows/k"),
        lambda body: [window["value"] for window in body["windows"]] == list(range(20)),
    )


def sessions(client: httpx.Client, node: Node, rng: random.Random) -> str | None:
    answer = client.get(f"{node.url}/v1/stores/visits/sessions/k")
    return judge(
        answer,
        lambda body: (
            [session["value"] for session in body["sessions"]] == list(range(20))
        ),
    )


def as_of(client: httpx.Client, node: Node, rng: random.Random) -> str | None:
    moment = rng.randrange(100)
    answer = client.get(f"{node.url}/v1/stores/prices/versions/k?as_of={moment}")
    return judge(
        answer,
        lambda body: (
            [version["since"] for version in body["versions"]] == [moment - moment % 10]
        ),
    )


def judge(answer: httpx.Response, right: Callable[[Any], bool]) -> str | None:
    if answer.status_code == 503:
        return (
            ""
            if answer.json()["retryable"]
            else f"503 that is not retryable: {answer.text}"
        )
    return (
        None
        if answer.status_code == 200 and right(answer.json())
        else f"{answer.status_code}: {answer.text}"
    )


@pytest.mark.ci
@pytest.mark.parametrize("engine", [Memory, Rocks])
def test_whatever_moves_an_answer_is_right_or_retryable(
    engine: type[Memory | Rocks], tmp_path: Path
) -> None:
    rng, stop, wrong = random.Random(7), threading.Event(), []
    with Cluster(
        3, replace(LIMITS, retry_s=1.0), folder=tmp_path if engine is Rocks else None
    ) as cluster:
        cluster.deal(2, DATA)
        checks = [point, several, everything, windows, sessions, as_of]
        threads = [
            threading.Thread(
                target=lambda n=n, c=c: wrong.extend(keep_asking(cluster, n, stop, c))
            )
            for n, c in enumerate(checks)
        ]
        for thread in threads:
            thread.start()
        for _ in range(60):
            hand_over(cluster, rng)
            stop.wait(0.02)
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_move_shorter_than_the_patience_of_the_server_is_not_seen() -> None:
    with Cluster(2, replace(LIMITS, retry_s=60.0)) as cluster:
        cluster.deal(2, DATA)
        task, owner = (
            cluster.task("counts", "word-1"),
            cluster.owner("counts", "word-1"),
        )
        owner.close(task)
        owner.pending[task] = "restoring"
        answers: list[int] = []
        paths = ["keys/word-1", "keys?key=word-1&key=word-2", "range"]

        def ask(path: str, node: Node) -> None:
            answers.append(
                httpx.get(
                    f"{node.url}/v1/stores/counts/{path}", trust_env=False, timeout=60
                ).status_code
            )

        threads = [
            threading.Thread(target=ask, args=(path, node))
            for path in paths
            for node in cluster.nodes
        ]
        for thread in threads:
            thread.start()
        threading.Event().wait(0.3)
        assert answers == []
        owner.open(task, DATA)
        for thread in threads:
            thread.join()
        assert answers == [200] * 6


@pytest.mark.parametrize("chosen", ["", "0"], ids=["front", "no front"])
def test_a_task_given_up_under_a_read_makes_the_read_void(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPSTREAMS_NATIVE", chosen)

    class Hasty(Node):
        """Closes a task, and drops its state, between the opening of a view and its
        read; siblings keep the database open.
        """

        def view(self, store: str, partition: int, hash_: int) -> Any:
            found = super().view(store, partition, hash_)
            if not isinstance(found, NotOpen):
                self.close(found.task)
            return found

    with Cluster(1, replace(LIMITS, retry_s=0.0), kind=Hasty) as cluster:
        cluster.deal(4, DATA)
        answer = httpx.get(
            f"{cluster['a'].url}/v1/stores/counts/keys/word-1",
            trust_env=False,
            timeout=60,
        )
        assert (answer.status_code, answer.json()["error"]) == (503, "TASK_MOVING")
        # Behind a front, the key is queried again, and the task found closed.
        fronted = data_plane() == "native"
        assert (
            "does not own it" if fronted else "given up while it was read"
        ) in answer.json()["message"]


def test_a_range_of_which_an_instance_does_not_answer_is_not_read_for_nothing_again_and_again() -> (
    None
):
    """Each attempt fails at once at the other instance, while this one still reads its
    part of the first.
    """
    goes_on, asked = threading.Event(), list[str]()

    class Slow(Node):
        def views(self, store: str) -> Sequence[OpenView | NotOpen]:
            asked.append(store)
            goes_on.wait()
            return super().views(store)

    with Cluster(2, replace(LIMITS, retry_s=2.0), kind=Slow) as cluster:
        cluster.deal(1, DATA)
        cluster["b"].server.stop()
        with httpx.Client(
            trust_env=False, timeout=60, base_url=cluster["a"].url
        ) as client:
            assert (
                client.get("/v1/stores/counts/range").json()["error"] == "TASK_MOVING"
            )
            goes_on.set()
            assert (
                client.get("/v1/stores/hours/range?local=true").status_code == 200
            )  # waits for those before it
    assert asked.count("counts") <= 2, "one for each thread that reads ranges"


def test_the_stores_are_listed_although_a_task_is_given_up_while_they_are_counted() -> (
    None
):
    given_up = list[TaskId]()

    class Hasty(Node):
        def views(self, store: str) -> Sequence[OpenView | NotOpen]:
            found = super().views(store)
            if not given_up:
                given_up.extend(sorted(self.openings)[:1])
                self.close(given_up[0])
            return found

    with Cluster(1, replace(LIMITS, retry_s=60.0), kind=Hasty) as cluster:
        cluster.deal(2, DATA)
        answer = httpx.get(f"{cluster['a'].url}/v1/stores", trust_env=False, timeout=60)
    assert given_up
    assert (answer.status_code, len(answer.json()["stores"])) == (200, len(INFOS))
