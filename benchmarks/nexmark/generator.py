"""Makes the events of Nexmark: persons, auctions and bids, 1 : 3 : 46, the same for the
same seed.

Proportions, ids, hot sellers, bidders and auctions, prices, lengths of auctions and
sizes of values are those of the reference generator with its defaults. Its random
numbers are not: no result depends on them.

    event_type 0  id, name, emailAddress, creditCard, city, state, dateTime, extra
    event_type 1  id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra
    event_type 2  auction, bidder, price, channel, url, dateTime, extra

A record has the JSON of its event as value, and the event's time. The key is the id of
the person or auction; of a bid, that of its auction.

Source: https://github.com/nexmark/nexmark, `com.github.nexmark.flink.generator`;
`dateTime` and `expires` are milliseconds here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import orjson

from benchmarks.event_time import Event

PERSON = 0
AUCTION = 1
BID = 2

PERSONS = 1
AUCTIONS = 3
BIDS = 46
EPOCH = PERSONS + AUCTIONS + BIDS
"""The events of one turn: first the person, then the auctions, then the bids."""
A_SECOND = 10_000
"""Events a second of their time: the rate of the reference."""
BEGIN_MS = 1_700_000_000_000
FIRST_ID = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
HOT_IDS = 100
"""The hot seller, bidder and auction are one of so many ids, and then the next one."""
HOT_AUCTION_RATIO = 2
"""All bids but one in so many are for the hot auction."""
HOT_SELLER_RATIO = 4
HOT_BIDDER_RATIO = 4
AUCTIONS_IN_FLIGHT = 100
ACTIVE_PERSONS = 1000
ID_LEAD = 10
"""So many ids that do not exist yet may be named."""
PERSON_BYTES = 200
AUCTION_BYTES = 500
BID_BYTES = 100

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
FIRST_NAMES = [
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
]
LAST_NAMES = [
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
]
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TEXT = 1 << 20


def events(records: int, a_second: int = A_SECOND, seed: int = 7) -> Iterator[Event]:
    """Yield the records; the times ascend."""
    return _Generator(a_second, seed).events(records)


def last_person(number: int) -> int:
    """Return the number of the latest person when an event is made: this one, if it is
    a person.
    """
    return number // EPOCH


def last_auction(number: int) -> int:
    """Return the number of the latest auction when an event is made: this one, if it is
    an auction; -1 if there is none.
    """
    epoch, offset = divmod(number, EPOCH)
    return epoch * AUCTIONS + min(offset - PERSONS, AUCTIONS - 1)


class _Generator:
    def __init__(self, a_second: int, seed: int) -> None:
        self._a_second = a_second
        self._random = random.Random(seed)
        self._text = "".join(self._random.choices(_LETTERS, k=_TEXT))
        self._channels = [
            (f"channel-{number}", self._url(number)) for number in range(CHANNELS)
        ]
        self._hot_channels = [(name, self._url(None)) for name in HOT_CHANNELS]

    def events(self, records: int) -> Iterator[Event]:
        for number in range(records):
            # One time for an epoch, 5 ms in the reference: the last auctions are not later
            # than the last person, so a join that takes them by their times waits for none.
            now_ms = BEGIN_MS + number // EPOCH * EPOCH * 1000 // self._a_second
            offset = number % EPOCH
            if offset < PERSONS:
                event = self._person(number, now_ms)
                key = event["id"]
            elif offset < PERSONS + AUCTIONS:
                event = self._auction(number, now_ms)
                key = event["id"]
            else:
                event = self._bid(number, now_ms)
                key = event["auction"]
            yield b"%d" % key, orjson.dumps(event), now_ms

    def _person(self, number: int, now_ms: int) -> dict[str, Any]:
        choice = self._random.choice
        name = f"{choice(FIRST_NAMES)} {choice(LAST_NAMES)}"
        email = f"{self._word(7)}@{self._word(5)}.com"
        card = " ".join(f"{self._below(10_000):04d}" for _ in range(4))
        city = choice(CITIES)
        state = choice(STATES)
        size = 8 + len(name) + len(email) + len(card) + len(city) + len(state)
        return {
            "event_type": PERSON,
            "id": FIRST_ID + last_person(number),
            "name": name,
            "emailAddress": email,
            "creditCard": card,
            "city": city,
            "state": state,
            "dateTime": now_ms,
            "extra": self._extra(size, PERSON_BYTES),
        }

    def _auction(self, number: int, now_ms: int) -> dict[str, Any]:
        seller = (
            last_person(number) // HOT_IDS * HOT_IDS
            if self._below(HOT_SELLER_RATIO)
            else self._any_person(number)
        )
        name = self._word(20)
        description = self._word(100)
        first_bid = self._price()
        # On average an auction ends when so many auctions have begun after it.
        length_ms = AUCTIONS_IN_FLIGHT * EPOCH * 1000 // AUCTIONS // self._a_second
        return {
            "event_type": AUCTION,
            "id": FIRST_ID + last_auction(number),
            "itemName": name,
            "description": description,
            "initialBid": first_bid,
            "reserve": first_bid + self._price(),
            "dateTime": now_ms,
            "expires": now_ms + 1 + self._below(2 * length_ms),
            "seller": FIRST_ID + seller,
            "category": FIRST_CATEGORY + self._below(CATEGORIES),
            "extra": self._extra(48 + len(name) + len(description), AUCTION_BYTES),
        }

    def _bid(self, number: int, now_ms: int) -> dict[str, Any]:
        latest = last_auction(number)
        if self._below(HOT_AUCTION_RATIO):
            auction = latest // HOT_IDS * HOT_IDS
        else:
            first = max(latest - AUCTIONS_IN_FLIGHT, 0)
            auction = first + self._below(latest - first + 1 + ID_LEAD)
        # The second of its ids: the hot bidder is not the hot seller.
        bidder = (
            last_person(number) // HOT_IDS * HOT_IDS + 1
            if self._below(HOT_BIDDER_RATIO)
            else self._any_person(number)
        )
        channel, url = (
            self._random.choice(self._hot_channels)
            if self._below(2)
            else self._random.choice(self._channels)
        )
        return {
            "event_type": BID,
            "auction": FIRST_ID + auction,
            "bidder": FIRST_ID + bidder,
            "price": self._price(),
            "channel": channel,
            "url": url,
            "dateTime": now_ms,
            "extra": self._extra(32, BID_BYTES),
        }

    def _below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def _any_person(self, number: int) -> int:
        persons = last_person(number) + 1
        active = min(persons, ACTIVE_PERSONS)
        return persons - active + self._below(active + ID_LEAD)

    def _price(self) -> int:
        return round(10 ** (6 * self._random.random()) * 100)

    def _word(self, longest: int) -> str:
        """Return three to `longest` letters."""
        return self._letters(3 + self._below(longest - 3))

    def _letters(self, length: int) -> str:
        at = self._below(_TEXT - length)
        return self._text[at : at + length]

    def _extra(self, size: int, wanted: int) -> str:
        """Return the text that makes a value of `size` as long as is wanted, more or
        less by a fifth of what it lacks.
        """
        lacks = wanted - size
        if lacks < 0:
            return ""
        delta = round(lacks * 0.2)
        return self._letters(lacks - delta + self._below(2 * delta))

    def _url(self, channel: int | None) -> str:
        path = "/".join(self._word(5) for _ in range(3))
        end = "" if channel is None else f"&channel_id={channel}"
        return f"https://www.nexmark.com/{path}/item.htm?query=1{end}"
