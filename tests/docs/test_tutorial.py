"""docs/start.md from top to bottom: a real Kafka, real processes, a real kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from coopstreams.commands.init import project_of
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.cache import cache_folder
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
    kafka, http, cache = free_ports(1), free_ports(3), tmp_path / "cache"
    cache.mkdir()
    for downloaded in cache_folder().glob("kafka-*"):
        (cache / downloaded.name).symlink_to(downloaded)
    # The page's Kafka is at the port that one had before in this folder.
    before = KafkaBroker(cache / "dev", port=kafka)
    before.start()
    before.stop()
    addresses = {"127.0.0.1:9092": f"127.0.0.1:{kafka}"}
    addresses |= {f"127.0.0.1:808{i}": f"127.0.0.1:{http + i}" for i in range(3)}
    environment = {
        "COOPSTREAMS_CACHE": str(cache),
        "COOPSTREAMS_BOOTSTRAP_SERVERS": f"127.0.0.1:{kafka}",
        "COOPSTREAMS_HTTP_LISTEN": f"127.0.0.1:{http}",
    }
    reader = Reader(tmp_path, addresses, environment)
    try:
        for block in blocks(START):
            reader.type(block)
    finally:
        reader.close()
        before.stop()


def test_the_page_shows_the_program_that_init_writes() -> None:
    shown = [block.text for block in blocks(START) if block.language == "python"]
    assert shown[0] == project_of("words")["app.py"]
