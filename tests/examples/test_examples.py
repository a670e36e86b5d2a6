"""The examples on small inputs; `make demo` runs the flights on the full data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from tests.examples.loading import EXAMPLES, loaded

HOUR = 3_600_000
NEW_YEAR = 1_356_998_400_000 + 5 * HOUR
"""The first of January 2013 in New York. Units: ms."""


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Return the example of the test's parameter, freshly loaded."""
    with loaded(request.param) as module:
        yield module


def test_every_example_is_executed_here_or_by_the_pages_of_the_guide() -> None:
    of_the_guide = {"guide", "shop"}
    assert {
        path.stem
        for path in EXAMPLES.glob("*.py")
        if not path.stem.startswith("consumer_")
    } == {
        "flights",
        "machines",
        "payments",
        "prices",
        "word_count",
    } | of_the_guide


@pytest.mark.parametrize("example", ["word_count"], indirect=True)
@pytest.mark.parametrize("ranges", [1, 3])
def test_words_are_counted(example: ModuleType, ranges: int) -> None:
    with TopologyTestDriver(example.topology, ranges) as driver:
        lines = driver.input("lines", serdes.raw, serdes.text)
        lines.send(b"", "To be or not to be")
        lines.send(b"", "that is the question")
        counts = driver.output("word-counts", serdes.text, serdes.int64)
        assert counts.latest() == {
            "to": 2,
            "be": 2,
            "or": 1,
            "not": 1,
            "that": 1,
            "is": 1,
            "the": 1,
            "question": 1,
        }
        assert driver.store("counts").get("to") == 2


def departures(example: ModuleType) -> list[Any]:
    """Seven departures: two carriers, three aircraft of which one is unknown, two
    hours, one that never left.
    """
    rows = [
        ("UA", 1, "N1", 2.0, 0),
        ("UA", 2, "N2", 40.0, 10),
        ("AA", 3, "N3", -3.0, 20),
        ("AA", 4, "N1", None, 30),
        ("UA", 5, "N1", 6.0, 61),
        ("AA", 6, "N3", 9.0, 62),
        ("UA", 7, "N2", 0.0, 5),
    ]
    return [
        example.Flight(
            carrier, flight, tail, "EWR", "BOS", delay, NEW_YEAR + minute * 60_000
        )
        for carrier, flight, tail, delay, minute in rows
    ]


def fly(example: ModuleType, driver: TopologyTestDriver) -> None:
    airlines = driver.input("airlines", serdes.text, serdes.json(example.Airline))
    planes = driver.input("planes", serdes.text, serdes.json(example.Plane))
    flights = driver.input("flights", serdes.text, serdes.json(example.Flight))
    airlines.send("UA", example.Airline("United"))
    airlines.send("AA", example.Airline("American"))
    planes.send("N1", example.Plane("BOEING", "737-824", 149))
    planes.send("N2", example.Plane("AIRBUS", "A320-232", 182))
    for flight in departures(example):
        flights.send(flight.tail_number, flight, flight.time_ms)


@pytest.mark.parametrize("example", ["flights"], indirect=True)
@pytest.mark.parametrize("ranges", [1, 2, 3, 8])
def test_delays_are_summed_by_aircraft_and_by_carrier_and_hour(
    example: ModuleType, ranges: int
) -> None:
    with TopologyTestDriver(example.topology, ranges) as driver:
        fly(example, driver)

        by_aircraft = {
            row.key: dataclasses.astuple(row.value)
            for row in driver.store("delays-by-aircraft").all()
        }
        assert by_aircraft == {
            "N1": ("737-824", 2, 8.0, 6.0),
            "N2": ("A320-232", 2, 40.0, 40.0),
            "N3": ("unknown", 2, 6.0, 9.0),
        }

        by_hour = {
            (row.key.key, (row.key.start_ms - NEW_YEAR) // HOUR): dataclasses.astuple(
                row.value
            )
            for row in driver.store("delays-by-carrier").all()
        }
        assert by_hour == {
            ("UA", 0): ("United", 3, 42.0, 40.0),
            ("AA", 0): ("American", 1, -3.0, -3.0),
            ("UA", 1): ("United", 1, 6.0, 6.0),
            ("AA", 1): ("American", 1, 9.0, 9.0),
        }
        assert (
            driver.store("delays-by-carrier")
            .fetch("UA", NEW_YEAR, NEW_YEAR)[0]
            .value.mean
            == 14.0
        )

        written = driver.output(
            "delays-by-hour",
            serdes.windowed(serdes.text, timedelta(milliseconds=HOUR)),
            serdes.json(example.Delay),
        ).latest()
        assert {
            (key.key, (key.start_ms - NEW_YEAR) // HOUR): dataclasses.astuple(delay)
            for key, delay in written.items()
        } == by_hour
        assert driver.dropped == {}


@pytest.mark.parametrize("example", ["flights"], indirect=True)
def test_an_aircraft_that_is_not_known_keeps_its_delays(example: ModuleType) -> None:
    with TopologyTestDriver(example.topology) as driver:
        driver.input("flights", serdes.text, serdes.json(example.Flight)).send(
            "N9", example.Flight("B6", 1, "N9", "JFK", "SFO", 5.0, NEW_YEAR)
        )
        assert driver.store("delays-by-aircraft").get("N9").name == "unknown"
        assert driver.store("delays-by-carrier").all() == [], (
            "its airline is not known either"
        )
