"""Each query of Nexmark has the same results here and in Kafka Streams.

Kafka Streams is what `python -m benchmarks.peers` has downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.nexmark.__main__ import QUERIES, SOURCE, Bench, compared, runners
from benchmarks.nexmark.generator import events
from benchmarks.peers import JVM
from benchmarks.peers.__main__ import install
from benchmarks.running import make_topics, write_timed
from coopstreams.dev.broker import KafkaBroker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not JVM.downloaded,
        reason="python -m benchmarks.peers 'Kafka Streams' downloads it",
    ),
]

RECORDS = 20_000
A_SECOND = 500
"""Forty seconds: windows of ten seconds come and go."""
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A broker with the events."""
    install(JVM)
    folder = tmp_path_factory.mktemp("nexmark")
    with KafkaBroker(folder / "kafka") as broker:
        make_topics(broker.bootstrap, SOURCE)
        write_timed(
            broker.bootstrap,
            ((SOURCE, *event) for event in events(RECORDS, A_SECOND)),
        )
        yield Bench(broker.bootstrap, folder, RECORDS, LIMIT_S)


@pytest.mark.parametrize("query", QUERIES)
def test_results_are_those_of_kafka_streams(bench: Bench, query: str) -> None:
    compared(bench, [query], runners(), 1)
