"""The example of a model with batches: the model's judgements, on Kafka, in batches,
for any key ranges.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coopstreams import CoopStreams
from coopstreams.testing import TopologyTestDriver
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.examples.loading import EXAMPLES, loaded

EXAMPLE = EXAMPLES / "machines.py"
MACHINES, RECORDS = 40, 2000


@pytest.fixture
def example() -> Iterator[Any]:
    """Return the example, freshly loaded."""
    with loaded("machines") as module:
        yield module


def readings(number: int) -> list[tuple[str, dict[str, float]]]:
    chance = np.random.default_rng(7)
    return [
        (
            f"m{i % MACHINES}",
            {
                "temperature": float(chance.uniform(40, 110)),
                "vibration": float(chance.uniform(0, 4)),
            },
        )
        for i in range(number)
    ]


def alarms_of(example: Any, some: list[tuple[str, dict[str, float]]]) -> Counter[str]:
    """Return the number of a machine's readings that the model, called once for all,
    judges as failures.
    """
    verdicts = example.judged([reading for _, reading in some])
    return Counter(
        machine
        for (machine, _), said in zip(some, verdicts, strict=True)
        if said["failing"] > 0.5
    )


@pytest.mark.ci
@pytest.mark.parametrize("ranges", [1, 3])
def test_the_alarms_are_those_of_the_model(example: Any, ranges: int) -> None:
    some = readings(60)
    with TopologyTestDriver(example.topology, ranges) as driver:
        for machine, reading in some:
            driver.input("readings").send(machine, reading)
        assert driver.output("alarms").latest() == alarms_of(example, some)


@pytest.mark.ci
@pytest.mark.broker
def test_on_kafka_the_model_is_asked_for_many_at_once(
    example: Any, kafka: Kafka, tmp_path: Path
) -> None:
    topics = {name: kafka.topic(name) for name in ("readings", "judgements", "alarms")}
    source = EXAMPLE.read_text()
    for name, topic in {**topics, "machines": kafka.unique("machines")}.items():
        source = source.replace(f'"{name}"', f'"{topic}"')
    sizes: list[int] = []
    names: dict[str, Any] = {"__name__": "machines_here"}
    exec(compile(source, str(EXAMPLE), "exec"), names)
    predict = names["model"].predict_proba

    def counted(features: Any) -> Any:
        sizes.append(len(features))
        return predict(features)

    names["model"].predict_proba = counted
    some = readings(RECORDS)
    kafka.write(
        topics["readings"],
        ((machine, json.dumps(reading)) for machine, reading in some),
    )
    settings = kafka.config(
        tmp_path, processing_guarantee="exactly_once_v2", auto_offset_reset="earliest"
    )
    with CoopStreams(names["topology"], settings):
        eventually(
            lambda: len(read_topic(kafka.bootstrap, topics["judgements"])) >= RECORDS,
            90,
            lambda: str(sizes),
        )
        expected = alarms_of(example, some)
        eventually(
            lambda: latest(kafka, topics["alarms"]) == expected,
            90,
            lambda: "other alarms",
        )
    assert sum(sizes) == RECORDS
    assert max(sizes) > 10, "one of each machine that came meanwhile"


def latest(kafka: Kafka, topic: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for record in read_topic(kafka.bootstrap, topic):
        found[(record.key or b"").decode()] = int.from_bytes(record.value or b"", "big")
    return found
