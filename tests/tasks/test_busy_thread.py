"""The queue of a thread that is busy for long: it keeps all records, and one position
for each partition. A thread of many tasks.
"""

from __future__ import annotations

import threading
from collections import Counter
from queue import SimpleQueue
from types import CodeType, FrameType

import pytest

from coopstreams.tasks.queues import MOST_AT_ONCE
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine, counting

LEFT, RIGHT = KeyRange.split(2)
SOURCE = TopicPartition("in", 0)
OF_LEFT, OF_RIGHT = (
    [key for key in (b"%d" % number for number in range(200)) if key_hash(key) in half]
    for half in (LEFT, RIGHT)
)


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_the_records_of_siblings_leave_one_message_in_front_of_a_thread_that_does_nothing(
    guarantee: str,
) -> None:
    made = Engine(
        counting(), {"in": 1, "out": 1}, threads=2, processing_guarantee=guarantee
    )
    busy, working = made.threads
    working.start()
    left, right = made.open(LEFT, thread=0), made.open(RIGHT, thread=1)

    def write(key: bytes, timestamp: int) -> None:
        made.write("in", [(key, b"", timestamp)])
        while not made.dispatcher.move(0.01):
            pass

    for number in range(300):
        write(OF_RIGHT[number % len(OF_RIGHT)], number)
    assert isinstance(busy._inbox, SimpleQueue)
    assert busy._inbox.qsize() == 2, "the task, and how far its partition is"
    write(OF_LEFT[0], 1000)
    for number in range(300):
        write(OF_RIGHT[number % len(OF_RIGHT)], 2000 + number)
    assert (busy._inbox.qsize(), busy.backlog) == (4, 1), (
        "behind the record that came between"
    )
    busy.start()
    made.settle()
    made.close(left)
    made.close(right)
    made.stop()
    assert len(made.read("out")) == 601
    assert (left.progress.durable(SOURCE), right.progress.durable(SOURCE)) == (601, 601)


@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
def test_a_backlog_of_one_task_leaves_their_turns_to_the_others_of_its_thread(
    guarantee: str,
) -> None:
    backlog, seen = 9000, list[bytes]()

    def look(value: bytes) -> bytes:
        seen.append(value)
        return value

    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.raw, value=serdes.raw).map_values(
        look, value=serdes.raw
    ).to("out")
    made = Engine(builder.build(), {"in": 1, "out": 1}, processing_guarantee=guarantee)
    (thread,) = made.threads
    left, right = made.open(LEFT), made.open(RIGHT)
    for _ in range(3):
        made.write(
            "in", [(OF_LEFT[0], b"left", number) for number in range(backlog // 3)]
        )
    made.write("in", [(OF_RIGHT[0], b"right", backlog)])
    written = 3 * (backlog // 3) + 1
    while thread.backlog < written:
        made.dispatcher.move(0.01)
    thread.start()
    made.settle()
    assert thread.backlog == 0
    for task in (left, right):
        made.close(task)
    made.stop()
    assert len(seen) == len(made.read("out")) == written
    assert seen.index(b"right") <= 2 * MOST_AT_ONCE, (
        "one turn of the other, and the one under way"
    )


@pytest.mark.ci
def test_a_message_costs_nothing_for_each_of_the_other_tasks_of_its_thread() -> None:
    """With a thousand tasks on a thread, a look at each of them took fifty times as
    long as the message (measured).
    """
    called: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called[frame.f_code] += 1

    tasks, messages = 200, 100
    made = Engine(counting(), {"in": tasks, "out": 1}, interval_s=3600.0)

    def process(number: int) -> None:
        made.write("in", [(b"k", b"", number)], partition=0)
        while not made.dispatcher.move(0.01):
            pass
        made.settle()

    threading.setprofile(note)
    try:
        made.start()
    finally:
        threading.setprofile(None)
    for partition in range(tasks):
        made.open(WHOLE, partition)
    process(0)  # all tasks are open
    called.clear()
    for number in range(1, messages + 1):
        process(number)
    made.stop()
    assert len(made.read("out")) == messages + 1
    seen = {code.co_qualname: count for code, count in called.items()}
    steps = seen["StreamThread._step"]
    assert steps >= messages
    assert {
        name: count for name, count in seen.items() if count > steps * tasks / 2
    } == {}
