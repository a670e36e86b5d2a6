"""The failure cases that the proposal lists for a consumer, on a real Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from coopstreams.consumer import CooperativeConsumer, TopicPartition
from coopstreams.dev.broker import KafkaBroker
from coopstreams.topology.errors import ConfigError, LogError, MembershipLostError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.consuming import Orders, finish, nothing_more, poll_until, read
from tests.command_line import app as commands

pytestmark = pytest.mark.broker

LEFT, RIGHT = KeyRange.split(2)


def test_what_is_done_twice_is_a_warning_and_changes_nothing(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    orders.write(10)
    consumer = orders.alone([])
    records = read(consumer, 10)
    finish(consumer, records[:5])
    finish(consumer, records[:2])
    with caplog.at_level(logging.WARNING, "coopstreams.consumer"):
        assert consumer.commit().offset == {orders.at: 5}
    assert "2 records were done already" in caplog.text
    caplog.clear()
    finish(consumer, records[:1])
    with caplog.at_level(logging.WARNING, "coopstreams.consumer"):
        assert consumer.commit().offset == {orders.at: 5}, (
            "also when it was committed in between"
        )
    assert "1 records were done already" in caplog.text


@pytest.mark.slow
def test_a_lost_commit_topic_leaves_the_stable_offset(
    broker_of_own: Callable[..., KafkaBroker],
) -> None:
    """A start is refused, because records above the stable offset would be processed
    again; the user may allow it.
    """
    broker = broker_of_own()
    orders = Orders(broker)
    orders.write(100)
    left, right = orders.alone([LEFT]), orders.alone([RIGHT])
    mine, others = orders.offsets_of(LEFT), orders.offsets_of(RIGHT)
    finish(left, read(left, len(mine)))
    finish(right, read(right, len(others)), lambda offset: offset < 40)
    stable = min(offset for offset in others if offset >= 40)
    right.commit()
    left.commit()
    left.committed([orders.at])  # reads the other one's commit
    left.commit()
    assert left.commit().last_stable_offset == {orders.at: stable}
    for consumer in (left, right):
        consumer.close()

    orders.log.delete_topics([COMMIT_TOPIC])
    heir = orders.alone([])
    with pytest.raises(
        ConfigError, match=f"had committed more than the plain offset {stable} says"
    ) as refused:
        read(heir, 1)
    heir.close()
    command = str(refused.value).partition("run `coopstreams ")[2].rstrip("`").split()
    done = CliRunner().invoke(
        commands, [*command, "--yes", "--bootstrap-servers", broker.bootstrap]
    )
    assert done.exit_code == 0, done.output
    heir = orders.alone([])
    again = read(heir, 100 - stable)
    assert [record.offset for record in again] == list(range(stable, 100))
    finish(heir, again)
    assert heir.commit().last_stable_offset == {orders.at: 100}
    nothing_more(heir)
    orders.close()


@pytest.mark.slow
def test_a_broker_that_restarts_takes_nothing_away(
    broker_of_own: Callable[..., KafkaBroker],
) -> None:
    broker = broker_of_own()
    orders = Orders(broker)
    orders.write(100)
    consumer = orders.member(transaction_timeout_ms=5000)
    records = read(consumer, 50)
    finish(consumer, records[:20])
    consumer.commit()
    finish(consumer, records[20:])
    broker.stop()
    with pytest.raises(LogError):
        consumer.commit()
    more = consumer.consume(100, 0.1)  # records fetched earlier
    broker.start()
    more += read(consumer, 50 - len(more), 60) if len(more) < 50 else []
    assert [record.offset for record in more] == list(range(50, 100))
    finish(consumer, more)
    poll_until(lambda: committed(consumer) == {orders.at: 100}, consumer)
    orders.close()


def committed(consumer: CooperativeConsumer) -> dict[TopicPartition, int]:
    """Commit, with retries: the broker may still be looking for its groups."""
    try:
        return dict(consumer.commit().offset)
    except (LogError, MembershipLostError):
        return {}
