"""The search for topics that match a pattern, and the events for new and deleted ones:
in virtual time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from coopstreams.common.config import Config
from coopstreams.instance.subscription import GONE_S, HURRY_S, PatternSubscription
from coopstreams.log.kafka.schema_registry import registry_of
from coopstreams.log.log import UNKNOWN_FOR_S, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight import schema_checks
from coopstreams.preflight.resolution import resolve_topology
from coopstreams.preflight.schema_checks import schemas_bound
from coopstreams.tasks.events import Event, Matched
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import OffsetOutOfRangeError, UnknownTopicError
from coopstreams.topology.schemas import InMemoryRegistry
from tests.simulation.fibers import Machine, Scheduler

EVERY_S = 300.0


@dataclass
class Subscribed:
    """A subscription to `orders-.*` that checks every five minutes, and its events with
    their times.
    """

    log: MemoryLog = field(default_factory=MemoryLog)
    scheduler: Scheduler = field(default_factory=lambda: Scheduler(Random(1)))
    said: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        builder = StreamsBuilder("app")
        builder.stream(re.compile("orders-.*"), key=serdes.text, value=serdes.raw).to(
            "out"
        )
        built = builder.build()
        config = Config.of(
            {
                "bootstrap.servers": "in-memory",
                "metadata.max.age.ms": int(EVERY_S * 1000),
            },
            "app",
        )
        self.make("out", "orders-eu")
        self.machine = Machine(self.scheduler, "instance")
        resolved = resolve_topology(self.log, built, config)
        self.subscription = PatternSubscription(
            self.log, built, config, resolved, self.hear, self.machine
        )
        self.subscription.start()

    def hear(self, event: Event) -> None:
        assert isinstance(event, Matched)
        self.said.append((self.scheduler.now, event.resolved.topology.source_topics))

    def make(self, *names: str) -> None:
        self.log.create_topics([TopicSpec(name, 1) for name in names])


@pytest.fixture
def subscribed() -> Iterator[Subscribed]:
    made = Subscribed()
    yield made
    made.scheduler.close([made.machine])


def test_topics_are_looked_for_once_in_each_metadata_age(
    subscribed: Subscribed,
) -> None:
    subscribed.scheduler.run(EVERY_S / 2)
    subscribed.make("orders-us")
    subscribed.scheduler.run(EVERY_S * 2.5)
    assert subscribed.said == [(EVERY_S, ("orders-eu", "orders-us"))]


def test_who_may_be_behind_looks_at_once_and_again_soon_for_a_while(
    subscribed: Subscribed,
) -> None:
    subscribed.make("orders-us")
    subscribed.subscription.hurry()
    subscribed.scheduler.run(1.0)
    assert subscribed.said == [(0.0, ("orders-eu", "orders-us"))]
    subscribed.make("orders-za")
    subscribed.scheduler.run(HURRY_S)
    [_, (at, topics)] = subscribed.said
    assert (at < 2.0, topics) == (True, ("orders-eu", "orders-us", "orders-za"))


def test_a_topic_is_gone_only_when_it_was_missing_for_a_while(
    subscribed: Subscribed,
) -> None:
    subscribed.make("orders-us")
    subscribed.subscription.hurry()
    subscribed.scheduler.run(HURRY_S)
    subscribed.log.delete_topics(["orders-us"])
    subscribed.subscription.hurry()
    subscribed.scheduler.run(HURRY_S + UNKNOWN_FOR_S / 2)
    assert len(subscribed.said) == 1, "a broker that has just started may not know it"
    subscribed.scheduler.run(HURRY_S + UNKNOWN_FOR_S + 1)
    assert [topics for _, topics in subscribed.said] == [
        ("orders-eu", "orders-us"),
        ("orders-eu",),
    ]


def test_a_topic_that_the_reader_misses_is_waited_for_while_a_look_may_take_it_out(
    subscribed: Subscribed,
) -> None:
    missed = UnknownTopicError("orders-eu-0 does not exist any more")
    subscribed.log.delete_topics(["orders-eu"])
    assert subscribed.subscription.may_cure(missed)
    subscribed.scheduler.run(UNKNOWN_FOR_S + 1)
    assert [topics for _, topics in subscribed.said] == [()]
    assert subscribed.subscription.may_cure(missed)
    subscribed.scheduler.run(UNKNOWN_FOR_S + 1 + GONE_S)
    assert not subscribed.subscription.may_cure(missed), (
        "no pattern has matched that topic"
    )
    assert not subscribed.subscription.may_cure(
        OffsetOutOfRangeError("orders-us-0 from offset 5")
    )


def test_a_new_topic_is_looked_for_again_while_the_schema_registry_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the instance, with the exit status of wrong settings: the others would
    have ended, too.
    """
    builder, log, said = StreamsBuilder("app"), MemoryLog(), list[Event]()
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "amount", "type": "long"}],
    }
    builder.stream(
        re.compile("orders-.*"), key=serdes.text, value=serdes.avro(order)
    ).to("out")
    built = builder.build()
    log.create_topics([TopicSpec(name, 1) for name in ("out", "orders-eu")])
    settings = {
        "bootstrap.servers": "in-memory",
        "schema.registry.url": "http://127.0.0.1:9",
    }
    config = Config.of({**settings, "metadata.max.age.ms": int(EVERY_S * 1000)}, "app")
    registry = InMemoryRegistry()
    monkeypatch.setattr(schema_checks, "registry_of", lambda _: registry)
    with schemas_bound(built, config):
        scheduler = Scheduler(Random(1))
        machine = Machine(scheduler, "instance")
        PatternSubscription(
            log,
            built,
            config,
            resolve_topology(log, built, config),
            said.append,
            machine,
        ).start()
        log.create_topics([TopicSpec("orders-us", 1)])
        monkeypatch.setattr(
            schema_checks, "registry_of", registry_of
        )  # nothing listens there
        scheduler.run(EVERY_S * 1.5)
        assert said == []
        monkeypatch.setattr(schema_checks, "registry_of", lambda _: registry)
        scheduler.run(EVERY_S * 2)
        [matched] = said
        assert isinstance(matched, Matched)
        scheduler.close([machine])


def test_a_look_that_ends_while_the_reader_asks_is_no_error(
    subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = UnknownTopicError("orders-eu-0 does not exist any more")
    subscription, now = subscribed.subscription, subscribed.machine.now
    assert subscription.may_cure(missed)

    def looked() -> float:
        subscription._unread_since = None
        return now()

    monkeypatch.setattr(subscribed.machine, "now", looked)
    assert subscription.may_cure(missed)
