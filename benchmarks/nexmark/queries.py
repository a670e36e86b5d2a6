"""The queries of Nexmark as programs by lambdas: `q0` to `q12`.

Each reads the topic of all events, and means what its SQL means in the reference. Where
that is not a program of Kafka Streams, both do the same that is near: the docstrings
say what.

Source: https://github.com/nexmark/nexmark, `nexmark-flink/src/main/resources/queries`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.nexmark.generator import AUCTION, BID, PERSON
from coopstreams import (
    JoinWindows,
    KStream,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
    until_window_closes,
    wallclock_timestamp,
)
from coopstreams.topology.graph.topology import Topology

NAME = os.environ.get("BENCH_APPLICATION", "nexmark")
SOURCE = os.environ.get("BENCH_SOURCE", "nexmark")
SINK = os.environ.get("BENCH_SINK", "nexmark-out")

PERIOD = timedelta(seconds=10)
Events = KStream[str, Any]


def events_of(
    builder: StreamsBuilder, timestamp: Callable[..., int | None] | None = None
) -> Events:
    """Return the stream of all events."""
    return builder.stream(
        SOURCE, key=serdes.text, value=serdes.json, timestamp=timestamp
    )


def persons_of(events: Events) -> Events:
    """Return the persons, by id."""
    return events.filter(lambda _, event: event["event_type"] == PERSON)


def auctions_of(events: Events) -> Events:
    """Return the auctions, by id."""
    return events.filter(lambda _, event: event["event_type"] == AUCTION)


def bids_of(events: Events) -> Events:
    """Return the bids, by auction."""
    return events.filter(lambda _, event: event["event_type"] == BID)


def pass_through(builder: StreamsBuilder) -> None:
    """q0: the bids as they are, without channel and url."""
    bids_of(events_of(builder)).map_values(
        lambda bid: {
            "auction": bid["auction"],
            "bidder": bid["bidder"],
            "price": bid["price"],
            "dateTime": bid["dateTime"],
            "extra": bid["extra"],
        },
        value=serdes.json,
    ).to(SINK)


def currency_conversion(builder: StreamsBuilder) -> None:
    """q1: the prices of bids in euros. A float, where the reference has a decimal."""
    bids_of(events_of(builder)).map_values(
        lambda bid: {
            "auction": bid["auction"],
            "bidder": bid["bidder"],
            "price": bid["price"] * 0.908,
            "dateTime": bid["dateTime"],
            "extra": bid["extra"],
        },
        value=serdes.json,
    ).to(SINK)


def selection(builder: StreamsBuilder) -> None:
    """q2: the bids for each 123rd auction."""
    bids_of(events_of(builder)).filter(
        lambda _, bid: bid["auction"] % 123 == 0
    ).map_values(
        lambda bid: {"auction": bid["auction"], "price": bid["price"]},
        value=serdes.json,
    ).to(SINK)


def local_items(builder: StreamsBuilder) -> None:
    """q3: who sells in OR, ID or CA in category 10: a table by auction. Two tables are
    joined by a foreign key, so a seller may come after the auction.
    """
    events = events_of(builder)
    auctions = (
        auctions_of(events)
        .filter(lambda _, auction: auction["category"] == 10)
        .map_values(
            lambda auction: {"id": auction["id"], "seller": auction["seller"]},
            value=serdes.json,
        )
        .to_table(store="auctions")
    )
    persons = (
        persons_of(events)
        .filter(lambda _, person: person["state"] in {"OR", "ID", "CA"})
        .map_values(
            lambda person: {
                "name": person["name"],
                "city": person["city"],
                "state": person["state"],
            },
            value=serdes.json,
        )
        .to_table(store="persons")
    )
    auctions.join(
        persons,
        lambda auction, person: {
            "name": person["name"],
            "city": person["city"],
            "state": person["state"],
            "id": auction["id"],
        },
        foreign_key=lambda auction: str(auction["seller"]),
        value=serdes.json,
    ).to_stream().to(SINK)


def category_means(builder: StreamsBuilder) -> None:
    """q4: the mean of the winning prices of each category: a table by category. A bid
    counts if its auction came before it and has not expired.
    """
    events = events_of(builder)
    auctions = (
        auctions_of(events)
        .map_values(
            lambda auction: {
                "category": auction["category"],
                "expires": auction["expires"],
            },
            value=serdes.json,
        )
        .to_table(store="auctions")
    )
    winning = (
        bids_of(events)
        .join(
            auctions,
            lambda bid, auction: {
                "category": auction["category"],
                "price": bid["price"],
                "in_time": bid["dateTime"] <= auction["expires"],
            },
            value=serdes.json,
        )
        .filter(lambda _, bid: bid["in_time"])
        .group_by_key()
        .reduce(
            lambda best, bid: bid if bid["price"] > best["price"] else best,
            value=serdes.json,
            store="winning",
        )
    )
    winning.group_by(
        lambda _, bid: (str(bid["category"]), bid["price"]),
        key=serdes.text,
        value=serdes.int64,
    ).aggregate(
        lambda: {"total": 0, "auctions": 0},
        lambda _, price, sums: {
            "total": sums["total"] + price,
            "auctions": sums["auctions"] + 1,
        },
        lambda _, price, sums: {
            "total": sums["total"] - price,
            "auctions": sums["auctions"] - 1,
        },
        value=serdes.json,
        store="sums",
    ).filter(lambda _, sums: sums["auctions"] > 0).map_values(
        lambda sums: sums["total"] / sums["auctions"], value=serdes.float64
    ).to_stream().to(SINK)


def most(_: str, count: dict[str, int], hot: dict[str, Any]) -> dict[str, Any]:
    """Return the auctions with the most bids, after the count of one more."""
    number = count["num"]
    if number < hot["num"]:
        return hot
    if number > hot["num"]:
        return {"num": number, "auctions": [count["auction"]]}
    return {"num": number, "auctions": sorted({*hot["auctions"], count["auction"]})}


def hot_items(builder: StreamsBuilder) -> None:
    """q5: the auctions with the most bids in the last 10 s, each 2 s: a table by window
    start, with the windows that are closed.
    """
    write_hot_items(bids_of(events_of(builder)))


def write_hot_items(bids: Events) -> None:
    """Write the results of q5: windows and lists have no expressions."""
    (
        bids.group_by_key()
        .windowed_by(TimeWindows(PERIOD, advance=timedelta(seconds=2)))
        .count(store="bids")
        .suppress(until_window_closes())
        .to_stream()
        .map(
            lambda window, number: (
                str(window.start_ms),
                {"auction": int(window.key), "num": number},
            ),
            key=serdes.text,
            value=serdes.json,
        )
        .group_by_key()
        .aggregate(
            lambda: {"num": 0, "auctions": []}, most, value=serdes.json, store="hot"
        )
        .to_stream()
        .to(SINK)
    )


def highest_bids(builder: StreamsBuilder) -> None:
    """q7: the highest bid of each 10 s: a table by window. Of equal bids it has the
    first one, the reference all.
    """
    (
        bids_of(events_of(builder))
        .map_values(
            lambda bid: {
                "auction": bid["auction"],
                "bidder": bid["bidder"],
                "price": bid["price"],
                "dateTime": bid["dateTime"],
                "extra": bid["extra"],
            },
            value=serdes.json,
        )
        .group_by(lambda _, __: "all", key=serdes.text)
        .windowed_by(TimeWindows(PERIOD))
        .reduce(
            lambda best, bid: bid if bid["price"] > best["price"] else best,
            store="highest",
        )
        .to_stream()
        .to(SINK)
    )


def new_users(builder: StreamsBuilder) -> None:
    """q8: who has created an auction within 10 s after becoming a person: a record for
    each such auction. The reference takes windows that all begin together.
    """
    events = events_of(builder)
    persons = (
        persons_of(events)
        .map_values(
            lambda person: {"id": person["id"], "name": person["name"]},
            value=serdes.json,
        )
        .repartition(name="persons")
    )
    auctions = (
        auctions_of(events)
        .map(
            lambda _, auction: (str(auction["seller"]), auction["id"]),
            key=serdes.text,
            value=serdes.int64,
        )
        .repartition(name="auctions")
    )
    persons.join(
        auctions,
        lambda person, auction: {
            "id": person["id"],
            "name": person["name"],
            "auction": auction,
        },
        windows=JoinWindows(
            before=timedelta(0), after=PERIOD, grace=timedelta(minutes=1)
        ),
        value=serdes.json,
        store="users",
    ).to(SINK)


def user_sessions(builder: StreamsBuilder) -> None:
    """q11: the bids of a bidder in each session with a gap of 10 s: a table."""
    (
        bids_of(events_of(builder))
        .map(
            lambda _, bid: (str(bid["bidder"]), bid["auction"]),
            key=serdes.text,
            value=serdes.int64,
        )
        .group_by_key()
        .windowed_by(SessionWindows(PERIOD))
        .count(store="sessions")
        .to_stream()
        .to(SINK)
    )


def processing_time(builder: StreamsBuilder) -> None:
    """q12: the bids of a bidder in each 10 s of processing time: a table, of which only
    the sums over all windows are the same each time.
    """
    (
        bids_of(events_of(builder, timestamp=wallclock_timestamp))
        .map(
            lambda _, bid: (str(bid["bidder"]), bid["auction"]),
            key=serdes.text,
            value=serdes.int64,
        )
        .group_by_key()
        .windowed_by(TimeWindows(PERIOD))
        .count(store="counts")
        .to_stream()
        .to(SINK)
    )


def built(query: Callable[[StreamsBuilder], None]) -> Topology:
    """Return the topology of a query."""
    builder = StreamsBuilder(NAME)
    query(builder)
    return builder.build()


q0 = built(pass_through)
q1 = built(currency_conversion)
q2 = built(selection)
q3 = built(local_items)
q4 = built(category_means)
q5 = built(hot_items)
q7 = built(highest_bids)
q8 = built(new_users)
q11 = built(user_sessions)
q12 = built(processing_time)
