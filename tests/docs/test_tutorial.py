"""docs/start.md from top to bottom: a real Kafka, real processes, a real kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from coopstreams.dev.broker import KafkaBroker
from tests.conftest import download_kafka
from tests.docs.pages import ROOT, blocks
from tests.docs.reader import Reader, free_ports

START = ROOT / "docs" / "start.md"


@pytest.mark.broker
@pytest.mark.slow
def test_the_tutorial_prints_what_it_says_it_prints(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    download_kafka(request)
    kafka, http, data = free_ports(1), free_ports(3), tmp_path / "kafka"
    commands = {
        "coopstreams dev": f"coopstreams dev --data {data} --port {kafka}",
        "coopstreams dev stop": f"coopstreams dev stop --data {data}",
    }
    addresses = {
        "localhost:9092": f"127.0.0.1:{kafka}",
        "127.0.0.1:9092": f"127.0.0.1:{kafka}",
    }
    addresses |= {f"127.0.0.1:808{i}": f"127.0.0.1:{http + i}" for i in range(3)}
    reader = Reader(tmp_path, commands, addresses)
    try:
        for block in blocks(START):
            reader.type(block)
    finally:
        reader.close()
        KafkaBroker(data).stop()
