"""The page of an instance in a real Chromium: it shows the HTTP interface's data, and
its server keeps to limits.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coopstreams.query.access import Access
from coopstreams.status.model import InstanceStatus, StandbyStatus
from coopstreams.tasks.tally import FailureStatus
from coopstreams.tasks.task_figures import AwaitedTime, TimeStatus
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId
from tests.query.chromium import Page, chromium
from tests.query.cluster import HOUR, LIMITS, Cluster, Data, Node, reason
from tests.query.test_access import OPERATE, READ, TOKENS

FILES = Path(__file__).resolve().parents[2] / "coopstreams" / "query" / "page"
DATA: Data = {
    "counts": {f"w{i}": (i, i) for i in range(150)},
    "hours": {("k", 0): (1, 1), ("k", HOUR): (2, 2)},
    "visits": {("k", 1, 2): (1, 2)},
    "prices": {
        "k": ([(1, b"cheap"), (200, b"dear")], 200),
        "": ([(1, b"0")], 1),
        ".": ([(1, b"1")], 1),
    },
    "numbers": {2**53 + 1: ([2**53 + 1], 1_700_000_000_000_000_000)},
}
STREAM = {"accept": "text/event-stream"}
AGAIN = dataclasses.replace(LIMITS, stream_every_s=0.05)
"""Frequent events, so that no test waits long for one."""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as page:
        yield page


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, AGAIN) as cluster:
        cluster.deal(2, DATA)
        for node in cluster.nodes:
            node.stream_time = 200
        yield cluster


def placed(url: str) -> dict[str, tuple[str, float, float]]:
    """Return the owner and the relative bounds of each task by `/v1/metadata`."""
    answer = httpx.get(url + "/v1/metadata", trust_env=False, timeout=60).json()
    found = {}
    for instance in answer["instances"]:
        for task in instance["tasks"]:
            first, last = map(int, task["key_range"].split(".."))
            found[task["id"]] = (instance["id"], first / 256, (last + 1) / 256)
    return found


def same_as_metadata(page: Page, url: str) -> bool:
    """Whether exactly the ranges of `/v1/metadata` are drawn, at their bounds and with
    their owners.
    """
    drawn, expected = page.ranges(), placed(url)
    return drawn.keys() == expected.keys() and all(
        drawn[task][0] == owner and drawn[task][1:] == pytest.approx(ends, abs=0.002)
        for task, (owner, *ends) in expected.items()
    )


@pytest.mark.ci
def test_the_bars_are_what_the_metadata_says_also_after_the_ranges_are_cut_anew(
    page: Page,
) -> None:
    with Cluster(2, AGAIN) as cluster:
        cluster.deal(2, DATA)
        url = cluster["a"].url
        page.open(url + "/")
        page.shows("document.body.dataset.generation === '1'")
        assert same_as_metadata(page, url)
        assert page.text("#application") == "words"
        assert "2 instances · 4 tasks on 2 partitions" in page.text("#summary")
        labels = page.run(
            "[...document.querySelectorAll('.range')].map(one => one.ariaLabel)"
        )
        assert re.match(
            r"0_0\[0..127\], A 127.0.0.1:\d+, running, 2.5/s, lag 4", labels[0]
        )

        [task] = [task for task in cluster.placed["b"] if task.partition == 0]
        cluster["b"].close(task)
        halves = [
            TaskId(0, 0, KeyRange.of_groups(128, 191)),
            TaskId(0, 0, KeyRange.of_groups(192, 255)),
        ]
        cluster["a"].open(halves[0], DATA)
        cluster["b"].open(halves[1], DATA)
        owned_by_b = [other for other in cluster.placed["b"] if other != task]
        cluster.locate(
            {"a": [*cluster.placed["a"], halves[0]], "b": [*owned_by_b, halves[1]]}
        )
        page.shows(
            "document.body.dataset.generation === '2' && document.querySelectorAll('.range').length === 5"
        )
        assert same_as_metadata(page, url)
        assert f"{halves[0]} is running at A" in page.text("#happened")

        del cluster["a"].openings[halves[0]]
        page.shows("document.querySelector('.gap')")
        assert (
            page.run("document.querySelector('.gap').ariaLabel")
            == "no instance has this part"
        )
        assert page.complaints() == []


def test_an_instance_that_does_not_answer_and_a_restore_are_shown_as_such(
    page: Page,
) -> None:
    with Cluster(2, AGAIN) as cluster:
        cluster.deal(2, DATA)
        page.open(cluster["a"].url + "/")
        page.shows("document.querySelectorAll('.range').length === 4")
        [task, _] = cluster.placed["a"]
        cluster["a"].pending[task] = "restoring"
        del cluster["a"].openings[task]
        cluster["a"].now = reason("restoring", "50 records to go", task)
        cluster["b"].server.stop()
        page.shows("document.querySelectorAll('.range.unreachable').length === 2")
        assert page.run(
            "document.querySelector('.range.restoring').dataset.task"
        ) == str(task)
        assert f"counts of {task}" in page.text("#trouble")
        assert "50 of 100 records, 25/s, 2.0 s to go" in page.text("#trouble")
        assert "does not answer" in page.text("#instances")
        assert "does not answer any more" in page.text("#happened")

        cluster["a"].server.stop()
        page.shows("document.body.classList.contains('stale')")
        assert (
            page.run("document.querySelector('#connection a').href")
            == cluster["b"].url + "/"
        )


def test_standbys_are_counted_and_what_is_warmed_up_has_its_time_to_go(
    page: Page,
) -> None:
    with Cluster(2, AGAIN) as cluster:
        cluster.deal(2, DATA)
        one, other = cluster.placed["a"]
        cluster["b"].standbys = (
            StandbyStatus.of(one, lag=1_200),
            StandbyStatus.of(other, lag=48_000, warming=True, eta_s=12.0),
        )
        page.open(cluster["a"].url + "/")
        page.shows("document.querySelectorAll('.range').length === 4")
        assert "1, lag 1,200" in page.text("#instances")
        assert "48,000 records behind, 12 s to go" in page.text("#trouble")


def test_instances_that_are_started_again_at_their_addresses_keep_their_letters(
    page: Page,
) -> None:
    with Cluster(2, AGAIN) as cluster:
        cluster.deal(2, DATA)
        page.open(cluster["a"].url + "/")
        page.shows("document.body.dataset.generation === '1'")
        for generation, (before, after) in enumerate((("b", "b2"), ("a", "a2")), 2):
            owned = {**cluster.placed, after: cluster.placed[before]}
            cluster[before].name = after
            cluster.locate(
                {name: tasks for name, tasks in owned.items() if name != before}
            )
            page.shows(f"document.body.dataset.generation === '{generation}'")
            assert (
                f"{before[0].upper()} 127.0.0.1"
                in page.text("#happened").split(" has joined")[0]
            )
        assert page.run(
            "[...document.querySelectorAll('#instances .letter')].map(one => one.innerText)"
        ) == ["A", "B"]
        page.shows("!document.body.classList.contains('stale')")
        assert page.complaints() == []


@pytest.mark.ci
def test_a_status_that_cannot_be_shown_holds_no_stream(page: Page) -> None:
    """The page asks for a stream again after each error, and a browser has six
    connections to a host.
    """
    with Cluster(1, dataclasses.replace(AGAIN, streams=4)) as cluster:
        cluster.deal(1, DATA)
        page.open(cluster["a"].url + "/")
        page.shows("document.body.dataset.at")
        told = page.run(
            "import('/page/stream.js').then(({ watch }) => new Promise((done) => { let told = 0; watch("
            "() => { if ((told += 1) < 4) throw Error('not shown'); done(told) }, "
            "async ({ code }) => { if (code) done(code) }) }))"
        )
        assert told == 4


def test_failures_and_commits_are_those_of_all_processes(page: Page) -> None:
    with Cluster(2, AGAIN) as cluster:
        cluster.deal(2, DATA)
        for node, task in zip(
            cluster.nodes, (*cluster.placed["a"], *cluster.placed["b"]), strict=False
        ):
            node.metrics.dropped(task, "windowed", "late", 3)
            node.metrics.dead_lettered(task)
        cluster["b"].metrics.aborted(0)
        page.open(cluster["a"].url + "/#failures")
        page.shows("document.querySelectorAll('#failures tbody tr').length === 3")
        rows = page.run(
            "[...document.querySelectorAll('#failures tbody tr')].map(row => row.innerText)"
        )
        assert [row.split("\t")[2:] for row in rows] == [
            ["commits aborted, their records processed again", "1"],
            ["dropped: late", "6"],
            ["to the dead-letter topic", "2"],
        ]
        failed = FailureStatus(
            1000,
            str(TaskId(0, 0, WHOLE)),
            "mapped",
            "processing",
            "lines",
            0,
            41,
            "KeyError",
            "dead-letter",
        )
        cluster["b"].failures = (failed,)
        page.shows("document.querySelectorAll('#failures table').length === 2")
        cells = "[...document.querySelectorAll('#failures table')[1].rows[1].cells].map(cell => cell.innerText)"
        assert page.run(f"{cells}")[1:6] == [
            "lines-0",
            "41",
            "mapped",
            "processing: KeyError",
            "dead letter",
        ]
        for node, threads in zip(cluster.nodes, ((0,), (0, 1)), strict=True):
            for thread in threads:
                node.metrics.committed(thread, 0.02)
        page.shows(
            "document.querySelector('#plots figure:nth-child(3) strong').textContent === '20 ms'"
        )
        assert page.complaints() == []


class Busy(Node):
    """A node that takes in ten records between two looks at its status."""

    def status(self) -> InstanceStatus:
        self.metrics.consumed(TaskId(0, 0, WHOLE), "lines", 10)
        return super().status()


def test_the_topology_shows_what_passes_its_arrows(page: Page) -> None:
    with Cluster(2, AGAIN, kind=Busy) as cluster:
        cluster.deal(2, DATA)
        page.open(cluster["a"].url + "/#topology")
        page.shows("document.querySelectorAll('.graph .operator').length === 5")
        titles = "[...document.querySelectorAll('.graph g text:first-of-type')].map(one => one.textContent)"
        assert page.run(f"{titles}")[:3] == [
            "lines",
            "by-word-repartition",
            "word-counts",
        ]
        task = cluster.placed["b"][0]
        cluster["b"].metrics.dropped(
            task, "KSTREAM-SOURCE-0000000000", "deserialization", 7
        )
        cluster["a"].metrics.dead_lettered(task, 2)
        page.shows(
            "document.querySelector('.graph .rate').textContent.match(/^[1-9].*[/]s · lag 8$/)"
        )
        page.shows(
            "document.querySelector('.graph .drops').textContent === '7 dropped'"
        )
        page.shows(
            "document.querySelector('.graph .title').textContent === 'Sub-topology 0 · 2 dead letters'"
        )
        page.run("document.querySelector('#topology details').open = true")
        page.shows("document.querySelectorAll('#topology tbody tr').length === 7")
        first = page.run(
            "[...document.querySelector('#topology tbody tr').cells].map(cell => cell.innerText)"
        )
        assert [first[0], first[3]] == ["lines topic", "8"]
        assert page.complaints() == []


def test_hot_key_groups_are_listed_and_marked_in_their_bars(page: Page) -> None:
    with Cluster(1, AGAIN) as cluster:
        cluster.deal(2, DATA)
        cluster["a"].hot = ((17, 0.4),)
        page.open(cluster["a"].url + "/")
        page.shows("document.querySelectorAll('#hot tbody tr').length === 4")
        row = page.run(
            "[...document.querySelector('#hot tbody tr').cells].map(cell => cell.innerText)"
        )
        assert [row[0], row[4], row[5]] == ["17", "1/s", "40 %"]
        place = page.run(
            "(() => { const box = selector => document.querySelector(selector).getBoundingClientRect(); "
            "return (box('.hot').left - box('.bar').left) / box('.bar').width })()"
        )
        assert place == pytest.approx(17 / 256, abs=0.002)
        cluster["a"].hot = ()
        page.shows(
            "!document.querySelector('.hot') && !document.querySelector('#hot table')"
        )


def test_a_chosen_task_says_whose_time_its_windows_wait_for(page: Page) -> None:
    with Cluster(1, AGAIN) as cluster:
        cluster.deal(2, DATA)
        awaited = AwaitedTime(0, 3, "0..127", None, "b", 12.0)
        cluster["a"].time = TimeStatus(1_700_000_000_000, awaited)
        page.open(cluster["a"].url + "/")
        page.shows("document.querySelectorAll('.range').length === 4")
        page.run("document.querySelector('.range').click()")
        page.shows("document.querySelector('#chosen').innerText.includes('clock')")
        said = page.text("#chosen").split("\n")
        assert said[said.index("clock") + 1] == (
            "2023-11-14T22:13:20.000Z; for 12 s no later time of 0_3, key groups 0..127, of b"
        )


def test_keys_and_readers_of_screens_get_at_everything(
    page: Page, cluster: Cluster
) -> None:
    page.open(cluster["a"].url + "/")
    page.shows("document.querySelectorAll('.range').length === 4")
    page.run("document.querySelector('.range[tabindex=\"0\"]').focus()")
    page.press("ArrowRight", "ArrowDown")
    task = page.run("document.activeElement.dataset.task")
    assert task == "0_1[128..255]"
    assert page.text("#chosen").split("\n")[:2] == ["task", task]
    page.run("document.querySelector('details').open = true")
    page.shows("document.querySelectorAll('#table tbody tr').length === 4")
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if "role" in node
    ]
    without = {
        role
        for role, name in named
        if role in ("button", "link", "image", "textbox", "combobox") and not name
    }
    assert without == set()
    assert [
        name
        for role, name in named
        if role == "image" and name.startswith("Records per second: 10/s now")
    ]


def test_stores_are_asked_as_the_interface_has_them(
    page: Page, cluster: Cluster
) -> None:
    page.open(cluster["a"].url + "/#stores")
    page.shows("document.querySelectorAll('#stores tbody tr').length === 100")
    page.run(
        "document.querySelector('#stores [name=prefix]').value = 'of another question'"
    )
    page.run("document.querySelector('#stores .more').click()")
    page.shows("document.querySelectorAll('#stores tbody tr').length === 50")

    def ask(store: str, how: str, **fields: str) -> list[list[str]]:
        script = """(store, how, fields) => {
            document.querySelector(`[data-store="${store}"]`).click();
            const select = document.querySelector("#stores select");
            select.value = how;
            select.dispatchEvent(new Event("change"));
            for (const [name, value] of Object.entries(fields))
                document.querySelector(`#stores [name="${name}"]`).value = value;
            document.querySelector("#stores [aria-live]").replaceChildren();
            document.querySelector("#stores form").requestSubmit();
        }"""
        page.run(f"({script})(...{json.dumps([store, how, fields])})")
        page.shows("document.querySelector('#stores [aria-live]').firstChild")
        rows = "[...document.querySelectorAll('#stores tbody tr')]"
        return page.run(  # type: ignore[no-any-return]
            f"{rows}.map(row => [...row.cells].map(cell => cell.innerText))"
        )

    assert ask("counts", "keys", key="w7")[0][:2] == ["w7", "7"]
    assert [row[0] for row in ask("counts", "range", prefix="w14")] == [
        "w14",
        *(f"w14{i}" for i in range(10)),
    ]
    assert [row[2] for row in ask("hours", "windows", key="k")] == ["1", "2"]
    assert [row[2] for row in ask("hours", "windows", key="k", **{"from": "1"})] == [
        "2"
    ]
    assert [row[2] for row in ask("visits", "sessions", key="k")] == ["1"]
    assert [row[2] for row in ask("prices", "versions", key="k")] == ["cheap", "dear"]
    large = "9007199254740993"
    assert ask("numbers", "keys", key=large)[0] == [
        large,
        f'["{large}"]',
        "1700000000000000000",
    ]
    assert ask("counts", "keys", key="nowhere") == []
    assert 'store counts has no key "nowhere"' in page.text("#stores")
    assert ask("prices", "keys", key="")[0][:2] == ["", "0"]
    assert ask("prices", "keys", key=".") == []  # and not the answer for the empty key
    assert "from key . to key ." in page.text("#stores")
    assert [row[:2] for row in ask("prices", "range", **{"from": ".", "to": "."})] == [
        [".", "1"]
    ]


def test_the_page_asks_for_the_tokens_that_it_needs_and_keeps_them_out_of_urls(
    page: Page,
) -> None:
    with Cluster(1, AGAIN, access=[Access(TOKENS)]) as cluster:
        cluster.deal(1, DATA)
        page.open(cluster["a"].url + "/")
        for view, token, seen in (
            ("", OPERATE, "#overview .range"),
            ("#stores", READ, "#stores tbody tr"),
        ):
            page.run(f"location.hash = '{view}'")
            page.shows("!document.querySelector('#access').hidden")
            page.run(f"document.querySelector('#token').value = '{token}'")
            page.run("document.querySelector('#access').requestSubmit()")
            page.shows(f"document.querySelector('{seen}')")
        page.ask("Page.reload")
        page.shows("document.querySelectorAll('#stores tbody tr').length")
        addresses = page.run(
            "[location.href, ...performance.getEntries().map(entry => entry.name)].join()"
        )
        assert READ not in addresses
        assert OPERATE not in addresses
        assert (
            page.run("document.cookie + Object.values(localStorage).join()") == "system"
        )


def test_a_page_that_opens_at_the_stores_gets_the_status_with_the_token_that_was_typed_in(
    page: Page,
) -> None:
    with Cluster(1, AGAIN, access=[Access(TOKENS)]) as cluster:
        cluster.deal(1, DATA)
        page.open(cluster["a"].url + "/#stores")
        for token, seen in (
            (OPERATE, "document.body.dataset.at"),
            (READ, "document.querySelector('#stores tbody')"),
        ):
            page.shows("!document.querySelector('#access').hidden")
            page.run(f"document.querySelector('#token').value = '{token}'")
            page.run("document.querySelector('#access').requestSubmit()")
            page.shows(seen)


def test_the_policy_lets_no_other_script_run_and_no_other_host_be_asked(
    page: Page, cluster: Cluster
) -> None:
    page.open(cluster["a"].url + "/")
    page.shows("document.body.dataset.at")
    assert page.complaints() == []
    blocked = page.run(
        "(() => { let refused = 0; try { document.body.innerHTML = '<b>x</b>' } catch { refused += 1 }"
        "const script = document.createElement('script'); "
        "try { script.text = '1' } catch { refused += 1 } return refused })()"
    )
    assert blocked == 2
    elsewhere = (
        f"fetch('{cluster['b'].url}/health/live').then(() => 'asked', () => 'refused')"
    )
    assert page.run(elsewhere) == "refused"
    assert any(
        "Content Security Policy" in complaint for complaint in page.complaints()
    )


def test_the_page_is_small_and_names_no_host() -> None:
    files = list(FILES.iterdir())
    assert sum(file.stat().st_size for file in files) < 150_000
    hosts = {
        host
        for file in files
        for host in re.findall(r"https?://[\w.-]+", file.read_text())
    }
    assert hosts == {"http://www.w3.org"}  # the namespace of SVG


def test_files_are_asked_for_again_by_their_tags(cluster: Cluster) -> None:
    url = cluster["a"].url
    first = httpx.get(url + "/page/main.js", trust_env=False, timeout=60)
    again = httpx.get(
        url + "/page/main.js",
        headers={"if-none-match": first.headers["etag"]},
        trust_env=False,
        timeout=60,
    )
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    for name in ("nope.js", "..%2Fapp.py", "%2e%2e/app.py"):
        answer = httpx.get(f"{url}/page/{name}", trust_env=False, timeout=60)
        assert (answer.status_code, answer.json()["error"]) == (404, "UNKNOWN_PATH")


def first_event(lines: Iterator[str]) -> dict[str, Any]:
    return next(
        json.loads(line.removeprefix("data: "))
        for line in lines
        if line.startswith("data: ")
    )


def test_streams_are_bounded_and_end_with_the_server() -> None:
    with (
        Cluster(2, dataclasses.replace(AGAIN, streams=2)) as cluster,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        cluster.deal(2, DATA)
        url = cluster["a"].url + "/v1/status"
        with (
            client.stream("GET", url, headers=STREAM) as one,
            client.stream("GET", url, headers=STREAM) as two,
        ):
            events = (
                one.iter_lines(),
                two.iter_lines(),
            )  # httpx closes a response when its iterator is collected
            assert [
                instance["id"] for instance in first_event(events[0])["instances"]
            ] == ["a", "b"]
            assert first_event(events[1])["here"] == "a"
            refused = client.get(url, headers=STREAM)
            assert (refused.status_code, refused.json()["error"]) == (
                503,
                "TOO_MANY_STREAMS",
            )
        request = client.build_request("GET", url, headers=STREAM)
        while (
            answer := client.send(request, stream=True)
        ).status_code == httpx.codes.SERVICE_UNAVAILABLE:
            answer.close()  # the server has not yet noticed that those two are closed
        lines = answer.iter_lines()
        assert first_event(lines)["here"] == "a"
        cluster["a"].server.stop()
        assert all(
            line.startswith(("event: ", "data: ")) or not line for line in lines
        )  # to its end, without an error


def test_a_stream_is_compressed_event_by_event(cluster: Cluster) -> None:
    packed = []
    with httpx.stream(
        "GET",
        cluster["a"].url + "/v1/status",
        headers=STREAM,
        trust_env=False,
        timeout=60,
    ) as response:
        assert response.headers["content-encoding"] == "gzip"
        for chunk in response.iter_raw():
            packed.append(chunk)
            if len(packed) == 4:
                break
    events = (
        zlib.decompressobj(16 + zlib.MAX_WBITS)
        .decompress(b"".join(packed))
        .split(b"\n\n")
    )
    assert len(events) >= 3
    assert len(packed[-1]) < len(events[0]) / 5
