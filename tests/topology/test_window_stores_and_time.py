from __future__ import annotations

from coopstreams import StreamsBuilder, serdes
from coopstreams.state.database import Database
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.state.views import KeyRangeView
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.windows import TimeWindows

HOUR = 3_600_000
YEARS_AHEAD = 10**12


def one(key: bytes, timestamp: int) -> Columns:
    return Columns([key], [b"x"], [timestamp], [0], [timestamp])


def test_windows_do_not_expire_because_a_joined_table_is_years_ahead_of_the_stream() -> (
    None
):
    builder = StreamsBuilder("app")
    carriers = builder.table("carriers", key=serdes.text, value=serdes.text)
    flights = builder.stream("flights", key=serdes.text, value=serdes.text)
    flights.join(carriers, lambda flight, carrier: carrier).group_by_key().windowed_by(
        TimeWindows(hours=1)
    ).count(store="flights-by-hour")
    topology = builder.build()
    part = topology.subtopologies[0]
    database = Database(Memory(), part.stores)
    state = TaskState(database, part.stores, WHOLE, 1 << 20)
    program = compile_subtopology(topology, part).bind(
        state.stores, lambda failure: None, caching=False
    )
    program.process(TopicPartition("carriers", 0), one(b"UA", YEARS_AHEAD))
    for hour in range(3):
        program.process(TopicPartition("flights", 0), one(b"UA", hour * HOUR))
    state.changes()
    state.commit({})
    assert state.stores["flights-by-hour"].observed == 2 * HOUR
    view = KeyRangeView(database, state.stores["flights-by-hour"].spec, [WHOLE])
    assert [window.start for window in view.fetch(b"UA", 0, YEARS_AHEAD)] == [
        2 * HOUR
    ]  # retention: one hour, no grace
