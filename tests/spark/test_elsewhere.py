"""A backfill where this machine is only the driver: Spark Connect, and executors that
are processes of their own.

The application lies in a folder that no worker knows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.broker.reading import counts_of, read_topic
from tests.conftest import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 550

PROGRAM = """
from coopstreams import StreamsBuilder, serdes
from {helper} import first_letter

builder = StreamsBuilder("{application}")
words = builder.stream("{source}", key=serdes.raw, value=serdes.text)
words.group_by(lambda _, word: first_letter(word), key=serdes.text).count(store="letters").to_stream().to("{sink}")
topology = builder.build()
"""
HELPER = """
def first_letter(word):
    return word[0]
"""
WHERE = """
import sys

def first_letter(word):
    return sys.executable
"""


@dataclass(frozen=True, slots=True)
class Letters:
    """An application that counts words by their first letter, behind a repartition, and
    its words.
    """

    application: str
    source: str
    sink: str
    path: Path
    expected: Counter[str]

    @staticmethod
    def make(kafka: Kafka, folder: Path, words: Sequence[str]) -> Letters:
        application, source, sink = (
            kafka.unique("letters"),
            kafka.topic("words", 2),
            kafka.topic("letters", 2),
        )
        helper, program = (
            f"{name}_{application.replace('-', '_')}" for name in ("helper", "program")
        )
        folder.mkdir(exist_ok=True)
        (folder / f"{helper}.py").write_text(HELPER)
        (folder / f"{program}.py").write_text(
            PROGRAM.format(
                application=application, source=source, sink=sink, helper=helper
            )
        )
        kafka.write(
            source,
            ((b"%d" % number, word.encode()) for number, word in enumerate(words)),
        )
        return Letters(
            application,
            source,
            sink,
            folder / f"{program}.py",
            Counter(word[0] for word in words if word),
        )


def words(count: int) -> list[str]:
    return [f"{'abcdefghij'[number * 7 % 10]}{number}" for number in range(count)]


def run(
    kind: str, kafka: Kafka, programs: Sequence[Letters], work: Path
) -> dict[str, Any]:
    """Return the outcomes of backfills of these programs, one after the other in one
    session.
    """
    asked = {
        "settings": {"bootstrap.servers": kafka.bootstrap},
        "programs": [str(program.path) for program in programs],
        "work": str(work),
    }
    # coopstreams is found as if it were installed; the application is not found.
    found_in = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment = {
        **os.environ,
        "PYTHONPATH": found_in,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.spark.elsewhere", kind, json.dumps(asked)]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-8000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def check(kafka: Kafka, program: Letters, outcome: dict[str, Any]) -> None:
    """Check that state, outputs and offsets are those of the words."""
    count = program.expected.total()
    assert outcome["records"] == count
    assert outcome["keys in snapshots"] == len(program.expected)
    assert (
        sum(
            offset
            for place, offset in outcome["goes on"].items()
            if place.startswith(f"{program.source}-")
        )
        == count
    )
    assert (
        counts_of(kafka.bootstrap, f"{program.application}-letters-changelog")
        == program.expected
    )
    updates = [
        (record.key or b"").decode()
        for record in read_topic(kafka.bootstrap, program.sink)
    ]
    assert updates
    assert set(updates) == set(program.expected)


@pytest.mark.slow
def test_spark_connect_runs_a_program_that_lies_on_the_driver_alone(
    kafka: Kafka, tmp_path: Path
) -> None:
    counted = Letters.make(kafka, tmp_path / "app", words(1000))
    fails = Letters.make(kafka, tmp_path / "app", ["no", "", "letter"])
    found = run("connect", kafka, [counted, fails], tmp_path / "work")
    assert found["session"].startswith("pyspark.sql.connect"), (
        "this was not Spark Connect"
    )
    first, second = found["outcomes"]
    check(kafka, counted, first)
    assert second["error"] == "ProcessingError"
    assert f'the record at "{fails.source}"' in second["said"]


@pytest.mark.slow
def test_executors_that_are_processes_of_their_own_run_it_too(
    kafka: Kafka, tmp_path: Path
) -> None:
    programs = [
        Letters.make(kafka, tmp_path / "app", words(count)) for count in (5000, 700)
    ]
    found = run("cluster", kafka, programs, tmp_path / "work")
    assert found["session"] == "pyspark.sql.session"
    for program, outcome in zip(programs, found["outcomes"], strict=True):
        check(kafka, program, outcome)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_what_pack_prints_runs_on_a_cluster_whose_workers_have_nothing_but_the_archive(
    kafka: Kafka, tmp_path: Path
) -> None:
    counted = Letters.make(kafka, tmp_path / "app", words(3000))
    # The application prints the interpreter that ran it.
    counted.path.with_name(
        f"{counted.path.stem.replace('program', 'helper')}.py"
    ).write_text(WHERE)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYSPARK_PYTHON", "PYTHONPATH")
    }
    pack = [
        sys.executable,
        "-m",
        "coopstreams",
        "pack",
        str(tmp_path / "worker.tar.gz"),
    ]
    packed = subprocess.run(
        pack, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    submit = packed.stdout.partition("Submit a backfill with it:")[2]
    for word, meant in {
        "MASTER": "local-cluster[1,1,1024] --conf spark.driver.host=127.0.0.1 "
        "--conf spark.driver.bindAddress=127.0.0.1",
        "APP.py": str(counted.path),
        "HOST:PORT": kafka.bootstrap,
        "URL": f"{tmp_path}/work --publish",
    }.items():
        assert submit.count(word) == 1
        submit = submit.replace(word, meant)
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment |= {
        "PATH": path,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ended = subprocess.run(
        ["bash", "-c", submit],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-8000:]
    assert "3000 records read" in ended.stdout
    assert (
        ended.stdout.count("the application goes on at") == 4
    )  # two topics of two partitions
    ((interpreter, count),) = counts_of(
        kafka.bootstrap, f"{counted.application}-letters-changelog"
    ).items()
    assert count == 3000
    assert interpreter.endswith("/environment/bin/python"), (
        "the workers ran another Python than the packed one"
    )
    assert not interpreter.startswith(f"{tmp_path}/environment"), (
        "the executor ran what was unpacked for the driver"
    )
