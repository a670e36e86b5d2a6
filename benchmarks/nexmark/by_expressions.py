"""The queries of Nexmark as programs by expressions: each has the results of the one by
lambdas in `queries`, which says what it means.

Lambdas are left where there is no expression: for keys of windows, lists, and both
sides of a table that is grouped again.
"""

from __future__ import annotations

from datetime import timedelta

from benchmarks.nexmark.generator import AUCTION, BID, PERSON
from benchmarks.nexmark.queries import (
    PERIOD,
    SINK,
    Events,
    built,
    events_of,
    write_hot_items,
)
from coopstreams import (
    JoinWindows,
    KStream,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    aggregate,
    field,
    left,
    right,
    row,
    serdes,
    value,
    wallclock_timestamp,
    when,
)

SHORTENED = {
    name: field(name) for name in ("auction", "bidder", "price", "dateTime", "extra")
}
HIGHER = when(field("price") > aggregate()["price"], value()).otherwise(aggregate())
"""Of two bids the higher one, of equal ones the first."""


def persons_of(events: Events) -> Events:
    """Return the persons, by id."""
    return events.filter(field("event_type") == PERSON)


def auctions_of(events: Events) -> Events:
    """Return the auctions, by id."""
    return events.filter(field("event_type") == AUCTION)


def bids_of(events: Events) -> Events:
    """Return the bids, by auction."""
    return events.filter(field("event_type") == BID)


def by_bidder(events: Events) -> KStream[str, int]:
    """Return the auctions of the bids, by bidder."""
    return (
        bids_of(events)
        .select_key(field("bidder").cast("text"), key=serdes.text)
        .map_values(field("auction"), value=serdes.int64)
    )


def pass_through(builder: StreamsBuilder) -> None:
    """q0."""
    bids_of(events_of(builder)).map_values(row(**SHORTENED), value=serdes.json).to(SINK)


def currency_conversion(builder: StreamsBuilder) -> None:
    """q1."""
    bids_of(events_of(builder)).map_values(
        row(**{**SHORTENED, "price": field("price") * 0.908}), value=serdes.json
    ).to(SINK)


def selection(builder: StreamsBuilder) -> None:
    """q2."""
    bids_of(events_of(builder)).filter(field("auction") % 123 == 0).map_values(
        row(auction=field("auction"), price=field("price")), value=serdes.json
    ).to(SINK)


def local_items(builder: StreamsBuilder) -> None:
    """q3."""
    events = events_of(builder)
    auctions = (
        auctions_of(events)
        .filter(field("category") == 10)
        .map_values(row(id=field("id"), seller=field("seller")), value=serdes.json)
        .to_table(store="auctions")
    )
    state = field("state")
    persons = (
        persons_of(events)
        .filter((state == "OR") | (state == "ID") | (state == "CA"))
        .map_values(
            row(name=field("name"), city=field("city"), state=state), value=serdes.json
        )
        .to_table(store="persons")
    )
    auctions.join(
        persons,
        row(
            name=right("name"), city=right("city"), state=right("state"), id=left("id")
        ),
        foreign_key=field("seller").cast("text"),
        value=serdes.json,
    ).to_stream().to(SINK)


def category_means(builder: StreamsBuilder) -> None:
    """q4."""
    events = events_of(builder)
    auctions = (
        auctions_of(events)
        .map_values(
            row(category=field("category"), expires=field("expires")),
            value=serdes.json,
        )
        .to_table(store="auctions")
    )
    winning = (
        bids_of(events)
        .join(
            auctions,
            row(
                category=right("category"),
                price=left("price"),
                in_time=left("dateTime") <= right("expires"),
            ),
            value=serdes.json,
        )
        .filter(field("in_time") == True)  # noqa: E712 an expression
        .group_by_key()
        .reduce(HIGHER, value=serdes.json, store="winning")
    )
    total = aggregate()["total"]
    auctions_so_far = aggregate()["auctions"]
    winning.group_by(
        lambda _, bid: (str(bid["category"]), bid["price"]),
        key=serdes.text,
        value=serdes.int64,
    ).aggregate(
        lambda: {"total": 0, "auctions": 0},
        row(total=total + value(), auctions=auctions_so_far + 1),
        row(total=total - value(), auctions=auctions_so_far - 1),
        value=serdes.json,
        store="sums",
    ).filter(field("auctions") > 0).map_values(
        field("total") / field("auctions"), value=serdes.float64
    ).to_stream().to(SINK)


def hot_items(builder: StreamsBuilder) -> None:
    """q5."""
    write_hot_items(bids_of(events_of(builder)))


def highest_bids(builder: StreamsBuilder) -> None:
    """q7."""
    (
        bids_of(events_of(builder))
        .map_values(row(**SHORTENED), value=serdes.json)
        .group_by(lambda _, __: "all", key=serdes.text)
        .windowed_by(TimeWindows(PERIOD))
        .reduce(HIGHER, store="highest")
        .to_stream()
        .to(SINK)
    )


def new_users(builder: StreamsBuilder) -> None:
    """q8."""
    events = events_of(builder)
    persons = (
        persons_of(events)
        .map_values(row(id=field("id"), name=field("name")), value=serdes.json)
        .repartition(name="persons")
    )
    auctions = (
        auctions_of(events)
        .select_key(field("seller").cast("text"), key=serdes.text)
        .map_values(field("id"), value=serdes.int64)
        .repartition(name="auctions")
    )
    persons.join(
        auctions,
        row(id=left("id"), name=left("name"), auction=right()),
        windows=JoinWindows(
            before=timedelta(0), after=PERIOD, grace=timedelta(minutes=1)
        ),
        value=serdes.json,
        store="users",
    ).to(SINK)


def user_sessions(builder: StreamsBuilder) -> None:
    """q11."""
    (
        by_bidder(events_of(builder))
        .group_by_key()
        .windowed_by(SessionWindows(PERIOD))
        .count(store="sessions")
        .to_stream()
        .to(SINK)
    )


def processing_time(builder: StreamsBuilder) -> None:
    """q12."""
    (
        by_bidder(events_of(builder, timestamp=wallclock_timestamp))
        .group_by_key()
        .windowed_by(TimeWindows(PERIOD))
        .count(store="counts")
        .to_stream()
        .to(SINK)
    )


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
