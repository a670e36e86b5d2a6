"""Sessions of external sinks are opened beside everything else, and closed if nobody
takes them.
"""

from __future__ import annotations

from threading import Event

from coopstreams.commit.progress import Author, Progress
from coopstreams.commit.record import Segment
from coopstreams.commit.view import PartitionStart
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.opening.sink_openings import SinkOpenings
from coopstreams.testing.memory_sink import MemorySession, MemorySink
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.external_sinks import SinkPartition
from coopstreams.topology.graph.nodes import ApplyTo
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

SOURCE, TASK = TopicPartition("rows", 0), TaskId(0, 0, WHOLE)


class Session(MemorySession):
    """A session that says when it is closed."""

    closed: Event

    def close(self) -> None:
        super().close()
        self.closed.set()


class Database(MemorySink):
    """A sink during whose opening the topic of its records goes away."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__()
        self.log = log
        self.closed = Event()

    def open(self, partition: SinkPartition, begin: int | None) -> MemorySession:
        super().open(partition, begin)
        session = Session(
            self,
            partition,
            self._rows[partition.application, partition.sink, partition.number],
        )
        session.closed = self.closed
        self.log.delete_topics(["rows"])
        return session


def test_a_session_is_closed_if_kafka_does_not_say_whether_its_position_is_right() -> (
    None
):
    log = MemoryLog()
    log.create_topics([TopicSpec("rows", 1)])
    sink = Database(log)
    openings = SinkOpenings("app", log, lambda: None)
    start = PartitionStart(0, (Segment(WHOLE, 0),), None, claim=False, begins=True)
    node = ApplyTo(name="place", parents=("rows",), target=sink)
    openings.begin(
        TASK, node, SOURCE, Progress(WHOLE, {SOURCE: start}, Author("app", 1, ""))
    )
    assert sink.closed.wait(60)
    assert openings.take() == []
    openings.cancel(TASK)
