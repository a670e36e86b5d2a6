"""Types flow through every operator. Read by mypy and pyright, never run."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from coopstreams import (
    GlobalKTable,
    TimestampedRecord,
    TimeWindowedKStream,
    count,
    max_,
)
from coopstreams.testing import InputTopic, OutputTopic, TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.grouped import KGroupedStream
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.dsl.ktable import KTable
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.processors import CallContext
from coopstreams.topology.records import Record
from coopstreams.topology.serdes import Serde, Windowed
from coopstreams.topology.windows import SessionWindows, TimeWindows
from tests.durations import ms


@dataclass(frozen=True)
class Flight:
    carrier: str
    tail_number: str | None
    dep_delay: float | None
    time_ms: int


@dataclass(frozen=True)
class Airline:
    name: str


class Row(TypedDict):
    name: str


async def length(text: str) -> int:
    return len(text)


async def carrier_of(key: str, flight: Flight) -> str:
    return key + flight.carrier


async def remembered(
    record: Record[str, Flight], context: CallContext[int, str]
) -> None:
    context.forward(Record(record.value.time_ms, record.key, record.timestamp))


async def swapped(key: str, flight: Flight) -> tuple[int, str]:
    return flight.time_ms, key


builder = StreamsBuilder("types")
flights = builder.stream(
    "flights",
    key=serdes.text,
    value=serdes.json(Flight),
    timestamp=lambda record: record.value.time_ms if record.value else None,
)
airlines = builder.table("airlines", key=serdes.text, value=serdes.json(Airline))
assert_type(flights, KStream[str, Flight])
assert_type(airlines, KTable[str, Airline])


def event_time(record: TimestampedRecord[str, Flight]) -> int | None:
    return record.value.time_ms if record.value else None


assert_type(
    builder.stream(
        ["a", "b"], key=serdes.text, value=serdes.json(Flight), timestamp=event_time
    ),
    KStream[str, Flight],
)

assert_type(
    builder.stream(
        re.compile("flights-.*"), key=serdes.text, value=serdes.json(Flight)
    ),
    KStream[str, Flight],
)

# serdes
assert_type(serdes.json(Flight), Serde[Flight])
assert_type(serdes.json(Row), Serde[Row])
assert_type(serdes.json(list[int]), Serde[list[int]])
serdes.json(Flight | None)
assert_type(serdes.json.deserialize(b"1"), Any)
assert_type(serdes.text.deserialize(b"a"), str)
assert_type(serdes.int64.serialize(1), bytes)
assert_type(
    serdes.windowed(serdes.text, timedelta(milliseconds=1000)), Serde[Windowed[str]]
)

# stateless
assert_type(flights.filter(lambda _, f: f.dep_delay is not None), KStream[str, Flight])
assert_type(flights.filter_not(lambda _, f: f.dep_delay is None), KStream[str, Flight])
assert_type(flights.map(lambda k, f: (len(k), f.carrier)), KStream[int, str])
assert_type(flights.flat_map(lambda k, f: [(len(k), f.carrier)]), KStream[int, str])
assert_type(flights.map_values(lambda f: f.time_ms), KStream[str, int])
assert_type(
    flights.map_values_with_key(lambda k, f: (k, f.time_ms)),
    KStream[str, tuple[str, int]],
)
assert_type(flights.flat_map_values(lambda f: [f.time_ms]), KStream[str, int])
assert_type(flights.flat_map_values_with_key(lambda k, f: [k]), KStream[str, str])
assert_type(
    builder.stream("texts", key=serdes.raw, value=serdes.text).map_values_async(length),
    KStream[bytes, int],
)
assert_type(
    flights.map_values_async(lambda f: f.time_ms, order="none"), KStream[str, int]
)
assert_type(
    flights.map_values_with_key_async(lambda k, f: (k, f.time_ms)),
    KStream[str, tuple[str, int]],
)
assert_type(flights.map_values_with_key_async(carrier_of), KStream[str, str])
assert_type(flights.map_async(swapped, timeout=None), KStream[int, str])
assert_type(flights.map_async(lambda k, f: (f.time_ms, k)), KStream[int, str])
assert_type(flights.flat_map_async(lambda k, f: [(f.time_ms, k)]), KStream[int, str])
assert_type(
    flights.flat_map_values_with_key_async(lambda k, f: [f.time_ms]), KStream[str, int]
)
assert_type(flights.process_async(remembered), KStream[int, str])
assert_type(flights.select_key(lambda _, f: f.time_ms), KStream[int, Flight])
assert_type(
    flights.select_key(lambda _, f: f.tail_number, key=serdes.text),
    KStream[str, Flight],
)
assert_type(flights.peek(print), KStream[str, Flight])
assert_type(flights.merge(flights), KStream[str, Flight])
assert_type(flights.repartition(partitions=3), KStream[str, Flight])
assert_type(
    builder.stream("lines", key=serdes.raw, value=serdes.text).flat_map_values(
        str.split
    ),
    KStream[bytes, str],
)
assert_type(flights.distinct(timedelta(hours=1), by="time_ms"), KStream[str, Flight])

# grouped
by_carrier = flights.group_by(lambda _, f: f.carrier, key=serdes.text)
assert_type(by_carrier, KGroupedStream[str, Flight])
assert_type(
    flights.group_by(lambda _, f: f.tail_number, key=serdes.text),
    KGroupedStream[str, Flight],
)
assert_type(flights.group_by_key(), KGroupedStream[str, Flight])
assert_type(by_carrier.count(), KTable[str, int])
assert_type(
    flights.map_values(lambda f: f.time_ms, value=serdes.int64).group_by_key().mean(),
    KTable[str, float],
)
assert_type(by_carrier.reduce(lambda old, new: new), KTable[str, Flight])
assert_type(by_carrier.reduce(lambda old, new: None), KTable[str, Flight])
assert_type(
    by_carrier.aggregate(
        float, lambda _, f, total: total + (f.dep_delay or 0.0), value=serdes.float64
    ),
    KTable[str, float],
)
assert_type(
    by_carrier.aggregate(
        int, lambda _, f, n: n + 1 if f.dep_delay else None, value=serdes.int64
    ),
    KTable[str, int],
)
assert_type(
    by_carrier.aggregate(n=count(), worst=max_("dep_delay"), store="several"),
    KTable[str, dict[str, Any]],
)

# windows
hours = by_carrier.windowed_by(TimeWindows(hours=1, grace=timedelta(hours=6)))
assert_type(hours, TimeWindowedKStream[str, Flight])
assert_type(hours.count(retention=timedelta(days=1)), KTable[Windowed[str], int])
assert_type(hours.late(), KStream[str, Flight])
assert_type(
    by_carrier.windowed_by(SessionWindows(milliseconds=5)).late(name="late"),
    KStream[str, Flight],
)


def add_time(_: str, flight: Flight, total: int) -> int:
    return total + flight.time_ms


cogrouped = by_carrier.cogroup(add_time).cogroup(
    airlines.to_stream().group_by_key(), lambda _, a, n: n + len(a.name)
)
assert_type(
    cogrouped.windowed_by(TimeWindows(hours=1)).late(by_carrier), KStream[str, Flight]
)
assert_type(
    builder.table(
        "old-airlines", key=serdes.text, value=serdes.json(Airline), history=ms(5)
    ).late(),
    KStream[str, Airline],
)
assert_type(hours.reduce(lambda old, new: new), KTable[Windowed[str], Flight])
assert_type(
    hours.aggregate(int, lambda _, f, n: n + f.time_ms, value=serdes.int64).to_stream(),
    KStream[Windowed[str], int],
)
assert_type(
    hours.aggregate(n=count(), retention=timedelta(days=1)),
    KTable[Windowed[str], dict[str, Any]],
)
assert_type(
    by_carrier.windowed_by(SessionWindows(minutes=5)).aggregate(n=count()),
    KTable[Windowed[str], dict[str, Any]],
)
assert_type(
    by_carrier.cogroup(n=count())
    .cogroup(airlines.to_stream().group_by_key(), airlines=count())
    .aggregate(),
    KTable[str, dict[str, Any]],
)
assert_type(
    hours.count().to_stream().select_key(lambda w, _: w.key, key=serdes.text),
    KStream[str, int],
)

# tables and joins
assert_type(airlines.filter(lambda _, a: a.name != ""), KTable[str, Airline])
assert_type(airlines.filter_not(lambda _, a: a.name == ""), KTable[str, Airline])
assert_type(airlines.map_values(lambda a: a.name), KTable[str, str])
assert_type(airlines.map_values_with_key(lambda k, a: k + a.name), KTable[str, str])
assert_type(airlines.to_stream(), KStream[str, Airline])
assert_type(
    flights.join(airlines, lambda f, a: (f.carrier, a.name)),
    KStream[str, tuple[str, str]],
)
assert_type(
    flights.join_with_key(airlines, lambda k, f, a: k + f.carrier + a.name),
    KStream[str, str],
)
assert_type(
    flights.left_join(airlines, lambda f, a: a.name if a else None),
    KStream[str, str | None],
)
assert_type(
    flights.left_join_with_key(airlines, lambda k, f, a: a.name if a else k),
    KStream[str, str],
)
assert_type(
    flights.join(airlines.map_values(lambda a: a.name), lambda f, name: name),
    KStream[str, str],
)
near = JoinWindows(timedelta(minutes=5), grace=timedelta(minutes=1))
assert_type(
    flights.join(flights, lambda f, g: (f.carrier, g.time_ms), windows=near),
    KStream[str, tuple[str, int]],
)
assert_type(
    flights.left_join(flights, lambda f, g: g.time_ms if g else None, windows=near),
    KStream[str, int | None],
)
assert_type(
    flights.join_with_key(flights, lambda k, f, g: (k, g.time_ms), windows=near),
    KStream[str, tuple[str, int]],
)
assert_type(
    flights.left_join_with_key(flights, lambda k, f, g: (k, g), windows=near),
    KStream[str, tuple[str, Flight | None]],
)
assert_type(
    flights.outer_join(flights, lambda f, g: (f, g), windows=near),
    KStream[str, tuple[Flight | None, Flight | None]],
)
assert_type(
    flights.outer_join_with_key(flights, lambda k, f, g: (k, f, g), windows=near),
    KStream[str, tuple[str, Flight | None, Flight | None]],
)
everywhere = builder.global_table("everywhere", key=serdes.int64, value=serdes.text)
assert_type(everywhere, GlobalKTable[int, str])
assert_type(
    flights.join(everywhere, lambda f, text: text, on=lambda _, f: f.time_ms),
    KStream[str, str],
)
assert_type(
    flights.join_with_key(
        everywhere, lambda k, f, text: (k, text), on=lambda _, f: f.time_ms
    ),
    KStream[str, tuple[str, str]],
)
assert_type(
    flights.left_join_with_key(
        everywhere, lambda k, f, text: text, on=lambda _, f: f.time_ms
    ),
    KStream[str, str | None],
)
names = airlines.map_values(lambda a: a.name)
assert_type(
    airlines.join(names, lambda a, name: (a, name)), KTable[str, tuple[Airline, str]]
)
assert_type(airlines.left_join(names, lambda a, name: name), KTable[str, str])
assert_type(
    airlines.outer_join(names, lambda a, name: name if a is None else a.name),
    KTable[str, str],
)
numbers = builder.table(
    "numbers", key=serdes.int64, value=serdes.text, history=timedelta(days=1)
)
assert_type(
    airlines.join(
        numbers,
        lambda a, text: text,
        foreign_key=lambda a: len(a.name),
        value=serdes.text,
    ),
    KTable[str, str],
)
assert_type(
    flights.join(airlines, lambda f, a: a.name, grace=timedelta(minutes=1)),
    KStream[str, str],
)

# the test driver
driver = TopologyTestDriver(builder.build())
assert_type(
    driver.input("flights", serdes.text, serdes.json(Flight)), InputTopic[str, Flight]
)
assert_type(driver.input("flights"), InputTopic[Any, Any])
assert_type(driver.input("flights", value=serdes.raw), InputTopic[Any, Any])
assert_type(
    driver.output("copy", serdes.text, serdes.json(Flight)), OutputTopic[str, Flight]
)
assert_type(driver.output("copy").latest(), dict[Any, Any])

flights.to("copy")
flights.to("copy", key=serdes.text, value=serdes.json(Flight))
