"""Which stores of a topology can be queried over HTTP, and of which kind they are."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from coopstreams import Processor, Record, TopologyBuilder, versioned_store
from coopstreams.query.backend import History, StoreInfo
from coopstreams.query.catalog import stores_of
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.serdes import session_windowed, windowed_by, windowed_ms
from coopstreams.topology.suppression import until_window_closes
from coopstreams.topology.windows import SessionWindows, TimeWindows, UnlimitedWindows
from tests.durations import ms

TEXT: dict[str, Any] = {"key": serdes.text, "value": serdes.text}


def stores(misplaced: Collection[str] = ()) -> dict[str, StoreInfo]:
    builder = StreamsBuilder("app")
    clicks = builder.stream("clicks", key=serdes.text, value=serdes.text)
    prices = builder.table(
        "prices",
        key=serdes.text,
        value=serdes.int64,
        store="prices",
        history=timedelta(hours=1),
    )
    builder.global_table("names", key=serdes.int64, value=serdes.text, store="names")
    group = clicks.join(
        prices, lambda click, _: click, value=serdes.text
    ).group_by_key()
    group.count(store="counts")
    group.windowed_by(TimeWindows(hours=1)).count(store="hours").suppress(
        until_window_closes(), name="final"
    ).to_stream().to("final")
    group.windowed_by(UnlimitedWindows()).count(store="ever")
    group.windowed_by(SessionWindows(milliseconds=5)).count(store="visits")
    clicks.join(
        clicks,
        lambda a, b: a + b,
        windows=JoinWindows(milliseconds=5),
        value=serdes.text,
    ).to("pairs")
    processor = (
        TopologyBuilder(builder)
        .add_source("left", "lefts", **TEXT)
        .add_source("right", "rights", **TEXT)
    )
    processor.add_processor(
        "remember",
        Ignore,
        "left",
        "right",
        stores=[versioned_store("past", history=ms(5), **TEXT)],
        by_key=False,
    )
    topology = processor.build()
    return stores_of(
        topology,
        [4] * len(topology.subtopologies),
        {"clicks": 4, "prices": 4, "names": 3},
        misplaced,
    )


class Ignore(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        pass


def test_each_kind_of_store_is_known_by_what_can_be_asked_of_it() -> None:
    known = stores()
    assert known["counts"] == StoreInfo(
        "counts", "key_value", 0, 4, serdes.text, serdes.int64
    )
    assert known["prices"] == StoreInfo(
        "prices",
        "versioned",
        0,
        4,
        serdes.text,
        serdes.int64,
        history=History(("prices",), 3_600_000),
    )
    assert known["past"] == StoreInfo(
        "past",
        "versioned",
        1,
        4,
        serdes.text,
        serdes.text,
        history=History(("lefts", "rights"), 5),
    )
    assert known["names"] == StoreInfo(
        "names", "global", None, 3, serdes.int64, serdes.text
    )
    hour = windowed_ms(serdes.text, 3_600_000)
    assert known["hours"] == StoreInfo(
        "hours", "window", 0, 4, serdes.text, serdes.int64, 3_600_000, hour
    )
    assert known["ever"].row_key == windowed_by(serdes.text, UnlimitedWindows())
    assert (known["ever"].kind, known["ever"].window_ms) == ("window", None)
    assert (known["visits"].kind, known["visits"].row_key) == (
        "session",
        session_windowed(serdes.text),
    )


def test_stores_know_the_topics_above_them_whose_records_are_in_other_partitions() -> (
    None
):
    known = stores({"prices", "lefts"})
    assert {
        name: store.misplaced
        for name, store in known.items()
        if name in ("counts", "past", "names")
    } == {
        "counts": ("prices",),
        "past": ("lefts",),
        "names": (),
    }


def test_what_waits_to_be_forwarded_is_not_shown() -> None:
    assert not [name for name in stores() if name.startswith("final")]
    assert all(
        store.row_key is not None
        for store in stores().values()
        if store.kind in ("window", "session")
    ), "joins keep windows, too"
