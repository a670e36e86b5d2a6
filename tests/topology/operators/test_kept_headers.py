"""`key_value_store(headers=True)`: rows keep the headers of the record that wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    StreamsBuilder,
    Topology,
    TopologyBuilder,
    key_value_store,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.columns import Headers
from coopstreams.topology.errors import ProcessingError, TopologyError
from coopstreams.topology.graph.changes import Verdict, changes
from coopstreams.topology.graph.outline import outline
from coopstreams.topology.kept_headers import Headed, split_headers, with_headers
from tests.durations import ms


class Last(Processor[str, int, str, Any]):
    """Forwards the previous row, and its headers."""

    def init(self, context: ProcessorContext[str, Any]) -> None:
        super().init(context)
        self.rows: KeyValueStore[str, int] = context.store("rows")

    def process(self, record: Record[str, int]) -> None:
        before, headers = self.rows.get(record.key), self.rows.headers(record.key)
        shown = (
            None
            if headers is None
            else [
                [name, None if value is None else value.decode()]
                for name, value in headers
            ]
        )
        self.context.forward(Record(record.key, [before, shown], record.timestamp))
        if record.value == 7:
            self.rows.put_if_absent(record.key, 7)
        else:
            self.rows.put(record.key, record.value)
        assert self.rows.get(record.key) == record.value or record.value == 7


def program(*, headers: bool = True, ttl: int | None = None) -> Topology:
    builder = StreamsBuilder("app")
    rows = key_value_store(
        "rows",
        key=serdes.text,
        value=serdes.int64,
        headers=headers,
        ttl=None if ttl is None else ms(ttl),
    )
    stream = builder.stream("in", key=serdes.text, value=serdes.int64)
    stream.process(
        Last, stores=[rows], by_key=True, key=serdes.text, value=serdes.json
    ).to("out")
    return builder.build()


RECORDS: list[tuple[str, int | None, Headers]] = [
    ("a", 1, [("trace", b"1"), ("empty", None)]),
    ("b", 2, []),
    ("a", 7, [("trace", b"2")]),
    ("b", None, [("trace", b"3")]),
    ("a", 4, [("trace", b"4"), ("trace", b"again")]),
    ("b", 5, [("grüße", b"5")]),
    ("a", 6, []),
]
FIRST: list[Any] = [["trace", "1"], ["empty", None]]
EXPECTED = {
    "a": [
        [None, None],
        [1, FIRST],
        [1, FIRST],
        [4, [["trace", "4"], ["trace", "again"]]],
    ],
    "b": [[None, None], [2, []], [None, None]],
}


@pytest.mark.parametrize("ranges", [1, 4])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_row_has_the_headers_of_the_record_that_wrote_it(
    ranges: int, restarts: bool, tmp_path: Path
) -> None:
    seen: dict[str, list[Any]] = {"a": [], "b": []}
    rows: dict[str, Any] = {}
    for records in [[record] for record in RECORDS] if restarts else [RECORDS]:
        with TopologyTestDriver(program(), ranges, state_dir=tmp_path) as driver:
            for at, (key, value, headers) in enumerate(records):
                driver.input("in").send(key, value, at, headers)
            driver.commit()
            for record in driver.outputs():
                seen[str(record.key)].append(record.value)
            rows = {
                row.key: (row.value, row.headers) for row in driver.store("rows").all()
            }
    assert seen == EXPECTED
    assert rows == {"a": (6, []), "b": (5, [("grüße", b"5")])}


def test_rows_with_headers_may_expire() -> None:
    with TopologyTestDriver(program(ttl=10)) as driver:
        for key, at in [("a", 0), ("a", 9), ("b", 19), ("a", 20)]:
            driver.input("in").send(key, at, at, [("at", str(at).encode())])
        assert [record.value for record in driver.outputs() if record.key == "a"] == [
            [None, None],
            [0, [["at", "0"]]],
            [None, None],
        ]


HEADERS = st.lists(
    st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))),
    max_size=4,
)


@given(HEADERS, st.text())
def test_a_row_is_read_as_it_was_written(headers: Headers, value: str) -> None:
    serde = with_headers(serdes.text)
    data = serde.serialize(Headed(value, headers))
    assert serde.deserialize(data) == Headed(value, headers)
    assert split_headers(data) == (headers, value.encode())


def test_a_store_without_headers_says_how_to_keep_them() -> None:
    with (
        TopologyTestDriver(program(headers=False)) as driver,
        pytest.raises(ProcessingError, match=r"keeps no headers.*headers=True"),
    ):
        driver.input("in").send("a", 1)


def test_a_store_that_gets_headers_cannot_read_its_former_rows() -> None:
    before, after = (outline(program(headers=headers)) for headers in (False, True))
    assert (
        next(
            change.verdict for change in changes(before, after) if change.name == "rows"
        )
        is Verdict.UNREADABLE
    )


def test_stores_that_cannot_keep_headers_are_refused() -> None:
    kept = key_value_store("kept", key=serdes.text, value=serdes.int64, headers=True)
    with pytest.raises(
        TopologyError, match="cannot keep headers: its rows are those of its topic"
    ):
        TopologyBuilder("app").add_global_store(kept, "topic")
    builder = StreamsBuilder("app")

    async def look(record: Any, context: Any) -> None: ...

    builder.stream("in", key=serdes.text, value=serdes.int64).process_async(
        look, stores=[kept]
    )
    with pytest.raises(TopologyError, match="is asynchronous, and its store"):
        builder.build()
