"""The topics of `examples/flights.py`, and the flights of 2013 in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, TypeVar

import orjson

from coopstreams.log.log import Log, TopicSpec, Writer
from examples.demo.answers import DepartureTally
from examples.demo.flights import Airline, Departure, FlightsData, Plane

TOPICS = ("flights", "airlines", "planes", "delays-by-hour")
BATCH = 4000
FLUSH_S = 60.0
BEFORE_ALL_FLIGHTS_MS = 1

T = TypeVar("T")


def create_topics(log: Log) -> None:
    """Create the topics that the example reads and writes, with one partition each, so
    that processes must share it.

    Records have the time of their event, 2013: a topic with Kafka's retention of a week
    would delete them at once.
    """
    log.create_topics([TopicSpec(topic, 1, {"retention.ms": "-1"}) for topic in TOPICS])


def load(
    log: Log, data: FlightsData, most: int | None, progress: Callable[[int], None]
) -> DepartureTally:
    """Write airlines, planes and departures (the first `most`); return the expected
    answers, counted on the way.

    `progress` is called with the number of departures written since the last call.
    """
    airlines, planes = list(data.airlines()), list(data.planes())
    tally = DepartureTally(airlines, planes)
    with closing(log.writer()) as writer:
        _write(
            writer,
            "airlines",
            [
                (airline.carrier, airline_value(airline), BEFORE_ALL_FLIGHTS_MS)
                for airline in airlines
            ],
        )
        _write(
            writer,
            "planes",
            [
                (plane.tail_number, plane_value(plane), BEFORE_ALL_FLIGHTS_MS)
                for plane in planes
            ],
        )
        for departures in _batches(islice(data.departures(), most)):
            _write_departures(writer, departures)
            for departure in departures:
                tally.add(departure)
            progress(len(departures))
        writer.flush(FLUSH_S)
    return tally


def write_departures(log: Log, departures: Iterable[Departure]) -> None:
    """Write departures, in this order."""
    with closing(log.writer()) as writer:
        for batch in _batches(departures):
            _write_departures(writer, batch)
        writer.flush(FLUSH_S)


def departure_value(departure: Departure) -> dict[str, Any]:
    """Return a departure as the example's `Flight` reads it."""
    return {
        "carrier": departure.carrier,
        "flight": departure.flight,
        "tail_number": departure.tail_number,
        "origin": departure.origin,
        "dest": departure.dest,
        "dep_delay": departure.dep_delay,
        "time_ms": departure.time_ms,
    }


def airline_value(airline: Airline) -> dict[str, Any]:
    """Return a carrier as the example's `Airline` reads it."""
    return {"name": airline.name}


def plane_value(plane: Plane) -> dict[str, Any]:
    """Return an aircraft as the example's `Plane` reads it."""
    return {
        "manufacturer": plane.manufacturer,
        "model": plane.model,
        "seats": plane.seats,
    }


def _write_departures(writer: Writer, departures: Iterable[Departure]) -> None:
    _write(
        writer,
        "flights",
        [
            (departure.tail_number, departure_value(departure), departure.time_ms)
            for departure in departures
        ],
    )


def _write(
    writer: Writer, topic: str, records: list[tuple[str | None, dict[str, Any], int]]
) -> None:
    keys = [None if key is None else key.encode() for key, _, _ in records]
    writer.append(
        topic,
        keys,
        [orjson.dumps(value) for _, value, _ in records],
        [timestamp for _, _, timestamp in records],
    )


def _batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """Yield the rows in lists of `BATCH`, the last one shorter."""
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH)):
        yield batch
