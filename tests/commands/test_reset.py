"""`coopstreams reset` on a real Kafka: an application that ran is reset, and runs again
as if for the first time.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from coopstreams import CoopStreams, StreamsState
from coopstreams.admin.application_reset import carry_out, plan_reset
from coopstreams.commands.command_settings import cluster
from coopstreams.commands.reset import check_begins_at
from coopstreams.commands.topology_target import load_topology
from coopstreams.group.admin import GroupAdmin
from coopstreams.state.directory import StateDirectory
from coopstreams.testing.memory_sink import MemorySink
from coopstreams.topology.errors import (
    AccessDeniedError,
    ConfigError,
    GroupError,
    StateLockedError,
)
from tests.broker.counting import await_running, await_table, failure_of
from tests.broker.waiting import eventually
from tests.command_line import app
from tests.conftest import Kafka

PROGRAM = """
from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder("{application}")
lines = builder.stream("{lines}", key=serdes.raw, value=serdes.text)
lines.group_by(lambda _, word: word, key=serdes.text).count(store="counts").to_stream().to("{words}")
topology = builder.build()
"""
WORDS = [f"word-{number}" for number in range(50)]


@dataclass(frozen=True, slots=True)
class WordCount:
    """An application with a repartition topic and a changelog, as a file that commands
    are given.
    """

    kafka: Kafka
    folder: Path
    application: str
    lines: str
    words: str

    @staticmethod
    def make(kafka: Kafka, folder: Path) -> WordCount:
        """Return a counting application with topics of its own."""
        made = WordCount(
            kafka,
            folder,
            kafka.unique("words"),
            kafka.topic("lines", 2),
            kafka.topic("out", 2),
        )
        (folder / "app.py").write_text(
            PROGRAM.format(
                application=made.application, lines=made.lines, words=made.words
            )
        )
        return made

    @property
    def internal(self) -> list[str]:
        """Return the internal topics of the application."""
        return [
            topic
            for topic in self.kafka.topics()
            if topic.startswith(f"{self.application}-")
        ]

    def app(self) -> CoopStreams:
        """Return an instance, not yet running. Its partitions are in two ranges each,
        so progress is in individual commits.
        """
        settings = self.kafka.config(self.folder / "state")
        return CoopStreams(
            load_topology(str(self.folder / "app.py")),
            settings | {"ranges.per.partition": 2, "auto.offset.reset": "latest"},
        )

    def write(self, words: list[str], time_ms: int) -> Counter[str]:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number, word in enumerate(words):
            producer.produce(self.lines, word, partition=number % 2, timestamp=time_ms)
        assert producer.flush(60) == 0
        return Counter(words)

    def reset(
        self, *arguments: str, typed: str | None = None, file: str = "app.py"
    ) -> Result:
        """Run the command."""
        command = [
            "reset",
            str(self.folder / file),
            "--bootstrap-servers",
            self.kafka.bootstrap,
            *arguments,
        ]
        return CliRunner().invoke(app, command, env={"COLUMNS": "250"}, input=typed)


@pytest.mark.ci
@pytest.mark.broker
def test_an_application_that_is_reset_counts_everything_again_and_nothing_twice(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting, now_ms = WordCount.make(kafka, tmp_path), int(time.time() * 1000)
    kafka.create(f"{counting.application}-older-changelog")
    with counting.app() as running:
        await_running([running])
        written = counting.write(WORDS * 4, now_ms - 60_000)
        await_table(running, written)
        refused = counting.reset("--yes", "--state-dir", str(tmp_path / "state"))
        assert isinstance(refused.exception, GroupError)
        assert "stop all instances" in str(refused.exception)
        told = counting.reset("--dry-run")
        assert told.exit_code == 0, told.exception
        assert f"refused as it is now: {refused.exception}" in told.stderr
        await_table(running, written)

    ours = [
        f"{counting.application}-{name}"
        for name in ("counts-changelog", "counts-repartition", "topology")
    ]
    assert counting.internal == sorted(
        [*ours, f"{counting.application}-older-changelog"]
    )
    told = counting.reset("--state-dir", str(tmp_path / "state"), "--dry-run")
    assert told.exit_code == 0, told.exception
    assert "refused" not in told.stderr
    planned = [
        f"group {counting.application}: {counting.lines}-{number} -> 0"
        for number in (0, 1)
    ]
    folder = tmp_path / "state" / counting.application / "instance-0"
    said = told.stdout.splitlines()
    assert sorted(said[:6]) == sorted(
        [
            *planned,
            *(f"delete topic {topic}" for topic in ours),
            f"delete folder {folder}",
        ]
    )
    assert f"stays: topic {counting.application}-older-changelog" in said[6]
    assert (
        f"It is of an application whose id begins with {counting.application}-, or"
        in said[6]
    )
    assert said[7].startswith(
        f"stays: {folder.parent}, on every other host; it needs no care"
    )
    assert counting.reset(typed="n\n").exit_code == 1
    assert len(counting.internal) == 4

    assert (
        counting.reset("--yes", "--state-dir", str(tmp_path / "state")).exit_code == 0
    )
    assert counting.internal == [f"{counting.application}-older-changelog"]
    assert not folder.exists()
    with counting.app() as running:
        await_table(running, written)
        written += counting.write(WORDS, now_ms)
        await_table(running, written)

    assert (
        counting.reset(
            "--yes",
            "--state-dir",
            str(tmp_path / "state"),
            "--to",
            str(now_ms - 30_000),
        ).exit_code
        == 0
    )
    with counting.app() as running:
        await_table(running, Counter(WORDS))

    assert (
        counting.reset(
            "--yes", "--state-dir", str(tmp_path / "state"), "--to", "latest"
        ).exit_code
        == 0
    )
    assert (
        counting.reset(
            "--yes", "--state-dir", str(tmp_path / "state"), "--to", "latest"
        ).exit_code
        == 0
    )  # nothing is left to delete
    with counting.app() as running:
        await_running([running])
        await_table(running, counting.write(["last"], now_ms))


@pytest.mark.slow
@pytest.mark.broker
def test_a_reset_that_is_interrupted_is_no_reason_to_count_anything_twice(
    kafka: Kafka, tmp_path: Path
) -> None:
    """The start is refused until the reset is typed again."""
    counting = WordCount.make(kafka, tmp_path)
    with counting.app() as running:
        await_running([running])
        written = counting.write(WORDS * 4, int(time.time() * 1000))
        await_table(running, written)

    def refuses(group: str) -> None:
        raise AccessDeniedError(f"{group} may not be deleted")

    with (
        cluster(kafka.settings) as log,
        GroupAdmin(kafka.settings, counting.application) as coordinator,
    ):
        plan = plan_reset(load_topology(str(tmp_path / "app.py")), log.partitions())
        beginning = {at: log.start_offset(at) for at in plan.sources}
        with pytest.raises(AccessDeniedError):
            carry_out(
                log,
                coordinator,
                replace(plan, share_group="a-share"),
                beginning,
                (),
                refuses,
            )
    with pytest.raises(ConfigError, match="begin anew"), counting.app():
        pass
    assert counting.reset("--yes").exit_code == 0
    with counting.app() as running:
        await_table(running, written)


@pytest.mark.slow
@pytest.mark.broker
def test_internal_topics_that_another_tool_has_deleted_do_not_stand_in_the_way_of_a_reset(
    kafka: Kafka, tmp_path: Path
) -> None:
    """As `kafka-streams-application-reset` does. Individual commits of the repartition
    topic were left: each start was refused after the reset that its message had asked
    for.
    """
    counting, now_ms = WordCount.make(kafka, tmp_path), int(time.time() * 1000)
    with counting.app() as running:
        await_running([running])
        written = counting.write(WORDS, now_ms - 60_000)
        await_table(running, written)
    for topic in counting.internal:
        if topic.endswith(("-changelog", "-repartition")):
            kafka.delete(topic)
    assert "`coopstreams reset APP`" in str(failure_of(counting.app()))
    assert counting.reset("--yes").exit_code == 0
    with counting.app() as running:
        await_table(running, written)


@pytest.mark.slow
@pytest.mark.broker
def test_a_source_that_has_grown_is_read_again_after_a_reset(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = WordCount.make(kafka, tmp_path)
    with counting.app() as running:
        await_running([running])
        written = counting.write(WORDS, int(time.time() * 1000))
        await_table(running, written)
    kafka.grow(counting.lines, 4)
    assert counting.reset("--yes").exit_code == 0
    with counting.app() as running:
        await_table(running, written)


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize(
    "guarantee",
    [pytest.param("at_least_once", marks=pytest.mark.slow), "exactly_once_v2"],
)
def test_after_a_reset_a_sink_begins_anew_and_later_another_one_is_refused(
    kafka: Kafka, tmp_path: Path, guarantee: str
) -> None:
    counting = WordCount.make(kafka, tmp_path)
    program = f"""
from coopstreams import StreamsBuilder, serdes
from coopstreams.testing.memory_sink import MemorySink

builder = StreamsBuilder("{counting.application}")
builder.stream("{counting.lines}", key=serdes.raw, value=serdes.text).to_sink(MemorySink(), name="place")
topology = builder.build()
"""
    (tmp_path / "app.py").write_text(program)

    def run(*, writes: bool = False) -> Counter[str]:
        """Run with a sink that knows nothing until it has every word; return what it
        got.
        """
        topology = load_topology(str(tmp_path / "app.py"))
        [sink] = [
            node.target
            for part in topology.subtopologies
            if (node := part.applies_to) is not None
        ]
        assert isinstance(sink, MemorySink)
        settings = kafka.config(tmp_path / "state") | {
            "processing.guarantee": guarantee
        }
        with CoopStreams(topology, settings) as running:
            if writes:
                counting.write(WORDS, int(time.time() * 1000))
            eventually(
                lambda: (
                    len(sink.records) >= len(WORDS)
                    or running.state is StreamsState.ERROR
                ),
                120,
                lambda: f"{len(sink.records)} of {len(WORDS)} records",
            )
        return Counter(record.value for _, record in sink.records)

    assert run(writes=True) == Counter(WORDS)
    for _ in range(2):
        with pytest.raises(ConfigError, match="not known here"):
            run()
        assert counting.reset("--yes").exit_code == 0
        assert run() == Counter(WORDS)


@pytest.mark.slow
@pytest.mark.broker
def test_the_version_that_ran_counts_nothing_twice_after_a_reset_with_the_file_of_another(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = WordCount.make(kafka, tmp_path)
    (tmp_path / "older.py").write_text(
        (tmp_path / "app.py").read_text().replace('"counts"', '"older"')
    )
    with counting.app() as running:
        await_running([running])
        written = counting.write(WORDS, int(time.time() * 1000))
        await_table(running, written)
    assert counting.reset("--yes", file="older.py").exit_code == 0
    assert counting.internal == []
    with counting.app() as running:
        await_table(running, written)


@pytest.mark.broker
def test_a_source_topic_that_is_gone_is_named_because_a_reset_does_not_cover_the_next_one(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = WordCount.make(kafka, tmp_path)
    assert "there is no topic" not in counting.reset("--dry-run").stderr
    gone = kafka.unique("gone")
    (tmp_path / "app.py").write_text(
        (tmp_path / "app.py").read_text().replace(counting.lines, gone)
    )
    told = counting.reset("--yes")
    assert told.exit_code == 0, told.exception
    assert (
        f"there is no topic {gone}: what the group has committed of it stays. Once it is made"
        in told.stderr
    )


@pytest.mark.broker
def test_rows_without_a_changelog_are_counted_anew_after_a_reset_and_kept_without_one(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = WordCount.make(kafka, tmp_path)
    program = (
        (tmp_path / "app.py")
        .read_text()
        .replace('"counts"', 'Materialized("counts", logged=False)')
    )
    (tmp_path / "app.py").write_text(f"from coopstreams import Materialized\n{program}")
    with counting.app() as running:
        await_running([running])
        written = counting.write(WORDS * 4, int(time.time() * 1000))
        await_table(running, written)
    with counting.app() as running:
        written += counting.write(WORDS, int(time.time() * 1000))
        await_table(running, written)
    told = counting.reset("--yes")
    assert told.exit_code == 0, told.exception
    with counting.app() as running:
        await_table(running, written)
        written += counting.write(WORDS, int(time.time() * 1000))
        await_table(running, written)


@pytest.mark.ci
@pytest.mark.broker
def test_state_that_a_process_uses_is_not_deleted_and_nothing_else_is_either(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = WordCount.make(kafka, tmp_path)
    with counting.app() as running:
        await_running([running])
    with closing(StateDirectory(tmp_path / "state", counting.application, 0)):
        assert isinstance(
            counting.reset("--yes", "--state-dir", str(tmp_path / "state")).exception,
            StateLockedError,
        )
    assert len(counting.internal) == 3


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("soon", "write a time as 2026-01-31T08:00Z"),
        ("2026-01-31T08:00", "in which time zone"),
        ("2026-01-31", "Write 2026-01-31T00:00:00Z for UTC"),
        ("9" * 20, "write a time as 2026-01-31T08:00Z"),
    ],
)
def test_a_time_that_is_none_is_an_error_before_anything_is_contacted(
    tmp_path: Path, to: str, problem: str
) -> None:
    (tmp_path / "app.py").write_text(
        PROGRAM.format(application="words", lines="lines", words="words")
    )
    command = [
        "reset",
        str(tmp_path / "app.py"),
        "--bootstrap-servers",
        "127.0.0.1:1",
        "--to",
        to,
    ]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, ConfigError)
    assert problem in str(error)


@pytest.mark.parametrize(
    ("setting", "cure"),
    [
        ("latest", "Say --to latest, or --set auto.offset.reset="),
        (
            "by_duration:PT3600S",
            "Say --to earliest or latest, and the same by --set auto.offset.reset=",
        ),
    ],
)
def test_a_share_group_that_would_begin_elsewhere_has_a_cure_that_can_be_typed(
    setting: str, cure: str
) -> None:
    """There is no --to by_duration: of other groups a reset sets offsets."""
    check_begins_at("earliest", "words-share", "earliest")
    with pytest.raises(ConfigError, match=re.escape(cure)):
        check_begins_at("earliest", "words-share", setting)
