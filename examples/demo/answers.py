"""The expected answers of `examples/flights.py`, computed from the CSV files by plain
loops, and the comparison. Pure.

It shares no code with the example: a mistake in the topology would otherwise be in
both, and pass as equal.

Delays are whole minutes, so sums of floats are exact and means are compared with `==`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from examples.demo.flights import Airline, Departure, Plane

HOUR_MS = 3_600_000

K = TypeVar("K")


@dataclass(slots=True)
class Delay:
    """The delay of some departures. Units: minutes."""

    name: str
    count: int = 0
    total: float = 0.0
    longest: float = float("-inf")

    @staticmethod
    def of(value: Mapping[str, Any]) -> Delay:
        """Return the delay in a JSON value of the example's stores."""
        return Delay(value["name"], value["count"], value["total"], value["longest"])

    @staticmethod
    def together(delays: Iterable[Delay]) -> Delay:
        """Return the combined delay of these departures."""
        whole = Delay("")
        for delay in delays:
            whole.name = delay.name
            whole.count += delay.count
            whole.total += delay.total
            whole.longest = max(whole.longest, delay.longest)
        return whole

    def add(self, minutes: float) -> None:
        """Count one more departure."""
        self.count += 1
        self.total += minutes
        self.longest = max(self.longest, minutes)

    @property
    def mean(self) -> float:
        """The mean delay of a departure; 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    def __str__(self) -> str:
        return f"{self.name}: {self.count:,} departures, mean {self.mean:.2f}, longest {self.longest:g}"


@dataclass(slots=True)
class Answers:
    """Delays by tail number, and by carrier and hour of planned departure (its start,
    ms since the epoch).
    """

    by_aircraft: dict[str, Delay] = field(default_factory=dict)
    by_hour: dict[tuple[str, int], Delay] = field(default_factory=dict)

    def by_carrier(self) -> dict[str, Delay]:
        """Return the delays by carrier, over all hours."""
        hours: dict[str, list[Delay]] = {}
        for (carrier, _), delay in self.by_hour.items():
            hours.setdefault(carrier, []).append(delay)
        return {carrier: Delay.together(delays) for carrier, delays in hours.items()}


class DepartureTally:
    """Counts departures as they come: `answers` has the expected answers so far."""

    def __init__(self, airlines: Iterable[Airline], planes: Iterable[Plane]) -> None:
        self.answers = Answers()
        self.departed = 0
        """Departures that took place, and so have a delay."""
        self.carriers = {airline.carrier: airline.name for airline in airlines}
        self._models = {plane.tail_number: plane.model or "?" for plane in planes}

    def add(self, departure: Departure) -> None:
        """Count a departure.

        A cancelled one has no delay, one without a tail number no aircraft, one of an
        unknown carrier no carrier.
        """
        minutes = departure.dep_delay
        if minutes is None:
            return
        self.departed += 1
        if (tail := departure.tail_number) is not None:
            aircraft = self.answers.by_aircraft.get(tail)
            if aircraft is None:
                aircraft = self.answers.by_aircraft[tail] = Delay(
                    self._models.get(tail, "unknown")
                )
            aircraft.add(minutes)
        if (name := self.carriers.get(departure.carrier)) is not None:
            where = departure.carrier, departure.time_ms - departure.time_ms % HOUR_MS
            hour = self.answers.by_hour.get(where)
            if hour is None:
                hour = self.answers.by_hour[where] = Delay(name)
            hour.add(minutes)


def differences(
    expected: Mapping[K, Delay], found: Mapping[K, Delay]
) -> list[tuple[K, Delay | None, Delay | None]]:
    """Return the unequal keys: the key, the expected delay (None: nothing), the found
    one (None: missing).
    """
    keys = [*expected, *(key for key in found if key not in expected)]
    return [
        (key, expected.get(key), found.get(key))
        for key in keys
        if expected.get(key) != found.get(key)
    ]
