"""An unordered source on a real Kafka: several processes share one partition by a share
group, even while one of them is killed; behind a repartition topic there are ordinary
tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from coopstreams import CoopStreams
from coopstreams.commands.status import done_lines
from coopstreams.commands.topology_target import load_topology
from coopstreams.query.client import QueryClient
from tests.broker.processes import Workers
from tests.broker.reading import counts_of, read_topic
from tests.broker.waiting import eventually
from tests.command_line import app as cli
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

PATIENCE_S = 90.0
LOCK_MS = 3000
"""After this time the killed process's records are delivered again; slow records of
others may repeat, too.
"""


def write(kafka: Kafka, topic: str, values: range) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "batch.num.messages": 50}
    )
    for value in values:
        producer.produce(topic, str(value).encode())  # no key
    assert producer.flush(60) == 0


def words(kafka: Kafka, topic: str) -> list[list[str]]:
    return [
        (record.value or b"").decode().split()
        for record in read_topic(kafka.bootstrap, topic)
    ]


@pytest.mark.ci
def test_instances_share_a_partition_until_a_reset_begins_anew(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, name = kafka.topic("in"), kafka.topic("out"), kafka.unique("shared")
    app = tmp_path / "app.py"
    app.write_text(
        "from coopstreams import StreamsBuilder, serdes\n"
        f"builder = StreamsBuilder({name!r})\n"
        f"builder.stream({source!r}, key=serdes.raw, value=serdes.text, order='none').to({target!r})\n"
        "topology = builder.build()\n"
    )
    topology = load_topology(str(app))
    written = 0

    def instance(number: int) -> CoopStreams:
        settings = {
            "bootstrap.servers": kafka.bootstrap,
            "state.dir": str(tmp_path),
            "instance": number,
        }
        return CoopStreams(topology, {**settings, "http.listen": ""})

    def processed(app: CoopStreams) -> int:
        status = app.status()
        return status["shares"][0]["processed"] if status else 0

    with instance(0) as one, instance(1) as other:

        def by_both() -> bool:
            nonlocal written
            write(kafka, source, range(written, written + 100))
            written += 100
            return bool(processed(one) and processed(other))

        eventually(by_both, PATIENCE_S, lambda: f"{one.status()} {other.status()}")
        eventually(
            lambda: len(words(kafka, target)) >= written,
            PATIENCE_S,
            lambda: f"{written}",
        )
    assert Counter(value for (value,) in words(kafka, target)) == Counter(
        map(str, range(written))
    )

    cli(
        ["reset", str(app), "--yes", "--bootstrap-servers", kafka.bootstrap],
        standalone_mode=False,
    )
    assert f"delete share group {name}-share" in capsys.readouterr().out
    with instance(0):
        eventually(
            lambda: len(words(kafka, target)) >= 2 * written,
            PATIENCE_S,
            lambda: "not begun anew",
        )


@pytest.mark.slow
def test_processes_share_a_partition_and_nothing_is_lost_when_one_is_killed(
    kafka: Kafka, workers: Callable[..., Workers]
) -> None:
    source, target, counted = (
        kafka.topic(name) for name in ("events", "seen", "counted")
    )
    named = {
        "APP_NAME": kafka.unique("shared"),
        "APP_SOURCE": source,
        "APP_SEEN": target,
        "APP_COUNTED": counted,
    }
    group = workers(
        "shared_app.py",
        kafka.bootstrap,
        named | {"APP_CALL_S": "0.3"},
        share_record_lock_duration_ms=LOCK_MS,
        commit_interval_ms=100,
    )
    for number in range(3):
        group.start(number)
    written = 0

    def more() -> None:
        nonlocal written
        write(kafka, source, range(written, written + 200))
        written += 200

    def by_all() -> bool:
        more()
        return len({process for _, process in words(kafka, target)}) == 3

    def holds_records() -> bool:
        more()
        status = httpx.get(f"{group.url(0)}/v1/status?local=true", timeout=30).json()
        return any(
            share["acquired"]
            for instance in status["instances"]
            for share in instance["shares"]
        )

    eventually(by_all, PATIENCE_S, group.logs)
    eventually(holds_records, PATIENCE_S, group.logs)
    group.kill(0)
    more()
    everything = {str(event) for event in range(written)}
    eventually(
        lambda: {event for event, _ in words(kafka, target)} == everything,
        PATIENCE_S,
        group.logs,
    )

    with QueryClient(str(group.url(1))) as client:
        report = client.status()
    (line,) = (line for line in done_lines(report) if line.startswith("0_*"))
    assert f"share group {named['APP_NAME']}-share deals {source}" in line
    assert {
        task["subtopology"]
        for instance in report["instances"]
        for task in instance["tasks"]
    } == {1}

    def all_counted() -> bool:
        table = counts_of(kafka.bootstrap, counted)
        return len(table) == 10 and min(table.values()) >= written // 10

    eventually(all_counted, PATIENCE_S, group.logs)
    assert set(group.stop().values()) == {0}, group.logs()
