"""A group changes over to the formats of this release when the last member that cannot
write them has left. `test_mixed_releases.py` does it with the earlier release itself.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from coopstreams import CoopStreams, StreamsBuilder, TimeWindows, serdes
from coopstreams.group.members import MemberInfo
from coopstreams.instance.presence import Presence
from coopstreams.topology.naming import topology_topic
from tests.broker.counting import instance_of
from tests.broker.reading import counts_of, read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka

EARLY = 1
"""The instance number of the process that announces as release 0.1 does."""


@pytest.fixture
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    info = Presence.info

    def announced(self: Presence) -> MemberInfo:
        early = self._plan.config["instance"] == EARLY
        return replace(info(self), level=1) if early else info(self)

    monkeypatch.setattr(Presence, "info", announced)


@pytest.mark.broker
@pytest.mark.usefixtures("_early")
def test_a_group_changes_over_when_the_last_member_of_an_earlier_release_has_left(
    kafka: Kafka, tmp_path: Path
) -> None:
    application = kafka.unique("level")
    source, sink = kafka.topic("in", 2), kafka.topic("out", 2)
    builder = StreamsBuilder(application)
    letters = builder.stream(source, key=serdes.text, value=serdes.raw).group_by(
        lambda key, _: key[:1], key=serdes.text, name="letters"
    )
    counted = letters.windowed_by(TimeWindows(days=10_000)).count().to_stream()
    counted.map(
        lambda window, count: (window.key, count), key=serdes.text, value=serdes.int64
    ).to(sink)
    topology = builder.build()

    def started(number: int) -> CoopStreams:
        settings = kafka.config(
            tmp_path / str(number),
            instance=number,
            processing_guarantee="exactly_once_v2",
            commit_interval_ms=50,
        )
        return CoopStreams(topology, settings)

    def formats(app: CoopStreams) -> str:
        status = app.status()
        return "" if status is None else str(status["details"]["formats"])

    def recorded() -> int:
        records = read_topic(kafka.bootstrap, topology_topic(application))
        return int(orjson.loads(records[-1].value or b"{}")["format"])

    def marked() -> bool:
        letters_topic = f"{application}-letters-repartition"
        found = read_topic(kafka.bootstrap, letters_topic)
        return any(record.key is None for record in found)

    def runs(app: CoopStreams) -> bool:
        standing = instance_of(app).standing
        return bool(standing.tasks) and len(standing.tasks) == len(standing.states)

    def write_and_count(so_far: int) -> None:
        kafka.write(source, ((b"a%d" % number, b"x") for number in range(100)))
        eventually(
            lambda: counts_of(kafka.bootstrap, sink) == {"a": so_far + 100},
            60,
            lambda: f"{counts_of(kafka.bootstrap, sink)}, {app.status()}",
        )

    with ExitStack() as leaving, started(EARLY) as early:
        eventually(lambda: runs(early), 60, lambda: str(early.status()))
        app = leaving.enter_context(started(2))
        eventually(lambda: runs(app) and runs(early), 60, lambda: str(app.status()))
        write_and_count(0)
        assert formats(app).startswith("0.1, until these members run a newer release")
        assert (recorded(), marked()) == (1, False)
        stay = leaving.pop_all()
    with stay:
        eventually(
            lambda: formats(app) == "0.2" and runs(app), 60, lambda: str(app.status())
        )
        write_and_count(100)
        assert recorded() == 2
        eventually(marked, 60, lambda: str(app.status()))
        with started(EARLY) as early:  # the release itself would refuse to start
            eventually(lambda: runs(early), 60, lambda: str(early.status()))
            assert formats(early) == formats(app) == "0.2"
            write_and_count(200)
