"""Delays of the 336,776 departures from New York in 2013: by carrier and hour, and by
aircraft.

Departures come in ONE partition, keyed by tail number. Three processes share it by key
range.

    flights ── with a delay ──┬── join planes ── by tail number ──> delays-by-aircraft
                              └── by carrier ── join airlines ── hour windows ──>
                              delays-by-carrier
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from coopstreams import StreamsBuilder, TimeWindows, serdes


@dataclass(frozen=True, slots=True)
class Flight:
    """A departure. `dep_delay` in minutes, None if it never left; `time_ms` when it
    should have.
    """

    carrier: str
    flight: int
    tail_number: str | None
    origin: str
    dest: str
    dep_delay: float | None
    time_ms: int


@dataclass(frozen=True, slots=True)
class Airline:
    """A carrier."""

    name: str


@dataclass(frozen=True, slots=True)
class Plane:
    """An aircraft."""

    manufacturer: str | None
    model: str | None
    seats: int | None


@dataclass(frozen=True, slots=True)
class Named:
    """A delay, and the name of its carrier or aircraft."""

    name: str
    delay: float


@dataclass(frozen=True, slots=True)
class Delay:
    """The total delay of departures. Units: minutes."""

    name: str
    count: int
    total: float
    longest: float

    @staticmethod
    def zero() -> Delay:
        """Return the delay of no departures."""
        return Delay("", 0, 0.0, float("-inf"))

    def add(self, departure: Named) -> Delay:
        """Return this delay with one more departure."""
        return Delay(
            departure.name,
            self.count + 1,
            self.total + departure.delay,
            max(self.longest, departure.delay),
        )

    @property
    def mean(self) -> float:
        """The mean delay of one departure."""
        return self.total / self.count


# The file has the months in the order 1, 10, 11, 12, 2, ...: February is ten months late.
GRACE = timedelta(days=366)
# The whole year is queried.
KEPT = timedelta(days=400)

builder = StreamsBuilder("flights")

planes = builder.table(
    "planes", key=serdes.text, value=serdes.json(Plane), store="planes"
)
airlines = builder.table(
    "airlines", key=serdes.text, value=serdes.json(Airline), store="airlines"
)
departed = builder.stream("flights", key=serdes.text, value=serdes.json(Flight)).filter(
    lambda _, flight: flight.dep_delay is not None
)

(
    departed.left_join(
        planes,
        lambda flight, plane: Named(
            plane.model or "?" if plane else "unknown", flight.dep_delay or 0.0
        ),
    )
    .group_by_key()
    .aggregate(
        Delay.zero,
        lambda _, departure, total: total.add(departure),
        value=serdes.json(Delay),
        store="delays-by-aircraft",
    )
)
(
    departed.select_key(lambda _, flight: flight.carrier, key=serdes.text)
    .repartition(name="by-carrier")
    .join(
        airlines, lambda flight, airline: Named(airline.name, flight.dep_delay or 0.0)
    )
    .group_by_key()
    .windowed_by(TimeWindows(hours=1, grace=GRACE))
    .aggregate(
        Delay.zero,
        lambda _, departure, total: total.add(departure),
        value=serdes.json(Delay),
        store="delays-by-carrier",
        retention=KEPT,
    )
    .to_stream()
    .to("delays-by-hour")
)
topology = builder.build()
