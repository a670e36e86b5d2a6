"""Sessions and joins behind repartition topics on a real Kafka: what they hold is that
of one partition in the order of births.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coopstreams import (
    CoopStreams,
    JoinWindows,
    KStream,
    SessionWindows,
    StreamsBuilder,
    Topology,
    serdes,
)
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.keys import partition_of
from tests.broker.reading import read_topic
from tests.broker.test_time_behind_topics import backlog, write
from tests.broker.waiting import eventually
from tests.conftest import Kafka

Row = tuple[str, str, int]
Stream = KStream[str, str]


def renamed(stream: Stream, name: str) -> Stream:
    by_key = stream.select_key(lambda key, _: key[::-1], key=serdes.text)
    return by_key.repartition(name=name, key=serdes.text, value=serdes.text)


def program(
    application: str, source: str, others: str, out: str, *, direct: bool
) -> Topology:
    """Count sessions, and join each record with those of another topic that are near in
    time, or with none. `direct`: the other topic has the new keys, and is read without
    a repartition topic.
    """
    builder = StreamsBuilder(application)
    left = renamed(builder.stream(source, key=serdes.text, value=serdes.text), "left")
    right = builder.stream(others, key=serdes.text, value=serdes.text)
    if not direct:
        right = renamed(right, "right")
    idle = SessionWindows(minutes=30, grace=timedelta(0))
    counts = left.group_by_key().windowed_by(idle).count(store="sessions")
    counts.to_stream().to(f"{out}-sessions")
    near = JoinWindows(timedelta(minutes=20), grace=timedelta(minutes=90))
    left.left_join(
        right, "{}+{}".format, windows=near, store="pairs", value=serdes.text
    ).to(f"{out}-pairs")
    return builder.build()


def apart(rows: list[list[Row]], first: int) -> list[list[Row]]:
    """Return the records with times that no other partition has."""
    return [
        [(key, value, at // 8 * 8 + first + partition) for key, value, at in some]
        for partition, some in enumerate(rows)
    ]


def in_their_partitions(rows: list[list[Row]]) -> list[list[Row]]:
    """Return the records with keys of their partitions, as behind the other topic."""
    count = len(rows)
    keys = [
        [
            key
            for number in range(1000)
            if partition_of((key := f"k{number}"[::-1]).encode(), count) == partition
        ]
        for partition in range(count)
    ]
    return [
        [(some[int(key[1:]) % len(some)], value, at) for key, value, at in each]
        for some, each in zip(keys, rows, strict=True)
    ]


def in_birth_order(topics: dict[str, list[list[Row]]]) -> list[tuple[int, str, Row]]:
    """Return all records: in the end all are silent, and all promise the latest time."""
    born = []
    for topic, partitions in topics.items():
        for rows in partitions:
            birth = -1
            for row in rows:
                birth = max(birth, row[2])
                born.append((birth, topic, row))
    return sorted(born, key=lambda each: each[0])


@dataclass
class Outputs:
    """The last value of each session (of several updates between two commits only the
    last one is told), the pairs, and the records that are told to have no match.
    """

    sessions: dict[bytes | None, bytes | None]
    pairs: Counter[tuple[bytes | None, bytes, int]]
    alone: Counter[tuple[bytes | None, bytes, int]]

    @classmethod
    def of(cls, sessions: Iterable[Any], joined: Iterable[Any]) -> Outputs:
        last = {each.key: each.value for each in sessions}
        rows = [(each.key, each.value, each.timestamp) for each in joined]
        return cls(
            {key: value for key, value in last.items() if value is not None},
            Counter(row for row in rows if not row[1].endswith(b"+None")),
            Counter(row for row in rows if row[1].endswith(b"+None")),
        )

    def missing(self, told: Outputs) -> str:
        """Return how `told` differs; empty: it has all of this, and not more than
        records without a match, which Kafka Streams tells later than it could.
        """
        if (told.sessions, told.pairs) == (self.sessions, self.pairs) and (
            told.alone >= self.alone
        ):
            return ""
        differ = self.sessions.items() ^ told.sessions.items()
        return (
            f"{len(differ)} sessions differ, {(self.pairs - told.pairs).total()} pairs and "
            f"{(self.alone - told.alone).total()} records without a match are missing, "
            f"{(told.pairs - self.pairs).total()} pairs are too many"
        )


def expected(topics: dict[str, list[list[Row]]], *, direct: bool) -> Outputs:
    """Return what one partition of each topic gives, in the order of births. Of a topic
    that is read directly a task has one partition: it gives what its keys have.
    """
    if not direct:
        return Outputs.of(*alone(topics, direct=False))
    left, right = topics
    count = len(topics[right])
    sessions: list[Any] = []
    pairs: list[Any] = []
    for partition, some in enumerate(topics[right]):
        told = alone({left: topics[left], right: [some]}, direct=True)
        for records, found in zip((sessions, pairs), told, strict=True):
            records += [
                each
                for each in found
                # That of a session begins with the key, which ends with a k.
                if partition_of(each.key[: each.key.index(b"k") + 1], count)
                == partition
            ]
    return Outputs.of(sessions, pairs)


def alone(
    topics: dict[str, list[list[Row]]], *, direct: bool
) -> tuple[list[Any], list[Any]]:
    """Return the sessions and pairs that one partition of each topic gives."""
    left, right = topics
    topology = program("alone", left, right, "out", direct=direct)
    with TopologyTestDriver(topology, partitions=dict.fromkeys(topics, 1)) as driver:
        for _, topic, (key, value, at) in in_birth_order(topics):
            source = driver.input(topic, serdes.text, serdes.text)
            source.send(key, value, at)
        sessions = driver.output("out-sessions", serdes.raw, serdes.raw).read()
        pairs = driver.output("out-pairs", serdes.raw, serdes.raw).read()
    return list(sessions), list(pairs)


def told(kafka: Kafka, out: str) -> Outputs:
    kinds = ("sessions", "pairs")
    return Outputs.of(*(read_topic(kafka.bootstrap, f"{out}-{kind}") for kind in kinds))


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize(
    ("guarantee", "direct"),
    [("exactly_once_v2", False), ("at_least_once", False), ("exactly_once_v2", True)],
)
def test_a_backlog_gives_what_one_partition_gives(
    kafka: Kafka, tmp_path: Path, guarantee: str, direct: bool
) -> None:
    """One process is stopped on the way, and what it had read is read again."""
    topics = {
        kafka.topic(name, 2, **{"retention.ms": "-1"}): apart(
            backlog(seed, 2, 4000, 0.05), first
        )
        for name, seed, first in (("left", 1, 0), ("right", 2, 4))
    }
    left, right = topics
    if direct:
        topics[right] = in_their_partitions(topics[right])
    for topic, rows in topics.items():
        write(kafka, topic, rows)
    out = kafka.unique("out")
    for kind in ("sessions", "pairs"):
        kafka.create(f"{out}-{kind}", 1, **{"retention.ms": "-1"})
    want = expected(topics, direct=direct)
    topology = program(kafka.unique("sessions"), left, right, out, direct=direct)
    settings: dict[str, Any] = {
        "ranges_per_partition": 3,
        "num_stream_threads": 2,
        "processing_guarantee": guarantee,
        "repartition_idle_ms": 1000,
    }

    def run(number: int) -> CoopStreams:
        config = kafka.config(tmp_path, instance=number, **settings)
        return CoopStreams(topology, config)

    with ExitStack() as running:
        running.enter_context(run(0))
        with run(1):
            eventually(
                lambda: told(kafka, out).pairs.total() > want.pairs.total() // 10,
                60,
                lambda: want.missing(told(kafka, out)),
            )
        running.enter_context(run(2))
        eventually(
            lambda: not want.missing(told(kafka, out)),
            60,
            lambda: want.missing(told(kafka, out)),
        )
    assert max(told(kafka, out).alone.values()) == 1, "told twice to have no match"
