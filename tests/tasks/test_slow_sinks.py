"""A sink that takes long for each record: its transactions must end before the broker
gives up the task's.
"""

from __future__ import annotations

from coopstreams.commit.progress import Progress
from coopstreams.common.host import Timed
from coopstreams.log.log import Position, RecordBatch
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.incarnation import Incarnation, TaskServices, TaskSettings
from coopstreams.tasks.tally import Tally
from coopstreams.tasks.task import APPLIED_S, Task
from coopstreams.testing.memory_sink import MemorySink
from coopstreams.topology import serdes
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.external_sinks import SinkPartition, SinkRecord
from coopstreams.topology.failures import Failure
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId

APPLIED_BEFORE, RECORDS, MS_EACH = 3000, 5000, 10


class Slow(MemorySink):
    """Moves a clock with each record."""

    now_ms = 0

    def refuse(self, record: SinkRecord) -> None:
        self.now_ms += MS_EACH


def failed(failure: Failure) -> None:
    raise AssertionError(failure)


def test_a_transaction_has_as_many_records_as_the_sink_takes_in_a_second_also_behind_those_that_it_has() -> (
    None
):
    sink = Slow()
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).to_sink(sink, name="s")
    topology = builder.build()
    part = next(each for each in topology.subtopologies if each.applies_to is not None)
    source = TopicPartition(part.topics[0], 0)
    session = sink.open(SinkPartition("app", "s", 0, "id"), APPLIED_BEFORE)
    progress = Progress.beginning(WHOLE, {source: Position(0)})
    state = TaskState(Database(Memory(), ()), (), WHOLE, 0)
    task = Task(
        Incarnation(
            TaskId(part.id, 0, WHOLE), (source,), state, progress, sink=session
        ),
        compile_subtopology(topology, part),
        failed,
        Tally(),
        TaskSettings(caching=False),
        TaskServices(partitions=lambda _: 1, host=Timed(lambda: sink.now_ms)),
    )
    offsets = list(range(RECORDS))
    columns = Columns([b"k"] * RECORDS, [b""] * RECORDS, offsets, offsets, offsets)
    task.add(RecordBatch(source, 0, columns, RECORDS, RECORDS - 1, at_end=True))
    transactions, more = [], True
    while more:
        more = task.step()
        transactions.append(task.apply())
    assert sum(transactions) == RECORDS - APPLIED_BEFORE == len(sink.records)
    assert max(transactions) <= 2 * APPLIED_S * 1000 / MS_EACH
    assert transactions[:2] == [0, 0], (
        "what the sink has is left out many records at a time"
    )
    assert len(transactions) < 50
