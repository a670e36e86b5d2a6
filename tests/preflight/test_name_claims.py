"""Two applications whose internal topics have the same names: neither gets rows of the
other.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.admin.application_reset import plan_reset
from coopstreams.common.config import Config
from coopstreams.log.log import Log, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.last_version import LastVersion
from coopstreams.preflight.name_claims import check_unclaimed, claims
from coopstreams.topology.errors import AccessDeniedError, ConfigError

SHARED = "q-b-c-changelog"


def counting(application: str, store: str) -> Topology:
    builder = StreamsBuilder(application)
    records = builder.stream("in", key=serdes.text, value=serdes.text)
    records.group_by_key().count(store=store)
    return builder.build()


LONGER, SHORTER = counting("q-b", "c"), counting("q", "b-c")


def deployed(log: Log, topology: Topology) -> LastVersion:
    return LastVersion(
        log, Config.of({"bootstrap.servers": "none"}, topology.application_id)
    )


def begin(log: MemoryLog, topology: Topology) -> None:
    """Start an application: its topics are created, and its version is recorded."""
    made = deployed(log, topology)
    check_unclaimed(log, topology, log.partitions())
    log.create_topics([TopicSpec(topic.name, 1) for topic in topology.internal_topics])
    made.take_over(topology, log.partitions())


@pytest.mark.parametrize(("first", "second"), [(LONGER, SHORTER), (SHORTER, LONGER)])
def test_whoever_begins_second_is_refused_and_the_first_one_goes_on(
    first: Topology, second: Topology
) -> None:
    log = MemoryLog()
    begin(log, first)
    with pytest.raises(ConfigError, match=f"{SHARED} is an internal topic of") as told:
        begin(log, second)
    assert f'application "{first.application_id}", too' in str(told.value)
    assert "another name in this program" in str(told.value)
    begin(log, first)
    begin(log, counting(second.application_id, "other"))


@pytest.mark.parametrize(("first", "second"), [(LONGER, SHORTER), (SHORTER, LONGER)])
def test_of_two_that_begin_at_the_same_time_one_is_refused_and_leaves_no_record(
    first: Topology, second: Topology
) -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec(SHARED, 1)])
    with pytest.raises(ConfigError, match="too"):
        deployed(log, second).take_over(
            second,
            log.partitions(),
            lambda: deployed(log, first).take_over(first, log.partitions()) == "",
        )
    assert deployed(log, second).last() is None
    begin(log, first)


def test_both_are_refused_if_they_ran_so_before_this_was_checked() -> None:
    log = MemoryLog()
    begin(log, LONGER)
    with closing(log.writer()) as writer:
        log.create_topics([TopicSpec("q-topology", 1)])
        writer.append(
            "q-topology",
            [b"topology"],
            [SHORTER.describe("json").encode()],
            [1],
            partitions=0,
        )
        writer.flush(1)
    for topology in (LONGER, SHORTER):
        with pytest.raises(ConfigError, match=SHARED):
            begin(log, topology)


def test_a_topic_whose_name_looks_like_a_record_claims_nothing() -> None:
    log = MemoryLog()
    log.create_topics([TopicSpec("q-topology", 1), TopicSpec(SHARED, 1)])
    with closing(log.writer()) as writer:
        values = [
            b"no JSON",
            b"[]",
            b'{"internal_topics": 7}',
            b'{"internal_topics": []}',
        ]
        for value in values:
            writer.append("q-topology", [b"topology"], [value], [1], partitions=0)
            writer.flush(1)
            assert claims(log, "q-b", [SHARED], log.partitions()) == {}
    begin(log, LONGER)  # and a topic that somebody has made beforehand is its own


def test_a_reset_leaves_the_topic_that_another_application_has() -> None:
    log = MemoryLog()
    begin(log, SHORTER)
    log.create_topics([TopicSpec("in", 1), TopicSpec("q-b-topology", 1)])
    plan = plan_reset(
        LONGER,
        log.partitions(),
        None,
        lambda topics: claims(log, "q-b", topics, log.partitions(), strict=True),
    )
    assert plan.changelogs == ()
    assert plan.topics == ("q-b-topology",)
    assert plan.shared == {SHARED: "q"}
    assert plan.left == ()


def test_a_record_that_may_not_be_read_stops_a_reset_and_no_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog()
    begin(log, SHORTER)

    def refuse(**_: object) -> None:
        raise AccessDeniedError("allow Read on q-topology")

    monkeypatch.setattr(log, "reader", refuse)
    assert claims(log, "q-b", [SHARED], log.partitions()) == {}
    assert 'cannot see whether application "q" has internal topics' in caplog.text
    with pytest.raises(AccessDeniedError):
        claims(log, "q-b", [SHARED], log.partitions(), strict=True)
