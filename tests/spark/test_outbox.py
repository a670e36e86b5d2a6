"""One transaction for each task, however often it is tried: on a real Kafka, without
Spark.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from coopstreams import StreamsBuilder, serdes
from coopstreams.common.config import Config
from coopstreams.spark.history.arrow_rows import HISTORY, batch, headers_column
from coopstreams.spark.outbox import Outbox, Seeds, cluster_of, marks_spec
from coopstreams.spark.routing import Routing
from coopstreams.spark.spark_task import TaskWork
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.errors import FencedError, GroupError, LogError
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


def config_for(kafka: Kafka, tasks: int) -> Config:
    """Return the configuration of an application, with the marks of its run `r`."""
    config = Config.of(
        {"bootstrap.servers": kafka.bootstrap, "application.id": kafka.unique("outbox")}
    )
    cluster = cluster_of(config)
    cluster.create_topics([marks_spec(config["application.id"], "r", tasks, -1)])
    cluster.close()
    return config


def filled(topic: str, value: bytes) -> Output:
    output = Output(topic)
    output.keys.append(b"key")
    output.values.append(value)
    output.timestamps.append(1_700_000_000_000)
    output.give_headers([("h", value)])
    return output


@pytest.mark.ci
def test_an_attempt_after_a_commit_finds_the_result_and_has_nothing_to_write(
    kafka: Kafka,
) -> None:
    config, topic = config_for(kafka, 2), kafka.topic("out")
    changelog = kafka.topic("changelog", 2)
    first = Outbox(config, "r", 1)
    assert first.mark is None
    first.write(filled(topic, b"one"))
    assert (
        first.seed(
            Seeds(TopicPartition(changelog, 1), [(b"k", b"v", 5), (b"l", b"w", 6)])
        )
        == 2
    )
    first.commit("the result")
    again = Outbox(config, "r", 1)
    assert again.mark == "the result"
    again.close()
    first.close()
    assert [
        (record.value, record.headers) for record in read_topic(kafka.bootstrap, topic)
    ] == [(b"one", {"h": b"one"})]
    assert [
        (record.key, record.value, record.timestamp, record.partition)
        for record in read_topic(kafka.bootstrap, changelog)
    ] == [
        (b"k", b"v", 5, 1),
        (b"l", b"w", 6, 1),
    ]


@pytest.mark.ci
def test_an_attempt_that_lives_on_cannot_commit_any_more(kafka: Kafka) -> None:
    config, topic = config_for(kafka, 1), kafka.topic("out")
    zombie = Outbox(config, "r", 0)
    zombie.write(filled(topic, b"stale"))
    successor = Outbox(config, "r", 0)
    assert successor.mark is None
    with pytest.raises((FencedError, LogError)):
        zombie.commit("stale")
    successor.write(filled(topic, b"true"))
    successor.commit("true")
    zombie.close()
    successor.close()
    assert [record.value for record in read_topic(kafka.bootstrap, topic)] == [b"true"]


def test_rows_of_the_first_moments_of_1970_are_written_as_a_live_task_does(
    kafka: Kafka,
) -> None:
    config = config_for(kafka, 1)
    records = [(b"zero", 0), (b"one", 1), (b"later", 86_400_000)]
    builder = StreamsBuilder(config["application.id"])
    builder.stream("in", key=serdes.raw, value=serdes.raw).group_by_key().count(
        store="counts"
    )
    changelog = f"{config['application.id']}-counts-changelog"
    kafka.create(changelog, 1, cleanup_policy="compact")
    keys, times = ([record[at] for record in records] for at in (0, 1))
    columns = [
        ["in"] * 3,
        [0] * 3,
        [0, 1, 2],
        times,
        keys,
        keys,
        headers_column(None, 3),
    ]
    topology = builder.build()
    routed = Routing(topology, 0, "in", 1)(iter([batch(HISTORY, columns)]))
    assert len(list(TaskWork(topology, 0, 1, "r", 0, config, seed=True)(routed))) == 1
    again = Outbox(config, "r", 0)  # returns when the transaction counts everywhere
    assert again.mark is not None
    again.close()
    written = {
        record.key: record.timestamp
        for record in read_topic(kafka.bootstrap, changelog)
    }
    # Kafka's client takes 0 for now.
    assert written == {**dict(records), b"zero": 1}


def test_what_another_task_left_open_keeps_nobody_waiting(kafka: Kafka) -> None:
    config, topic = config_for(kafka, 2), kafka.topic("out")
    dead = Outbox(config, "r", 0)
    dead.write(filled(topic, b"open"))
    other = Outbox(config, "r", 1)
    other.commit("done")
    assert Outbox(config, "r", 1).mark == "done"
    other.close()
    dead.close()


@pytest.mark.parametrize("left", [False, True], ids=["which runs", "which has run"])
def test_a_task_writes_nothing_beside_an_application_that_has_begun_meanwhile(
    kafka: Kafka, *, left: bool
) -> None:
    """An instance that reads its global tables has looked for runs, and is no member of
    its group yet.
    """
    config, source = config_for(kafka, 1), kafka.topic("in")
    application = config["application.id"]
    builder = StreamsBuilder(application)
    builder.stream(source, key=serdes.raw, value=serdes.raw).group_by_key().count(
        store="counts"
    )
    changelog = f"{application}-counts-changelog"
    kafka.create(changelog, 1, cleanup_policy="compact")
    history = batch(
        HISTORY, [[source], [0], [0], [5], [b"key"], [b""], headers_column(None, 1)]
    )
    topology = builder.build()
    work = TaskWork(topology, 0, 1, "r", 0, config, seed=True)
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": application,
        "enable.auto.commit": False,
    }
    with closing(Consumer(settings)) as member:
        member.subscribe([source])
        eventually(
            lambda: not member.poll(0.1) and bool(member.assignment()),
            60,
            lambda: "it has joined no group",
        )
        if left:
            member.commit(offsets=[KafkaPartition(source, 0, 0)], asynchronous=False)
            member.close()
        why = f"committed an offset of {source}-0" if left else "1 members"
        with pytest.raises(
            GroupError, match=f'"{application}" has {why}: it has begun beside run r'
        ):
            list(work(Routing(topology, 0, source, 1)(iter([history]))))
    assert read_topic(kafka.bootstrap, changelog) == []
