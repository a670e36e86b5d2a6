"""The queries of Nexmark say what their SQL says; what differs is in their docstrings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import orjson
import pytest

from benchmarks.nexmark import by_expressions, queries
from benchmarks.nexmark.__main__ import QUERIES
from benchmarks.nexmark.contents import Kind, contents, difference
from benchmarks.nexmark.generator import (
    AUCTION,
    AUCTIONS,
    BID,
    BIDS,
    EPOCH,
    PERSON,
    PERSONS,
    events,
)
from coopstreams.testing import TopologyTestDriver

RECORDS = 2_000
A_SECOND = 53
"""No pause is as long as the gap of sessions: Kafka Streams may have expired one then."""
PERIOD_MS = 10_000
SPELLINGS = {"lambdas": queries, "expressions": by_expressions}

Event = dict[str, Any]
Outputs = list[tuple[Any, Any]]


@pytest.fixture(scope="module")
def happened() -> list[Event]:
    return [orjson.loads(value) for _, value, _ in events(RECORDS, A_SECOND)]


def of(happened: Iterable[Event], event_type: int) -> list[Event]:
    """Return the events of a type."""
    return [event for event in happened if event["event_type"] == event_type]


@cache
def outputs(query: str, spelling: str = "lambdas") -> Outputs:
    """Return the keys and values that a query writes."""
    with TopologyTestDriver(getattr(SPELLINGS[spelling], query)) as driver:
        source = driver.input(queries.SOURCE)
        for key, value, timestamp in events(RECORDS, A_SECOND):
            source.send(key.decode(), orjson.loads(value), timestamp)
        return [(record.key, record.value) for record in driver.outputs()]


def texts(found: Outputs) -> list[tuple[str, Any]]:
    """Return the keys as texts, also those with windows, and the values."""
    return [(str(key), value) for key, value in found]


def rows(found: Outputs) -> dict[str, Any]:
    """Return the last value of each key, of a key with a window by its text."""
    last = dict(texts(found))
    return {key: value for key, value in last.items() if value is not None}


def test_the_events_have_the_proportions_of_the_reference(
    happened: list[Event],
) -> None:
    kinds = Counter(event["event_type"] for event in happened)
    epochs = RECORDS // EPOCH
    assert kinds == {
        PERSON: PERSONS * epochs,
        AUCTION: AUCTIONS * epochs,
        BID: BIDS * epochs,
    }
    times = [event["dateTime"] for event in happened]
    assert all(one <= next_ for one, next_ in pairwise(times))
    assert [event["id"] for event in of(happened, AUCTION)] == [
        1000 + number for number in range(AUCTIONS * epochs)
    ]


def test_the_same_seed_makes_the_same_events() -> None:
    assert list(events(500)) == list(events(500))
    assert list(events(500)) != list(events(500, seed=8))


def test_q0_to_q2_take_bids_one_by_one(happened: list[Event]) -> None:
    bids = of(happened, BID)
    kept = ("auction", "bidder", "price", "dateTime", "extra")
    passed = [{name: bid[name] for name in kept} for bid in bids]
    assert [value for _, value in outputs("q0")] == passed
    assert [value["price"] for _, value in outputs("q1")] == [
        bid["price"] * 0.908 for bid in bids
    ]
    assert [value for _, value in outputs("q2")] == [
        {"auction": bid["auction"], "price": bid["price"]}
        for bid in bids
        if bid["auction"] % 123 == 0
    ]


def test_q3_joins_auctions_with_sellers_that_may_come_later(
    happened: list[Event],
) -> None:
    persons = {
        person["id"]: person
        for person in of(happened, PERSON)
        if person["state"] in {"OR", "ID", "CA"}
    }
    assert rows(outputs("q3")) == {
        str(auction["id"]): {
            "id": auction["id"],
            **{
                name: persons[auction["seller"]][name]
                for name in ("name", "city", "state")
            },
        }
        for auction in of(happened, AUCTION)
        if auction["category"] == 10 and auction["seller"] in persons
    }


def test_q4_is_the_mean_of_the_winning_prices(happened: list[Event]) -> None:
    auctions: dict[int, Event] = {}
    best: dict[int, int] = {}
    for event in happened:
        if event["event_type"] == AUCTION:
            auctions[event["id"]] = event
        elif event["event_type"] == BID:
            auction = auctions.get(event["auction"])
            if auction is not None and event["dateTime"] <= auction["expires"]:
                best[auction["id"]] = max(best.get(auction["id"], 0), event["price"])
    prices = defaultdict(list)
    for name, price in best.items():
        prices[str(auctions[name]["category"])].append(price)
    assert rows(outputs("q4")) == {
        category: sum(these) / len(these) for category, these in prices.items()
    }


def test_q5_is_the_auctions_with_the_most_bids(happened: list[Event]) -> None:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    bids = of(happened, BID)
    for bid in bids:
        latest = bid["dateTime"] // 2000 * 2000
        for start in range(latest - PERIOD_MS + 2000, latest + 1, 2000):
            counts[start][bid["auction"]] += 1
    now = bids[-1]["dateTime"]
    assert rows(outputs("q5")) == {
        str(start): {
            "num": max(of_window.values()),
            "auctions": sorted(
                auction
                for auction, number in of_window.items()
                if number == max(of_window.values())
            ),
        }
        for start, of_window in counts.items()
        if start + PERIOD_MS <= now
    }


def test_q7_is_the_highest_bid_of_each_period(happened: list[Event]) -> None:
    highest: dict[int, int] = defaultdict(int)
    for bid in of(happened, BID):
        start = bid["dateTime"] // PERIOD_MS * PERIOD_MS
        highest[start] = max(highest[start], bid["price"])
    assert {key: bid["price"] for key, bid in rows(outputs("q7")).items()} == {
        f"[all@{start}/{start + PERIOD_MS}]": price for start, price in highest.items()
    }


def test_q8_is_who_sells_soon_after_becoming_a_person(happened: list[Event]) -> None:
    came = {person["id"]: person["dateTime"] for person in of(happened, PERSON)}
    sold = {
        (auction["seller"], auction["id"])
        for auction in of(happened, AUCTION)
        if auction["seller"] in came
        and 0 <= auction["dateTime"] - came[auction["seller"]] <= PERIOD_MS
    }
    found = [(value["id"], value["auction"]) for _, value in outputs("q8")]
    assert sorted(found) == sorted(sold)


def test_q11_is_the_bids_of_each_session(happened: list[Event]) -> None:
    times: dict[int, list[int]] = defaultdict(list)
    for bid in of(happened, BID):
        times[bid["bidder"]].append(bid["dateTime"])
    sessions: dict[str, int] = {}
    for bidder, these in times.items():
        first = 0
        for number, now in enumerate(these, 1):
            if number == len(these) or these[number] - now > PERIOD_MS:
                sessions[f"[{bidder}@{these[first]}/{now}]"] = number - first
                first = number
    assert rows(outputs("q11")) == sessions


def test_q12_counts_each_bid_once(happened: list[Event]) -> None:
    found = Counter[str]()
    for key, value in {str(k): (k.key, n) for k, n in outputs("q12")}.values():
        found[key] += value
    assert found == Counter(str(bid["bidder"]) for bid in of(happened, BID))


@pytest.mark.parametrize("query", [query for query in QUERIES if query != "q12"])
def test_expressions_say_the_same_as_lambdas(query: str) -> None:
    assert texts(outputs(query, "expressions")) == texts(outputs(query))


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (
            Kind.STREAM,
            [(b"a", b'{"x":1,"y":2}'), (b"b", b"3.0")],
            [(b"b", b"3.0"), (b"a", b'{"y": 2, "x": 1}')],
        ),
        (
            Kind.TABLE,
            [(b"a", b"1"), (b"b", b"1"), (b"a", b"[2]"), (b"b", None)],
            [(b"a", b"[ 2 ]")],
        ),
        (
            Kind.SUMS,
            [(b"a" + bytes(8), bytes(7) + b"\1"), (b"a" + b"1" * 8, bytes(7) + b"\2")],
            [(b"a" + b"2" * 8, bytes(7) + b"\3")],
        ),
    ],
)
def test_contents_are_equal_however_they_were_written(
    kind: Kind,
    one: list[tuple[bytes, bytes | None]],
    other: list[tuple[bytes, bytes | None]],
) -> None:
    assert difference(contents(kind, one), contents(kind, other)) == []
    assert difference(contents(kind, one), contents(kind, other[:-1])) != []
