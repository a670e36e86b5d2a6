"""`idle_advance` on a real Kafka: time marks have no key, so compacted topics refuse them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import TopicSpec
from coopstreams.topology.errors import ConfigError
from tests.conftest import Kafka


@pytest.mark.broker
def test_a_compacted_topic_takes_no_marks_and_the_error_has_the_cure(kafka: Kafka, tmp_path: Path) -> None:
    source, sink = kafka.unique("compacted"), kafka.topic("out")
    log = KafkaLog(kafka.settings)
    log.create_topics([TopicSpec(source, 1, {"cleanup.policy": "compact"})])
    log.close()
    builder = StreamsBuilder(kafka.unique("idle"))
    builder.stream(source, key=serdes.text, value=serdes.raw, idle_advance=timedelta(seconds=1)).to(sink)
    with pytest.raises(ConfigError, match=r"the topic is compacted.*\.repartition\(idle_advance=\.\.\.\)"):
        CoopStreams(builder.build(), kafka.config(tmp_path)).run()
