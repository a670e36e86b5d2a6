"""A source topic that is deleted and made anew under its name: a group of consumers
reads all of it.
"""

from __future__ import annotations

import logging

import pytest

from coopstreams.consumer import ConsumerRecord, OffsetAndRanges
from coopstreams.consumer.consumer_session import Ranges
from coopstreams.topology.keys import KeyRange
from tests.consumer.members import Member, Members, keys_of, members

KEYS = [key for half in KeyRange.split(2) for key in keys_of(half, 5)]
AT = ("in", 0)


def do_all_but_the_first(member: Member) -> None:
    """Read ten records, commit all but the first, and close."""
    records: list[ConsumerRecord] = []
    member.consumer.subscribe(["in"])
    while len(records) < len(KEYS):
        records += member.consumer.consume(100, 0.1)
    for record in records[1:]:
        member.consumer.done(record)
    member.consumer.commit(metadata="mine")
    member.consumer.close()


def remake(group: Members, *keys: bytes) -> None:
    group.cluster.remake("in")
    group.write("in", *keys)


@pytest.mark.parametrize(
    ("reset", "handed"), [("earliest", list(range(15))), ("latest", [])]
)
def test_commits_in_the_topic_before_do_not_count_in_the_new_one(
    reset: str, handed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """They were taken for offsets of the new topic: its records there were never handed
    out.
    """
    got: list[int] = []
    found: list[OffsetAndRanges | None] = []

    def read_all(member: Member) -> None:
        member.consumer.subscribe(["in"])
        while True:
            for record in member.consumer.consume(100, 0.1):
                got.append(record.offset)
                member.consumer.done(record)
            member.consumer.commit()
            found[:] = member.consumer.committed([AT]).values()

    with members([], auto_offset_reset=reset) as group:
        group.start("before", do_all_but_the_first)
        group.run(10.0)
        group.write("in", *KEYS)
        group.run(10.0)
        remake(group, *KEYS, *KEYS[:5])
        with caplog.at_level(logging.WARNING, "coopstreams"):
            group.start("after", read_all)
            group.run(30.0)
        assert got == handed
        assert found == [
            OffsetAndRanges(15, "", (), found[0].key_ranges if found[0] else ())
        ]
        assert (
            "in-0[0..255]: the topic was deleted and made anew since group 'readers' committed in it"
            in caplog.text
        )
        assert f"auto.offset.reset={reset}" in caplog.text


@pytest.mark.ci
@pytest.mark.parametrize("more", [0, 5, 20])
def test_a_consumer_whose_topic_is_made_anew_loses_its_key_ranges_and_opens_them_in_the_new_topic(
    more: int,
) -> None:
    """It read on at its position: an error, or the records from there on only."""
    got: dict[str, list[int]] = {"a": [], "b": []}
    told: list[str] = []

    def read(member: Member) -> None:
        name = member.machine.name

        def note(what: str, ranges: Ranges) -> None:
            told.append(f"{name} {what} {sum(map(len, ranges.values()))}")

        member.consumer.subscribe(
            ["in"],
            on_assign=lambda ranges: note("opens", ranges),
            on_lost=lambda ranges: note("loses", ranges),
        )
        while True:
            for record in member.consumer.consume(100, 0.1):
                got[name].append(record.offset)
                if record.offset % 3:
                    member.consumer.done(record)
            member.consumer.commit()

    with members(KEYS) as group:
        group.start("a", read)
        group.start("b", read)
        group.run(20.0)
        assert sorted(got["a"] + got["b"]) == list(range(10))
        told.clear()
        for offsets in got.values():
            offsets.clear()
        remake(group, *(KEYS * 3)[:more])
        group.run(40.0)
        assert sorted(told) == ["a loses 1", "a opens 1", "b loses 1", "b opens 1"]
        again = sorted(got["a"] + got["b"])
        assert sorted(set(again)) == list(range(more))
        assert len(again) <= more + max(0, more - 10), (
            "twice: only what was read before it was noticed"
        )
        remake(group, *KEYS)
        group.run(40.0)
        assert sorted(set(got["a"] + got["b"])) == list(range(max(more, 10)))
