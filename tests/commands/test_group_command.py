"""`coopstreams group` on a real Kafka: the report of a group, and a reset of its
offsets.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from coopstreams.commit.group_progress import list_consumer_group_offsets
from coopstreams.group.admin import GroupAdmin
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, GroupError, UnknownTopicError
from coopstreams.topology.keys import KeyRange
from tests.broker.consuming import Orders, finish, poll_until, read
from tests.command_line import app
from tests.conftest import Kafka
from tests.group.instances import application

pytestmark = pytest.mark.broker

LEFT, _ = KeyRange.split(2)


def run(kafka: Kafka, *arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(
        app,
        ["group", *arguments, "--bootstrap-servers", kafka.bootstrap],
        env={"COLUMNS": "250"},
        input=typed,
    )


def cells(result: Result, word: str) -> list[str]:
    """The cells of the one line with this word."""
    (line,) = [line for line in result.stdout.splitlines() if word in line.split()]
    return line.split()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """Two partitions with ten records each."""
    topic = kafka.topic("orders", 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for i in range(20):
        producer.produce(topic, b"%d" % i, partition=i % 2)
    producer.flush()
    return topic


@pytest.mark.ci
def test_a_group_without_members_shows_its_lag_and_can_be_put_elsewhere(
    kafka: Kafka, topic: str
) -> None:
    group = kafka.unique("group")
    settings = {"bootstrap.servers": kafka.bootstrap}
    with GroupAdmin(settings, group) as admin:
        admin.commit(
            {TopicPartition(topic, 0): (7, ""), TopicPartition(topic, 1): (9, "")}
        )
    told = run(kafka, "describe", group)
    assert f"group {group}: Empty, 0 members" in told.stdout
    assert cells(told, f"{topic}-0") == [
        f"{topic}-0",
        "7",
        "10",
        "3",
        "0..255",
        "7",
        "-",
    ]

    asked = run(
        kafka, "reset", group, "--topic", topic, "--to", "earliest", typed="n\n"
    )
    assert asked.exit_code == 1
    assert f"{topic}-1 -> 0" in asked.stdout
    assert "the name is another" not in asked.stderr
    mistyped = run(
        kafka, "reset", f"{group}s", "--topic", topic, "--to", "earliest", typed="n\n"
    )
    assert (
        f"group {group}s: no partition of these has an offset in Kafka"
        in mistyped.stderr
    )
    assert cells(run(kafka, "describe", group), f"{topic}-0")[1] == "7"

    assert (
        run(
            kafka,
            "reset",
            group,
            "--topic",
            topic,
            "--to",
            "2",
            "--partition",
            "1",
            "--yes",
        ).exit_code
        == 0
    )
    offsets = list_consumer_group_offsets(settings, group)
    assert {at.partition: found and found.offset for at, found in offsets.items()} == {
        0: 7,
        1: 2,
    }
    assert (
        run(
            kafka, "reset", group, "--topic", topic, "--to", "latest", "--yes"
        ).exit_code
        == 0
    )
    assert [
        cells(run(kafka, "describe", group), f"{topic}-{p}")[1:4] for p in (0, 1)
    ] == [
        ["10", "10", "0"],
        ["10", "10", "0"],
    ]


def test_the_members_of_an_application_are_listed_with_their_tasks_and_it_is_not_reset(
    kafka: Kafka, topic: str
) -> None:
    with application(kafka.bootstrap, kafka.unique("busy"), 1) as busy:
        busy.start("a", host="host-1")
        busy.start("b", host="host-2", allow_key_share=True)
        busy.complete("a", "b")
        told = run(kafka, "describe", busy.group)
        assert f"group {busy.group}: Stable, 2 members" in told.stdout
        assert sorted(cells(told, host)[1:] for host in ("host-1", "host-2")) == [
            ["host-1", "yes", "-", str(busy.instances["a"].tasks[0])],
            ["host-2", "yes", "-", str(busy.instances["b"].tasks[0])],
        ]
        refused = run(
            kafka, "reset", busy.group, "--topic", topic, "--to", "earliest", "--yes"
        )
        assert isinstance(refused.exception, GroupError)
        assert "stop them" in str(refused.exception)


@pytest.mark.ci
def test_consumers_are_shown_with_their_key_ranges_and_what_they_did_out_of_order(
    kafka: Kafka,
) -> None:
    orders = Orders(kafka)
    members = [orders.member(), orders.member()]
    poll_until(
        lambda: (
            all(member.assignment() for member in members)
            and not members[0].to_be_revoked()
        ),
        *members,
    )
    orders.write(60)
    for member in members:
        (key_range,) = member.assignment()[orders.at]
        records = read(member, len(orders.offsets_of(key_range)))
        finish(member, records[1:] if key_range == LEFT else records)
    slow = orders.offsets_of(LEFT)[0]

    def all_committed() -> bool:
        for member in members:
            member.commit()
        found = members[0].committed([orders.at])[orders.at]
        return found is not None and (found.offset, found.ranges) == (
            slow,
            ((slow + 1, 59),),
        )

    poll_until(all_committed, *members)
    told = run(kafka, "describe", orders.group)
    above = [f"{slow + 1}-59"] if slow + 1 < 59 else ["59"]
    assert cells(told, f"{orders.at}")[1:7] == [
        str(slow),
        "60",
        str(60 - slow),
        "0..127",
        str(slow),
        *above,
    ]
    assert cells(told, "128..255")[:2] == ["128..255", "60"]
    assert sorted(
        line.split()[-1] for line in told.stdout.splitlines() if " yes " in line
    ) == [
        f"{orders.at}[0..127]",
        f"{orders.at}[128..255]",
    ]
    orders.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "problem"),
    [
        (
            ["--to", "5", "--topic", "nowhere"],
            UnknownTopicError,
            "nowhere has 0 partitions",
        ),
        (["--to", "5", "--partition", "2"], UnknownTopicError, "has 2 partitions"),
        (["--to", "soon"], ConfigError, "write earliest, latest or an offset"),
        (["--to", "11"], ConfigError, "has the offsets 0 to 10, not 11"),
    ],
)
def test_a_place_that_is_not_there_is_an_error(
    kafka: Kafka, topic: str, arguments: list[str], kind: type[Exception], problem: str
) -> None:
    error = run(kafka, "reset", "g", "--topic", topic, *arguments, "--yes").exception
    assert isinstance(error, kind)
    assert problem in str(error)
