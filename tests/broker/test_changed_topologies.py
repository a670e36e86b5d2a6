"""A new version of a topology on a real Kafka: one that would lose, mix or misread
state is refused; others start.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, StreamsBuilder, Topology, serdes
from coopstreams.admin.application_reset import carry_out, plan_reset
from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.share_consumer import delete_share_group
from coopstreams.preflight.last_version import LastVersion
from coopstreams.topology.errors import TopologyChangedError
from coopstreams.topology.naming import topology_topic
from tests.broker.counting import await_running, failure_of
from tests.broker.reading import counts_of
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number % 20}" for number in range(100)]


@dataclass
class Application:
    """An application whose versions run one after the other, over one state folder."""

    kafka: Kafka
    folder: Path
    partitions: int = 1
    written: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.id = self.kafka.unique("changed")
        self.a, self.b, self.out = (
            self.kafka.topic(name, self.partitions) for name in ("a", "b", "out")
        )

    def build(self, version: Version) -> Topology:
        builder = StreamsBuilder(self.id)
        version(self, builder)
        return builder.build()

    def app(self, version: Version, **settings: Any) -> CoopStreams:
        """An instance of a version, not yet running."""
        return CoopStreams(
            self.build(version),
            self.kafka.config(self.folder, commit_interval_ms=50, **settings),
        )

    @property
    def internal(self) -> list[str]:
        """Return the internal topics of the application."""
        return [
            topic for topic in self.kafka.topics() if topic.startswith(f"{self.id}-")
        ]

    def write(self, topic: str, keys: list[str] = KEYS) -> None:
        self.kafka.write(
            topic, ((key, b"x", 1_000_000 + number) for number, key in enumerate(keys))
        )
        if topic == self.a:
            self.written += Counter(keys)

    def results(self) -> dict[str, int]:
        """The last output of each key, by any version."""
        return counts_of(self.kafka.bootstrap, self.out)

    def counts(self, version: Version, **settings: Any) -> None:
        """Run a version until each record of `a` has counted once."""
        with self.app(version, **settings) as app:
            eventually(
                lambda: self.results() == self.written,
                60,
                lambda: f"{self.results()} instead of {self.written}; {app.status()}",
            )

    def runs(self, version: Version, **settings: Any) -> None:
        """Run a version until it has processed all records."""
        with self.app(version, **settings) as app:
            eventually(lambda: quiet(app), 60, lambda: str(app.status()))

    def refused(self, version: Version, **settings: Any) -> str:
        """Return why a version does not start."""
        refused = failure_of(self.app(version, **settings))
        assert isinstance(refused, TopologyChangedError), refused
        return str(refused)


Version = Callable[[Application, StreamsBuilder], object]


def quiet(app: CoopStreams) -> bool:
    """Whether an instance runs, and no record waits."""
    status = app.status()
    tasks = [] if status is None else status["tasks"]
    return (
        bool(tasks)
        and status is not None
        and status["state"] == "running"
        and all(task["lag"] == 0 for task in tasks)
    )


def counted(
    store: str | None = "counts", topic: str = "a", *, filtered: bool = False
) -> Version:
    """A count by key, from `a` or `b` into `out`."""

    def build(app: Application, builder: StreamsBuilder) -> None:
        stream = builder.stream(getattr(app, topic), key=serdes.text, value=serdes.raw)
        stream = stream.filter(lambda _, value: value != b"y") if filtered else stream
        stream.group_by_key().count(store=store).to_stream().to(app.out)

    return build


def repartitioned(*, name: str = "by-key", key: Any = serdes.text) -> Version:
    """The same count, behind a repartition topic."""

    def build(app: Application, builder: StreamsBuilder) -> None:
        stream = builder.stream(app.a, key=serdes.text, value=serdes.raw)
        stream.group_by(lambda key, _: key, key=key, name=name).count(
            store="counts"
        ).to_stream().to(app.out)

    return build


def folded(value: Any) -> Version:
    def build(app: Application, builder: StreamsBuilder) -> None:
        stream = builder.stream(app.a, key=serdes.text, value=serdes.raw)
        table = stream.group_by_key().aggregate(
            int, lambda _, __, total: total + 1, value=value, store="counts"
        )
        table.to_stream().to(app.out, value=serdes.int64)

    return build


def test_what_would_be_lost_or_mixed_or_misread_does_not_start(
    kafka: Kafka, tmp_path: Path
) -> None:
    """One example of the refused changes in `tests/topology/test_changes.py`."""
    changed = Application(kafka, tmp_path)
    changed.write(changed.a)
    changed.runs(counted())
    before = changed.internal
    assert (
        "store counts is mixed: aggregate writes it, and count did"
        in changed.refused(folded(serdes.int64))
    )
    assert changed.internal == before, "it has made nothing"
    changed.runs(counted())


def word_in(why: str) -> str:
    found = re.search(r"--set topology\.change\.accepted=([0-9a-f]{8})$", why)
    assert found is not None, why
    return found[1]


@pytest.mark.ci
def test_who_knows_better_accepts_one_change_and_need_not_say_it_again(
    kafka: Kafka, tmp_path: Path
) -> None:
    changed = Application(kafka, tmp_path)
    changed.write(changed.a)
    changed.counts(counted())
    word = word_in(changed.refused(folded(serdes.int64)))
    assert (
        word_in(changed.refused(counted("numbers"), topology_change_accepted=word))
        != word
    ), "another change is not accepted with it"
    changed.write(changed.a)
    changed.counts(folded(serdes.int64), topology_change_accepted=word)
    changed.write(changed.a)
    changed.counts(folded(serdes.int64))


@pytest.mark.slow
def test_records_on_their_way_keep_a_repartition_topic_from_going_until_they_are_processed(
    kafka: Kafka, tmp_path: Path
) -> None:
    changed = Application(kafka, tmp_path)
    old, new = repartitioned(), repartitioned(name="by-name")
    changed.write(changed.a)
    changed.counts(old, ranges_per_partition=4)
    kafka.write(f"{changed.id}-by-key-repartition", [(b"key-0", b"x")], partition=0)
    changed.written["key-0"] += 1
    assert (
        f"repartition topic {changed.id}-by-key-repartition is lost: the new version does not read it"
        in changed.refused(new)
    )
    changed.counts(old)
    changed.write(changed.a)
    changed.counts(new)


@pytest.mark.slow
def test_a_store_that_a_version_left_out_is_not_taken_up_again(
    kafka: Kafka, tmp_path: Path
) -> None:
    def both(app: Application, builder: StreamsBuilder) -> None:
        counted()(app, builder)
        builder.stream(app.a, key=serdes.text, value=serdes.raw).group_by_key().count(
            store="others"
        )

    changed = Application(kafka, tmp_path)
    changed.write(changed.a)
    changed.counts(both)
    changed.counts(counted())
    changed.write(changed.a)
    changed.counts(counted())
    changelog = f"{changed.id}-others-changelog"
    why = changed.refused(both)
    assert f"store others is mixed: {changelog} has rows of an earlier version" in why
    assert f"Cure: delete {changelog}" in why
    kafka.delete(changelog)
    eventually(lambda: changelog not in kafka.topics(), 60, lambda: "it is still there")
    changed.write(changed.a)
    changed.counts(both)


@pytest.mark.ci
def test_sub_topologies_that_change_their_numbers_keep_state_and_positions(
    kafka: Kafka, tmp_path: Path
) -> None:
    """A sub-topology is inserted before the others, over the same folder, whose local
    state is in folders by number.
    """

    def behind(app: Application, builder: StreamsBuilder) -> None:
        builder.stream(app.b, key=serdes.text, value=serdes.raw).group_by_key().count(
            store="others"
        )
        counted()(app, builder)

    changed = Application(kafka, tmp_path, partitions=2)
    for version in (counted(), behind, counted(), behind):
        changed.write(changed.a)
        changed.write(changed.b)
        changed.counts(version)


@pytest.mark.ci
def test_an_application_that_was_reset_may_be_another_one(
    kafka: Kafka, tmp_path: Path
) -> None:
    changed = Application(kafka, tmp_path)
    changed.write(changed.a)
    changed.counts(counted())
    settings = {"bootstrap.servers": kafka.bootstrap}
    with closing(KafkaLog(settings)) as log, GroupAdmin(settings, changed.id) as admin:
        eventually(
            lambda: not admin.describe().members, 60, lambda: "the group has members"
        )
        plan = plan_reset(changed.build(counted()), log.partitions())
        carry_out(
            log,
            admin,
            plan,
            dict.fromkeys(plan.sources, 0),
            [],
            partial(delete_share_group, {}),
        )
    changed.write(changed.a)
    changed.counts(folded(serdes.int64))


@pytest.mark.ci
def test_a_version_that_waits_is_asked_again_when_it_is_its_turn(
    kafka: Kafka, tmp_path: Path
) -> None:
    """No version was recorded as the last one at its start; another instance records
    one before it opens tasks.
    """
    changed = Application(kafka, tmp_path)
    topic = topology_topic(changed.id)
    with changed.app(counted()) as running:
        await_running([running])
        kafka.delete(topic)  # as if both started at once: the changelog has no row yet
        eventually(lambda: topic not in kafka.topics(), 60, lambda: "it is still there")
        waiting = changed.app(folded(serdes.int64), instance=1)
        ended: list[BaseException] = []
        thread = threading.Thread(target=lambda: ended.append(failure_of(waiting)))
        thread.start()
        eventually(
            lambda: bool((waiting.status() or {}).get("state") == "waiting"),
            60,
            lambda: str(waiting.status()),
        )
        changed.write(changed.a)
        eventually(
            lambda: changed.results() == changed.written,
            60,
            lambda: str(running.status()),
        )
        settings = {"bootstrap.servers": kafka.bootstrap}
        with closing(KafkaLog(settings)) as log:
            LastVersion(log, Config.of(settings, changed.id)).take_over(
                changed.build(counted()), log.partitions()
            )
    thread.join()
    assert isinstance(ended[0], TopologyChangedError)
    assert "store counts is mixed" in str(ended[0])
