"""Lost positions, told apart from a first start: two sub-topologies on a log whose
offsets the test sets.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from coopstreams.admin.group_reset import reset_key
from coopstreams.commit.barrier import Opening
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.progress import Progress
from coopstreams.commit.record import (
    MADE_ANEW,
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    decode_value,
    encode_key,
    encode_value,
)
from coopstreams.common.config import Config
from coopstreams.group.group_requests import FetchedOffset
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening.position_check import PositionCheck
from coopstreams.preflight.resolution import resolve_topology
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from coopstreams.topology.task_id import TaskId

LEFT, RIGHT = KeyRange.split(2)
ORDERS, REPARTITION = (
    TopicPartition("orders", 0),
    TopicPartition("app-by-city-repartition", 0),
)
CHANGELOG = "app-counts-changelog"


class Application:
    """A stateless stage that repartitions, and a count behind it. It is its own group
    coordinator.
    """

    def __init__(self, *, counts: bool = True) -> None:
        """`counts`: whether there is a count, or only a look at what was repartitioned."""
        self.log = MemoryLog()
        self.log.create_topics([TopicSpec("orders", 2)])
        builder = StreamsBuilder("app")
        orders = builder.stream("orders", key=serdes.text, value=serdes.text)
        if counts:
            orders.group_by(lambda _, v: v, key=serdes.text, name="by-city").count(
                store="counts"
            )
        else:
            orders.repartition(name="by-city").peek(lambda _, __: None)
        config = Config.of({"bootstrap.servers": "nowhere:1"}, "app")
        resolved = resolve_topology(self.log, builder.build(), config)
        self.offsets: dict[TopicPartition, tuple[int, str] | None] = {}
        self.follower = Follower(self.log, "app")
        begun = PositionCheck(
            "app",
            self.log,
            self,
            lambda: resolved,
            lambda store: f"app-{store.name}-changelog",
        )
        self.positions = Positions(
            self.log,
            self,
            self.follower,
            resolved.sources,
            lambda _: "earliest",
            "a",
            begun=begun.check,
        )
        self.writer = self.log.writer()

    def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool = True
    ) -> FetchedOffset:
        assert stable is not None
        return FetchedOffset({at: self.offsets.get(at) for at in partitions or ()})

    def write(
        self, topic: str, partition: int, key: bytes = b"k", value: bytes | None = b"v"
    ) -> None:
        self.writer.append(topic, [key], [value], [1], partitions=partition)
        while not self.follower.passed(self.follower.barrier()):
            self.follower.poll(0.1)

    def open(
        self, subtopology: int, partition: int = 0, key_range: KeyRange = WHOLE
    ) -> list[int]:
        task = TaskId(subtopology, partition, key_range)
        asking = Opening(task, epoch=0, barrier=0)
        while task not in (opened := self.positions.resolve([asking], 1)):
            asking.barrier = self.follower.barrier()
        progress = opened[task]
        return [progress.position(source).offset for source in progress.partitions]


def test_what_has_never_begun_begins() -> None:
    app = Application()
    assert [app.open(stage, number) for stage in (0, 1) for number in (0, 1)] == [
        [0]
    ] * 4


def test_a_changelog_with_records_and_no_position_of_its_sources_is_a_position_that_was_lost() -> (
    None
):
    app = Application()
    app.write(CHANGELOG, 0)
    with pytest.raises(
        ConfigError,
        match=rf"group 'app' has lost its positions: {CHANGELOG}-0 has records.* --topic {REPARTITION.topic} "
        r"--partition 0 ",
    ):
        app.open(1)


def test_a_stage_without_state_does_not_write_again_into_one_whose_state_is_there() -> (
    None
):
    app = Application()
    app.write(CHANGELOG, 1)
    with pytest.raises(ConfigError, match=f"{CHANGELOG}-1 has records"):
        app.open(0)


def test_a_partition_that_has_begun_elsewhere_is_no_loss() -> None:
    """The other process committed its first position before it wrote; this one fetches
    the ends before the offsets.
    """
    app = Application()
    app.write(CHANGELOG, 1)
    app.offsets[TopicPartition(REPARTITION.topic, 1)] = 0, "ic -1 0"
    assert app.open(0) == [0]
    assert app.open(1) == [0]


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_a_repartition_topic_whose_records_nobody_here_has_written_is_not_read_beside_its_sources(
    counts: bool, first: int
) -> None:
    """Sources and repartition topics were copied from another cluster, changelogs were
    not: each order counted twice.

    Whichever opens first: the stage in front would write again what is there.
    """
    app = Application(counts=counts)
    app.write(REPARTITION.topic, 0)
    with pytest.raises(
        ConfigError,
        match=rf"lost its positions: {REPARTITION} has records, there is no position in any of the sources from which "
        r"they were written.* copied from another cluster.*`coopstreams reset`.*--topic orders --partition 1 --to OFF",
    ):
        app.open(first)


def test_a_repartition_topic_to_which_another_process_has_written_or_which_is_purged_is_no_loss() -> (
    None
):
    app = Application()
    app.write(REPARTITION.topic, 0)
    app.offsets[TopicPartition("orders", 1)] = 0, "ic -1 0"
    assert [app.open(stage, number) for stage in (0, 1) for number in (0, 1)] == [
        [0]
    ] * 4
    app = Application()
    app.write(REPARTITION.topic, 0)
    app.offsets[REPARTITION] = (
        1,
        "ic -1 0",
    )  # and the stage in front has read another topic until now
    assert app.open(0) == [0]
    app = Application()
    app.write(REPARTITION.topic, 0)
    app.log.delete_before(REPARTITION, 1)
    assert [app.open(0), app.open(1)] == [[0], [1]]


def tiled(
    app: Application, source: TopicPartition, position: int, term: int = 2
) -> None:
    """Write individual commits of both halves of a source."""
    for key_range in (LEFT, RIGHT):
        key = encode_key(CommitKey("app", *source, key_range, term, 1))
        value = encode_value(CommitValue("t", (Segment(key_range, position),)))
        app.write(COMMIT_TOPIC, app.follower.partition.partition, key, value)


def test_individual_commits_that_tile_are_a_position() -> None:
    app = Application()
    app.write(CHANGELOG, 0)
    for topic in (ORDERS.topic, REPARTITION.topic):
        for number in (0, 1):
            tiled(app, TopicPartition(topic, number), 7)
    assert [app.open(1), app.open(0)] == [[7], [7]]


@pytest.mark.parametrize("first", [0, 1])
def test_a_source_without_a_position_has_lost_it_where_another_one_has_lost_its_plain_offset(
    first: int,
) -> None:
    """Whichever opens first: a stateless stage would write again into one that
    continues at its position.
    """
    app = Application()
    tiled(app, REPARTITION, 7)
    for partition in (
        TopicPartition("orders", 1),
        TopicPartition(REPARTITION.topic, 1),
    ):
        app.offsets[partition] = 0, "ic -1 0"
    with pytest.raises(
        ConfigError,
        match=rf"lost its positions: {REPARTITION} has individual commits, its plain offset, which came first, is gone"
        r", and there is no position of orders-0\..*--topic orders --partition 0 --to OFFSET`",
    ):
        app.open(first)
    app.offsets[ORDERS] = 3, "ic -1 0"
    assert [app.open(0), app.open(1)] == [[3], [7]]


def test_a_key_range_that_never_committed_beside_one_that_has_rested_upon_an_offset_that_is_gone() -> (
    None
):
    app = Application()
    key = encode_key(CommitKey("app", *ORDERS, LEFT, 2, 1))
    app.write(
        COMMIT_TOPIC,
        app.follower.partition.partition,
        key,
        encode_value(CommitValue("t", (Segment(LEFT, 7),))),
    )
    app.offsets |= {
        TopicPartition(topic, n): (0, "ic -1 0")
        for topic in ("orders", REPARTITION.topic)
        for n in (0, 1)
    }
    app.offsets[ORDERS] = None
    assert app.open(0, key_range=LEFT) == [7]
    with pytest.raises(
        ConfigError,
        match="key ranges of orders-0 have committed, others never did, and the plain offset that they began with is "
        "gone",
    ):
        app.open(0, key_range=RIGHT)


def test_a_plain_offset_that_names_an_individual_commit_is_refused_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coopstreams.commit.positions.DOUBT_S", 0.01)
    app = Application()
    app.offsets[ORDERS] = 5, "ic -1 1 3"
    with pytest.raises(
        ConfigError,
        match=r"had committed more than the plain offset 5 says.*group reset app --topic orders --partition 0 --to 5`"
        r"\. Or a tool has copied the offset from another cluster: ",
    ):
        app.open(0)
    app.offsets[ORDERS] = (
        0,
        "ic -1 4 3",
    )  # the task that wrote it has outranked that commit since
    assert app.open(0) == [0]


def reset(app: Application, source: TopicPartition) -> None:
    """Write what a reset does after which the topic is made anew."""
    key = reset_key("app", source, app.follower.next_term(source, None), MADE_ANEW)
    value = encode_value(CommitValue("reset", (Segment(WHOLE, 0),)))
    app.write(COMMIT_TOPIC, app.follower.partition.partition, encode_key(key), value)


def test_a_repartition_topic_that_has_grown_with_a_reset_has_lost_no_position() -> None:
    """The reset knew the partitions of before; Kafka has deleted their plain offsets
    with the topic.
    """
    app = Application()
    reset(app, REPARTITION)
    app.offsets |= {
        TopicPartition("orders", number): (0, "ic -1 2") for number in (0, 1)
    }
    assert [app.open(stage, number) for stage in (0, 1) for number in (0, 1)] == [
        [0]
    ] * 4


def test_a_position_that_is_lost_after_a_reset_is_missed() -> None:
    app = Application()
    reset(app, REPARTITION)
    tiled(app, REPARTITION, 7, app.follower.next_term(REPARTITION, None))
    app.offsets |= {
        TopicPartition("orders", number): (0, "ic -1 2") for number in (0, 1)
    }
    with pytest.raises(
        ConfigError, match=f"{REPARTITION} has individual commits, its plain offset"
    ):
        app.open(1, 1)


def test_a_partition_begins_once_after_a_reset_had_its_topic_made_anew() -> None:
    """Its first position becomes durable before it processes anything, as that of a
    partition without commits.
    """
    app, task = Application(), TaskId(1, 0, WHOLE)
    reset(app, REPARTITION)

    def opened() -> Progress:
        asking = Opening(task, epoch=0, barrier=0)
        while task not in (found := app.positions.resolve([asking], 1)):
            asking.barrier = app.follower.barrier()
        return found[task]

    for left_by_the_reset in (
        None,
        (0, "ic -1 2"),
    ):  # before and after Kafka has deleted it
        app.offsets[REPARTITION] = left_by_the_reset
        assert opened().begins(REPARTITION)
    app.offsets |= opened().begin()
    assert not opened().begins(REPARTITION)
    assert opened().begin() == {}


def commit(
    app: Application, key_range: KeyRange, position: int, beside: str, term: int = 2
) -> None:
    """Write an individual commit of `orders`."""
    key = encode_key(CommitKey("app", *ORDERS, key_range, term, 1))
    app.write(
        COMMIT_TOPIC,
        app.follower.partition.partition,
        key,
        encode_value(CommitValue("t", (Segment(key_range, position),), beside)),
    )


def test_commits_of_a_topic_that_was_made_anew_are_refused_though_it_has_grown_past_them() -> (
    None
):
    app = Application()
    app.offsets |= {
        TopicPartition(topic, n): (0, "ic -1 0")
        for topic in ("orders", REPARTITION.topic)
        for n in (0, 1)
    }
    app.offsets[ORDERS] = None
    old = app.log.topic_id("orders")
    commit(app, LEFT, 7, old)
    commit(app, RIGHT, 5, "")  # of a version that did not note ids
    assert (app.open(0, key_range=LEFT), app.open(0, key_range=RIGHT), app.open(0)) == (
        [7],
        [5],
        [5],
    )
    app.log.delete_topics(["orders"])
    app.log.create_topics([TopicSpec("orders", 2)])
    for _ in range(20):
        app.write("orders", 0)
    for key_range in (LEFT, WHOLE):
        with pytest.raises(
            ConfigError,
            match=r"orders-0: the topic was deleted and made anew .* `coopstreams group reset app --topic orders --to "
            r"earliest`",
        ):
            app.open(0, key_range=key_range)
    assert app.open(0, key_range=RIGHT) == [5], "nobody knows"
    commit(app, WHOLE, 0, "", term=4)  # as by a reset
    assert app.open(0, key_range=LEFT) == [0]


def test_what_a_task_commits_names_the_topic_that_was_there_when_it_was_opened() -> (
    None
):
    app, task = Application(), TaskId(0, 0, LEFT)
    [progress] = app.positions.resolve([Opening(task, epoch=0, barrier=0)], 1).values()
    progress.advance(ORDERS, 3, 1)
    [record] = progress.records(ORDERS)
    assert decode_value(record[1], LEFT).metadata == app.log.topic_id("orders")


@pytest.mark.parametrize(
    ("rows", "metadata", "told"),
    [
        (1, "", True),
        (1, Committed(3, term=1).metadata, False),
        (0, Committed(3, term=1).metadata, False),
    ],
)
def test_a_position_that_another_tool_has_set_is_told_where_there_is_state(
    rows: int, metadata: str, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After `kafka-consumer-groups --reset-offsets` records were counted twice, and
    nothing said so.
    """
    app = Application()
    for _ in range(rows):
        app.write(CHANGELOG, 0)
    app.offsets = {REPARTITION: (3, metadata)}
    assert app.open(1) == [3]
    assert (
        "begins at offset 3, which this application has not committed" in caplog.text
    ) is told


@pytest.mark.parametrize("metadata", ["", "AgAAAaIft6SK"])
def test_an_application_with_state_does_not_begin_from_nothing_at_the_offsets_of_another(
    metadata: str,
) -> None:
    """A group of Quix Streams was taken over: all counts began at its offsets, in
    silence. Its changelogs have other names; so may have those of Faust and Kafka
    Streams, whose stores have other names.

    The stage in front of the count is refused, too: it would count from nothing as
    well.
    """
    app = Application()
    app.offsets = {ORDERS: (3, metadata), TopicPartition("orders", 1): (4, metadata)}
    with pytest.raises(
        ConfigError,
        match=r"'app' has offsets of another application: orders-0 at 3, orders-1 at 4\. .*another application.id.*"
        r"`coopstreams reset`.*`coopstreams group reset app --topic orders --partition 1 --to 4`",
    ):
        app.open(0, 1)


def test_offsets_before_which_there_is_nothing_to_read_leave_nothing_out() -> None:
    """As of `kafka-consumer-groups.sh --reset-offsets --to-earliest`."""
    app = Application()
    app.write("orders", 0)
    app.log.delete_before(ORDERS, 1)
    app.offsets = {ORDERS: (1, "")}
    assert app.open(0) == [1]


OF_KAFKA_STREAMS = "AgAAAaIft6SK"


@pytest.mark.parametrize("opened", [(1, 0), (1, 1), (0, 0)])
def test_the_state_of_an_application_of_kafka_streams_is_no_state_of_ours(
    opened: tuple[int, int],
) -> None:
    """Its changelogs have the names of ours: a join by foreign keys went on, and did
    not find its rows.

    The partitions without an offset and the tasks without state are refused, too.
    """
    app = Application()
    app.write(CHANGELOG, 0)
    app.offsets = {ORDERS: (3, OF_KAFKA_STREAMS), REPARTITION: (3, OF_KAFKA_STREAMS)}
    with pytest.raises(
        ConfigError,
        match=rf"'app' is that of an application of Kafka Streams: it has committed .*-0, and {CHANGELOG}-0 has records"
        ".*another application.id.*`coopstreams reset`",
    ):
        app.open(*opened)


def test_without_state_an_application_goes_on_at_the_offsets_of_kafka_streams() -> None:
    app = Application(counts=False)
    app.offsets = {ORDERS: (3, OF_KAFKA_STREAMS), REPARTITION: (5, OF_KAFKA_STREAMS)}
    assert [app.open(0), app.open(1), app.open(0, 1)] == [[3], [5], [0]]
