"""`coopstreams backfill` from the command line: dry run, run, publish later; and its
refusals.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from coopstreams.log.kafka.log import KafkaLog
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, ProcessingError
from tests.broker.counting import PROGRAM, Counting
from tests.broker.reading import read_topic
from tests.command_line import app
from tests.conftest import Kafka

pytestmark = pytest.mark.broker


@pytest.mark.ci
def test_a_run_is_looked_at_done_and_published_and_then_refused(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, partitions=2)
    written = counting.write(f"key-{number % 30}" for number in range(900))
    program = tmp_path / "program.py"
    program.write_text(counting.program)

    def backfill(*options: str) -> Result:
        return CliRunner().invoke(
            app,
            [
                "backfill",
                str(program),
                "--bootstrap-servers",
                kafka.bootstrap,
                "--work",
                str(tmp_path / "work"),
                *options,
            ],
        )

    looked = backfill("--dry-run")
    assert "900 offsets of Kafka, 8 tasks" in looked.stdout
    assert (
        "outputs: none (results, late records and dead letters are counted, not written; --outputs topic or table "
        "writes them)" in looked.stdout
    )
    assert "in Spark SQL" not in looked.stdout
    assert (
        "in Spark SQL, if all its records are understood there"
        in backfill("--dry-run", "--native").stdout
    )
    assert not (tmp_path / "work").exists()
    assert counting.changelog not in kafka.topics(), "a dry run has made a topic"

    done = backfill("--ranges", "1")
    assert done.exit_code == 0, done.output
    assert "900 records read" in done.stdout
    tasks, reading = (
        dict(
            re.findall(rf"^{kind} (\S+): ([\d,]+) records$", done.stdout, re.MULTILINE)
        )
        for kind in ("task", "reading")
    )
    assert {name.partition("[")[0] for name in tasks} == {"0_0", "0_1"}
    assert set(reading) == {f"{counting.source}-{partition}" for partition in (0, 1)}
    assert sum(map(int, tasks.values())) == sum(map(int, reading.values())) == 900
    assert "store counts: 30 keys" in done.stdout
    assert counting.counts() == written
    assert read_topic(kafka.bootstrap, counting.sink) == []
    assert re.search(
        rf"^not written, because --outputs is none: \d+ records for {counting.sink}$",
        done.stdout,
        re.MULTILINE,
    )

    again = backfill()
    assert isinstance(again.exception, ConfigError)
    (run,) = re.findall(
        r"--resume (\S+) --bootstrap-servers \S+ --work \S+ --publish", done.stdout
    )
    assert f"run {run}" in str(again.exception)
    assert "is not published: go on with it" in str(again.exception)
    assert (
        f"run {run} of {counting.application}: 900 offsets"
        in backfill("--resume", run, "--dry-run").stdout
    )
    published = backfill("--resume", run, "--publish")
    assert published.exit_code == 0, published.output
    ends = re.findall(
        rf"{counting.source}-(\d): the application goes on at (\d+)", published.stdout
    )
    cluster = KafkaLog({"bootstrap.servers": kafka.bootstrap})
    assert {int(partition): int(offset) for partition, offset in ends} == {
        partition: cluster.end_offset(TopicPartition(counting.source, partition))
        for partition in (0, 1)
    }
    cluster.close()
    assert not [
        topic
        for topic in kafka.topics()
        if topic.startswith(f"{counting.application}-backfill-")
    ]


@pytest.mark.slow
def test_a_run_that_fails_says_how_to_go_on_and_a_function_that_was_mended_does(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(kafka)
    written = counting.write(f"key-{number % 3}" for number in range(30))
    program = tmp_path / "program.py"
    good = counting.program

    def backfill(*options: str) -> Result:
        typed = [
            "backfill",
            str(program),
            "--bootstrap-servers",
            kafka.bootstrap,
            "--work",
            str(tmp_path / "work"),
            *options,
        ]
        return CliRunner().invoke(app, typed)

    program.write_text(
        good.replace(".group_by_key()", ".peek(lambda key, _: {}[key]).group_by_key()")
    )
    failed = backfill("--ranges", "1")
    assert isinstance(failed.exception, ProcessingError)
    said = (
        f"not done. What has not run yet is done by: coopstreams backfill {re.escape(str(program))} --resume (\\S+) "
        f"--bootstrap-servers {kafka.bootstrap} --work {tmp_path / 'work'}"
    )
    (run,) = re.findall(said, failed.stderr)
    program.write_text(
        good.replace(".group_by_key()", ".peek(lambda key, _: None).group_by_key()")
    )
    mended = backfill("--resume", run, "--publish")
    assert mended.exit_code == 0, mended.output
    assert counting.counts() == written


def test_what_cannot_be_is_refused_before_spark_starts(
    kafka: Kafka, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.format(
            application=kafka.unique("refused"),
            source=kafka.topic("in"),
            sink=kafka.topic("out"),
        )
    )
    given = [
        "backfill",
        str(program),
        "--bootstrap-servers",
        kafka.bootstrap,
        "--work",
        str(tmp_path / "work"),
    ]
    for options, said in (
        (["--outputs", "table"], "--outputs table --table URL"),
        (["--resume", "never"], 'there is no run "never"'),
    ):
        result = CliRunner().invoke(app, [*given, *options])
        assert isinstance(result.exception, ConfigError)
        assert said in str(result.exception)


def test_schemas_without_a_registry_are_refused_by_a_dry_run(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Unnoticed, each worker would write the ids of a registry of its own."""
    program = tmp_path / "program.py"
    written = PROGRAM.format(
        application=kafka.unique("schemas"),
        source=kafka.topic("in"),
        sink=kafka.topic("out"),
    )
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "amount", "type": "int"}],
    }
    program.write_text(
        written.replace("value=serdes.raw", f"value=serdes.avro({schema})")
    )
    for command in (["backfill"], ["rebuild", "--from", "source"]):
        typed = [
            *command,
            str(program),
            "--bootstrap-servers",
            kafka.bootstrap,
            "--dry-run",
        ]
        refused = CliRunner().invoke(app, typed)
        assert isinstance(refused.exception, ConfigError), refused.output
        assert "set schema.registry.url" in str(refused.exception)
