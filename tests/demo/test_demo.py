"""The demo: its expected answers are right, a wrong one is found, its progress is
exact; and a full run, on part of the data.
"""

from __future__ import annotations

import io
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from coopstreams.commands.topology_target import load_topology
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from examples.demo import scenes as demo
from examples.demo.answers import HOUR_MS, Answers, Delay, DepartureTally, differences
from examples.demo.browser import NAMES, WIDTH
from examples.demo.data import airline_value, departure_value, plane_value
from examples.demo.flights import Airline, Departure, FlightsData, Plane, flights_data
from examples.demo.pictures import PICTURES
from examples.demo.progress import HighestPositions, RunningRange, owned, shared
from examples.demo.run import SOURCES
from examples.demo.screen import answers, verdict

AIRLINES = [Airline("UA", "United"), Airline("B6", "JetBlue")]
PLANES = [Plane("N1", 1999, "fixed", "BOEING", "737", 2, 100)]

by_key = st.dictionaries(
    st.text(max_size=3),
    st.builds(
        Delay,
        st.text(max_size=2),
        st.integers(1, 9),
        st.integers(-99, 99),
        st.integers(0, 99),
    ),
)


@pytest.fixture(scope="module")
def data() -> FlightsData:
    return flights_data()


def departure(
    carrier: str, tail: str | None, minutes: float | None, time_ms: int = 0
) -> Departure:
    return Departure(
        time_ms, carrier, 1, tail, "EWR", "IAH", minutes, None, None, 100.0
    )


def tallied(*departures: Departure) -> Answers:
    tally = DepartureTally(AIRLINES, PLANES)
    for one in departures:
        tally.add(one)
    return tally.answers


def test_delays_are_counted_by_aircraft_and_by_carrier_and_hour() -> None:
    found = tallied(
        departure("UA", "N1", 10.0),
        departure("UA", "N1", -4.0, HOUR_MS - 1),
        departure("UA", "N2", 3.0, HOUR_MS),
        departure("B6", "N2", 60.0, HOUR_MS),
    )
    assert found.by_aircraft == {
        "N1": Delay("737", 2, 6.0, 10.0),
        "N2": Delay("unknown", 2, 63.0, 60.0),
    }
    assert found.by_hour == {
        ("UA", 0): Delay("United", 2, 6.0, 10.0),
        ("UA", HOUR_MS): Delay("United", 1, 3.0, 3.0),
        ("B6", HOUR_MS): Delay("JetBlue", 1, 60.0, 60.0),
    }
    assert found.by_carrier() == {
        "UA": Delay("United", 3, 9.0, 10.0),
        "B6": Delay("JetBlue", 1, 60.0, 60.0),
    }
    assert found.by_aircraft["N1"].mean == 3.0


def test_a_departure_that_never_left_an_unknown_aircraft_and_an_unknown_carrier_do_not_count() -> (
    None
):
    found = tallied(
        departure("UA", "N1", None),
        departure("UA", None, 5.0),
        departure("??", "N1", 7.0),
    )
    assert found.by_aircraft == {"N1": Delay("737", 1, 7.0, 7.0)}
    assert found.by_hour == {("UA", 0): Delay("United", 1, 5.0, 5.0)}


@pytest.mark.ci
@given(by_key)
def test_equal_answers_have_no_differences(delays: dict[str, Delay]) -> None:
    assert (
        differences(delays, {key: replace(delay) for key, delay in delays.items()})
        == []
    )


@given(by_key.filter(bool), st.data())
def test_one_planted_difference_is_found_and_no_other(
    delays: dict[str, Delay], draw: st.DataObject
) -> None:
    key = draw.draw(st.sampled_from(sorted(delays)))
    right = delays[key]
    wrong = draw.draw(
        st.sampled_from(
            [
                replace(right, count=right.count + 1),
                replace(right, total=right.total + 1),
                replace(right, longest=-1.0),
                None,
            ]
        )
    )
    found = {other: delay for other, delay in delays.items() if other != key} | (
        {key: wrong} if wrong else {}
    )
    assert differences(delays, found) == [(key, right, wrong)]
    assert differences(found, delays) == [(key, wrong, right)]


def test_the_verdict_names_what_differs_and_on_which_side() -> None:
    right = tallied(departure("UA", "N1", 10.0), departure("UA", "N2", 5.0))
    wrong = tallied(departure("UA", "N1", 10.0), departure("UA", "N2", 6.0))
    screen = io.StringIO()
    console = Console(width=200, file=screen)
    assert not verdict(console, wrong, right)
    assert verdict(console, right, right)
    console.print(answers(wrong, right))
    said = screen.getvalue()
    assert "NOT EQUAL: 1 of 2 aircraft" in said
    assert (
        "N2: HTTP unknown: 1 departures, mean 6.00, longest 6; CSV unknown: 1 departures, mean 5.00, longest 5"
        in said
    )
    assert "equal: 2 aircraft" in said


@pytest.mark.ci
@pytest.mark.parametrize("ranges", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_example_computes_what_plain_loops_compute(
    data: FlightsData, ranges: int
) -> None:
    departures = list(itertools.islice(data.departures(), 0, 33_600, 28))
    tally = DepartureTally(data.airlines(), data.planes())
    with TopologyTestDriver(load_topology(str(demo.PROGRAM)), ranges=ranges) as driver:
        airlines = driver.input("airlines", serdes.text, serdes.json)
        for airline in data.airlines():
            airlines.send(airline.carrier, airline_value(airline), 1)
        planes = driver.input("planes", serdes.text, serdes.json)
        for plane in data.planes():
            planes.send(plane.tail_number, plane_value(plane), 1)
        flights = driver.input("flights", serdes.text, serdes.json)
        for one in departures:
            flights.send(one.tail_number, departure_value(one), one.time_ms)
            tally.add(one)
        found = Answers(
            {
                row.key: like(row.value)
                for row in driver.store("delays-by-aircraft").all()
            },
            {
                (row.key.key, row.key.start_ms): like(row.value)
                for row in driver.store("delays-by-carrier").all()
            },
        )
    assert differences(tally.answers.by_aircraft, found.by_aircraft) == []
    assert differences(tally.answers.by_hour, found.by_hour) == []
    assert tally.departed > 1000


def like(value: Any) -> Delay:
    return Delay(value.name, value.count, value.total, value.longest)


def test_the_demo_knows_what_the_example_reads() -> None:
    topology = load_topology(str(demo.PROGRAM))
    reads = {part.id: set(part.topics) for part in topology.subtopologies}
    assert {number: set(topics) for number, topics in SOURCES.items()} == reads


def report(*instances: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "instances": [
            {"state": "running", "url": f"http://{number}", **one}
            for number, one in enumerate(instances)
        ]
    }


def task(
    subtopology: int, key_range: str, state: str | None = "running", **committed: int
) -> Mapping[str, Any]:
    sources = [{"topic": topic, "committed": at} for topic, at in committed.items()]
    return {
        "subtopology": subtopology,
        "key_range": key_range,
        "state": state,
        "sources": sources,
    }


def test_a_stage_is_done_when_every_key_group_was_seen_at_the_end_whoever_had_it() -> (
    None
):
    positions = HighestPositions()
    assert not positions.done(0, {"a": 0})
    positions.take(
        report(
            {"tasks": [task(0, "0..127", a=100, b=3)]},
            {"tasks": [task(0, "128..255", a=60, b=3)]},
        )
    )
    assert positions.records(0, "a") == 80
    assert not positions.done(0, {"a": 100, "b": 3})
    positions.take(report({"tasks": []}, {"tasks": [task(0, "128..255", a=100, b=3)]}))
    assert positions.done(0, {"a": 100, "b": 3})
    assert not positions.done(0, {"a": 101, "b": 3})
    assert not positions.done(1, {"a": 0})


def test_a_process_that_does_not_answer_has_nothing_and_takes_nothing_away() -> None:
    positions = HighestPositions()
    positions.take(report({"tasks": [task(0, "0..255", a=10)]}))
    gone = report(
        {
            "state": "unreachable",
            "tasks": [{"subtopology": 0, "key_range": "0..255", "state": None}],
        }
    )
    positions.take(gone)
    assert positions.records(0, "a") == 10
    assert owned(gone) == {"http://0": []}


def test_a_partition_is_shared_when_all_processes_run_all_of_every_stage() -> None:
    parts = owned(
        report(
            {"tasks": [task(0, "0..127"), task(1, "0..99")]},
            {"tasks": [task(0, "128..255"), task(1, "100..255")]},
        )
    )
    assert parts["http://0"][0] == RunningRange(0, 0, 127, "running")
    assert shared(parts, ["http://0", "http://1"], [0, 1])
    assert not shared(parts, ["http://0"], [0, 1])
    assert not shared(parts, ["http://0", "http://1", "http://2"], [0, 1])
    restoring = owned(
        report(
            {"tasks": [task(0, "0..127")]},
            {"tasks": [task(0, "128..255", "restoring")]},
        )
    )
    assert not shared(restoring, ["http://0", "http://1"], [0])


def run_demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "examples.demo.scenes",
        "--once",
        "--data",
        str(folder),
        *options,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=280
    )


@pytest.mark.ci
def test_a_folder_of_somebody_elses_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("six years")
    done = run_demo(tmp_path)
    assert done.returncode == 1
    assert "is not a demo's folder and is not empty" in done.stdout
    assert (tmp_path / "thesis.txt").read_text() == "six years"


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, NAMES)),
    reason="no chromium here: apt-get install chromium",
)
def test_the_story_leaves_its_pictures_and_begins_with_the_address_of_the_page(
    tmp_path: Path,
) -> None:
    done = run_demo(
        tmp_path / "demo",
        "--departures",
        "60000",
        "--screenshots",
        str(tmp_path / "pictures"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The page to watch it on" in done.stdout.split("Kafka")[0]
    for name in PICTURES:
        assert_is_a_small_picture(tmp_path / "pictures" / f"{name}.png")


def test_the_pictures_in_the_readme_are_those_of_the_demo() -> None:
    root = Path(__file__).resolve().parents[2]
    shown = re.findall(r"docs/images/(\w+)\.png", (root / "README.md").read_text())
    assert set(shown) <= PICTURES.keys()
    assert {
        file.stem for file in (root / "docs" / "images").glob("*.png")
    } == PICTURES.keys()
    for name in PICTURES:
        assert_is_a_small_picture(root / "docs" / "images" / f"{name}.png")


def assert_is_a_small_picture(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == WIDTH
    assert len(data) < 150_000


@pytest.mark.ci
def test_the_whole_demo_on_part_of_the_data_ends_with_equal_answers_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    done = run_demo(tmp_path / "demo", "--departures", "30000")
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "the partition is shared",
        "is killed (SIGKILL)",
        "the others have taken over",
        "every record is processed",
    ):
        assert said in done.stdout
    assert done.stdout.count("\nequal: ") == 2
    assert "NO" not in done.stdout
    left = subprocess.run(
        ["ps", "-eo", "command"], capture_output=True, text=True, check=True
    ).stdout
    assert str(tmp_path) not in left
