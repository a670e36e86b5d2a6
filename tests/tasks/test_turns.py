"""`process_async`: state and results equal those of a synchronous processor, and
nothing is done twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from coopstreams.tasks.events import Failed
from coopstreams.topology import serdes
from coopstreams.topology.calls import Retry
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.kstream import KStream
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.processors import (
    CallContext,
    Processor,
    ProcessorContext,
    key_value_store,
)
from coopstreams.topology.records import Record
from coopstreams.topology.windows import TimeWindows
from tests.durations import ms
from tests.tasks.called import (
    SOURCE,
    TOPICS,
    done,
    finish,
    numbered,
    played,
    processed,
    runs,
    taking,
    until,
)
from tests.tasks.engine import AT_LEAST, EXACTLY, Engine
from tests.tasks.summed import summed

AGAIN = Retry(times=3, backoff=ms(1), on=(ConnectionError,))
STORES = [
    key_value_store(name, key=serdes.text, value=serdes.json)
    for name in ("sum", "seen")
]


class Told(Processor[str, int, str, Any]):
    """Keeps a sum and a list of each key, and forwards both; bad values change the sum
    only until they fail.
    """

    def init(self, context: ProcessorContext[str, Any]) -> None:
        super().init(context)
        self.sum, self.seen = context.store("sum"), context.store("seen")

    def process(self, record: Record[str, int]) -> None:
        if record.value % 7 == 6:
            raise ValueError(record.value)
        total = (self.sum.get(record.key) or 0) + record.value
        self.sum.put(record.key, total if total % 5 else None)
        self.context.forward(record.with_value([total, self.sum.timestamp(record.key)]))
        seen = [*(self.seen.get(record.key) or []), record.value]
        self.seen.put(record.key, seen)
        self.context.forward(
            Record(f"of {record.key}", seen, record.timestamp + 5), to="seen"
        )


def told(pauses: list[int]) -> Callable[[Record[str, int], CallContext[str, Any]], Any]:
    """Return an asynchronous function that does the same; it sometimes fails after all
    is recorded.
    """
    pause = taking(pauses)
    attempts: Counter[tuple[Any, int]] = Counter()

    async def later(record: Record[str, int], context: CallContext[str, Any]) -> None:
        sum_, seen = context.store("sum"), context.store("seen")
        before = sum_.get() or 0
        await pause(0)
        total = before + record.value
        if total % 5:
            sum_.put(total)
        else:
            sum_.delete()
        context.forward(record.with_value([total, sum_.timestamp()]))
        seen.put([*(seen.get() or []), record.value])
        await pause(0)
        context.forward(
            Record(f"of {record.key}", seen.get(), record.timestamp + 5), to="seen"
        )
        attempts[context.metadata, record.value] += 1
        if record.value % 7 == 6:
            raise ValueError(record.value)
        if record.value % 3 == 0 and attempts[context.metadata, record.value] < 3:
            raise ConnectionError(record.value)

    return later


def program(
    processed: Callable[[KStream[str, int]], KStream[str, Any]], *, in_order: bool
) -> Topology:
    """State below a filter and a flat map. `in_order`: also with windows emitted on
    close.
    """
    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json).merge(
        builder.stream("other", key=serdes.text, value=serdes.json)
    )
    if in_order:
        read.group_by_key().windowed_by(TimeWindows(milliseconds=10)).emit_strategy(
            "on_window_close"
        ).count(store="counts")
    several = read.filter(lambda _, value: value >= 0).flat_map_values(
        lambda value: range(value, value + value % 4), value=serdes.json
    )
    results = processed(several)
    results.filter(lambda key, _: not key.startswith("of")).to("out")
    results.filter(lambda *_: True, name="seen").to("out")
    return builder.build()


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["in", "in", "other"]),
        st.sampled_from("abcd"),
        st.integers(-1, 30),
        st.integers(0, 60),
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.ci
@settings(
    max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
@given(
    records=RECORDS,
    pieces=st.sampled_from([1, 2, 4]),
    most=st.sampled_from([1, 3, 100]),
    pauses=st.lists(st.sampled_from([0, 0, 1, 4]), min_size=1, max_size=20),
    in_order=st.booleans(),
)
@example(
    records=[("in", "a", 3, 0), ("in", "a", 6, 1), ("in", "a", 9, 2)],
    pieces=1,
    most=9,
    pauses=[5],
    in_order=False,
)
def test_results_and_state_are_those_of_a_processor_that_does_not_wait(
    records: list[tuple[str, str, int, int]],
    pieces: int,
    most: int,
    pauses: list[int],
    in_order: bool,
) -> None:
    waiting = program(
        lambda stream: stream.process_async(
            told(pauses),
            stores=STORES,
            key=serdes.text,
            value=serdes.json,
            max_in_flight=most,
            retry=AGAIN,
        ),
        in_order=in_order,
    )
    assert (
        compile_subtopology(waiting, waiting.subtopologies[0]).keys_suffice
        is not in_order
    )
    at_once = program(
        lambda stream: stream.process(
            Told, stores=STORES, key=serdes.text, value=serdes.json, by_key=True
        ),
        in_order=in_order,
    )
    handled = {"processing_exception_handler": "continue"}
    one_by_one = [
        (topic, key, value, number)
        for number, (topic, key, value, _) in enumerate(records)
    ]
    assert played(waiting, one_by_one, pieces, **handled) == played(
        at_once, one_by_one, 1, **handled
    )


def counting(function: Callable[..., Any], **options: Any) -> Topology:
    builder = StreamsBuilder("app")
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    store = key_value_store("counts", key=serdes.text, value=serdes.json)
    read.process_async(
        function, stores=[store], key=serdes.text, value=serdes.json, **options
    ).to("out")
    return builder.build()


class Counted:
    """Counts the records of each key in a store; blocks on one value until it is
    released.
    """

    def __init__(self, stuck: int = -1) -> None:
        self.stuck = stuck
        self.called: Counter[int] = Counter()
        self.let_go = threading.Event()

    async def __call__(
        self, record: Record[str, int], context: CallContext[str, int]
    ) -> None:
        counts, value = context.store("counts"), record.value
        self.called[value] += 1
        counts.put((counts.get() or 0) + 1)
        await asyncio.sleep(0)
        while value == self.stuck and not self.let_go.is_set():
            await asyncio.sleep(0.001)
        context.forward(record.with_value(counts.get() or 0))


@pytest.mark.usefixtures("short_drain")
@pytest.mark.parametrize("guarantee", [EXACTLY, AT_LEAST])
@pytest.mark.parametrize("clean", [True, False])
def test_what_was_not_done_is_done_once_by_the_next_owner(
    guarantee: str, clean: bool
) -> None:
    function = Counted(stuck=20)
    made = Engine(counting(function), TOPICS, processing_guarantee=guarantee)
    task = made.open(WHOLE)
    made.write("in", numbered(range(100), keys=10))
    made.start()
    until(
        lambda: (
            runs(task)
            == (20, tuple((start, start + 8) for start in range(21, 100, 10)))
        ),
        made,
    )
    made.close(task, clean=clean)
    function.let_go.set()
    made.open(WHOLE)
    finish(made, 100)
    assert {value for value, times in function.called.items() if times > 1} == {20}
    out = made.read("out")
    for key in range(10):
        assert [
            value
            for name, value in zip(out.keys, out.values, strict=True)
            if name == b"k%d" % key
        ] == [b"%d" % count for count in range(1, 11)]


def test_what_a_call_that_fails_has_recorded_is_not_done_and_a_null_key_has_no_row() -> (
    None
):
    async def odd_only(
        record: Record[str, int], context: CallContext[str, int]
    ) -> None:
        counts = context.store("counts")
        counts.put((counts.get() or 0) + 1)
        context.forward(record.with_value(counts.get() or 0))
        if record.value % 2 == 0:
            raise ConnectionError(record.value)

    made = Engine(
        counting(odd_only, dead_letters="other", retry=Retry(times=1, backoff=ms(1))),
        TOPICS,
    )
    task = processed(
        made,
        [
            (None if number == 5 else b"k", b"%d" % number, number)
            for number in range(9)
        ],
    )
    assert list(made.read("out").values) == [b"1", b"2", b"3"]
    assert list(made.read("other").values) == [b"0", b"2", b"4", b"6", b"8"]
    assert list(task.program.dropped.values()) == [1]
    assert [reason for _, reason in task.program.dropped] == ["null-key"]
    assert list(made.read(made.changelog("counts")).keys) in (
        [b"k"],
        [b"k"] * 2,
        [b"k"] * 3,
    )


def test_an_error_below_does_not_undo_what_was_recorded_and_the_next_call_sees_it() -> (
    None
):
    function = Counted()
    builder = StreamsBuilder("app")
    store = key_value_store("counts", key=serdes.text, value=serdes.json)
    read = builder.stream("in", key=serdes.text, value=serdes.json)
    read.process_async(
        function, stores=[store], key=serdes.text, value=serdes.json
    ).map_values(lambda count: 6 // (count - 2), value=serdes.json).to("out")
    made = Engine(builder.build(), TOPICS, processing_exception_handler="continue")
    processed(made, numbered(range(4)))
    assert list(made.read("out").values) == [b"-6", b"6", b"3"], (
        "the second divides by 0, and is counted"
    )


def test_after_its_end_a_call_changes_nothing() -> None:
    late: list[Exception] = []
    beside: list[asyncio.Task[None]] = []

    async def forgets(record: Record[str, int], context: CallContext[str, int]) -> None:
        async def afterwards() -> None:
            await asyncio.sleep(0.01)
            try:
                context.forward(record)
            except ProcessingError as error:
                late.append(error)

        beside.append(asyncio.get_running_loop().create_task(afterwards()))

    made = Engine(counting(forgets), TOPICS)
    made.open(WHOLE)
    made.write("in", [(b"k", b"1", 0)])
    made.start()
    until(done(made, 1), made)
    until(lambda: bool(late), made)
    made.stop()
    assert "the call is over" in str(late[0])
    assert len(made.read("out")) == 0


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_functions_on_threads_and_in_processes_have_state(executor: str) -> None:
    made = Engine(counting(summed, executor=executor), TOPICS)
    processed(made, numbered(range(4)))
    assert list(made.read("out").values) == [b"0", b"1", b"3", b"6"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda record, context: context.store("sums"),
            'no store "sums"; stores= has counts',
        ),
        (
            lambda record, context: context.forward(record, to="nowhere"),
            'to="nowhere".*there are KSTREAM-SINK',
        ),
    ],
)
def test_a_name_that_is_not_known_fails_the_record(
    wrong: Callable[..., Any], says: str
) -> None:
    made = Engine(counting(wrong), TOPICS)
    made.open(WHOLE)
    made.write("in", [(b"k", b"1", 0)])
    made.start()
    until(lambda: not made.events.empty(), made)
    event = made.events.get()
    assert isinstance(event, Failed)
    with pytest.raises(ProcessingError, match=says):
        raise event.error
    assert SOURCE.topic in str(event.error)
