"""Steps that run a processor of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from coopstreams import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    WindowStore,
    key_value_store,
    window_store,
)
from coopstreams.topology.stores import StoreSpec
from tests.conformance import vocab
from tests.conformance.world import (
    KEY,
    VALUE,
    NotSupportedError,
    Op,
    Translators,
    World,
    require,
)
from tests.durations import ms

AnyRecord: TypeAlias = Record[Any, Any]
Context: TypeAlias = ProcessorContext[Any, Any]


class Step(Processor[Any, Any, Any, Any]):
    """A processor of the vocabulary; `op` has its parameters."""

    def __init__(self, op: Op) -> None:
        self.op = op


class KvCount(Step):
    def init(self, context: Context) -> None:
        super().init(context)
        self.counts: KeyValueStore[str, int] = context.store(self.op["store"])

    def process(self, record: AnyRecord) -> None:
        if record.key is not None:
            count = (self.counts.get(record.key) or 0) + 1
            self.counts.put(record.key, count)
            self.context.forward(record.with_value(count))


class RunningSum(Step):
    def init(self, context: Context) -> None:
        super().init(context)
        self.sums: KeyValueStore[str, int] = context.store(self.op["store"])

    def process(self, record: AnyRecord) -> None:
        if record.key is None:
            self.context.forward(record)
            return
        total = (self.sums.get(record.key) or 0) + vocab.num(record.value)
        self.sums.put(record.key, total)
        self.context.forward(record.with_value(total))


class Dedup(Step):
    def init(self, context: Context) -> None:
        super().init(context)
        self.seen: WindowStore[str, int] = context.store(self.op["store"])

    def process(self, record: AnyRecord) -> None:
        if record.key is not None and record.value is not None:
            id_, at, around = (
                vocab.text(record.value),
                record.timestamp,
                self.op["window_ms"],
            )
            if any(self.seen.fetch(id_, at - around, at + around)):
                return
            self.seen.put(id_, at, at)
        self.context.forward(record)


class StreamTimeProbe(Step):
    def process(self, record: AnyRecord) -> None:
        self.context.forward(record.with_value(self.context.stream_time()))


class WallClockProbe(Step):
    def process(self, record: AnyRecord) -> None:
        self.context.forward(record.with_value(self.context.wall_clock()))


class MetadataProbe(Step):
    def process(self, record: AnyRecord) -> None:
        at = self.context.metadata
        assert at is not None
        self.context.forward(
            record.with_value(f"{at.topic}/{at.partition}/{at.offset}")
        )


class ShiftTimestamp(Step):
    def process(self, record: AnyRecord) -> None:
        self.context.forward(
            record.with_timestamp(max(0, record.timestamp + self.op["delta_ms"]))
        )


class AddHeader(Step):
    def process(self, record: AnyRecord) -> None:
        self.context.forward(
            record.with_header(self.op["name"], vocab.text(record.value).encode())
        )


class Reorder(Step):
    def init(self, context: Context) -> None:
        super().init(context)
        self.waiting: KeyValueStore[str, Any] = context.store(self.op["store"])
        self.arrivals = 0

    def process(self, record: AnyRecord) -> None:
        self.waiting.put(
            f"{record.timestamp:015d}#{self.arrivals:06d}", [record.key, record.value]
        )
        self.arrivals += 1
        due = self.context.stream_time() - self.op["delay_ms"]
        for at, (key, value) in self.waiting.all():
            if int(at[:15]) > due:
                break
            self.context.forward(Record(key, value, int(at[:15]), record.headers))
            self.waiting.delete(at)


class PunctuateFlush(Step):
    def init(self, context: Context) -> None:
        super().init(context)
        self.counts: KeyValueStore[str, int] = context.store(self.op["store"])
        context.schedule(ms(self.op["interval_ms"]), self.op["type"], self.flush)

    def process(self, record: AnyRecord) -> None:
        if record.key is not None:
            self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)

    def flush(self, now_ms: int) -> None:
        for key, count in self.counts.all():
            self.context.forward(Record(key, count, now_ms))
            if self.op.get("clear"):
                self.counts.delete(key)


class PunctuateTick(Step):
    def init(self, context: Context) -> None:
        super().init(context)
        self.fired = 0
        self.punctuation = context.schedule(
            ms(self.op["interval_ms"]), self.op["type"], self.tick
        )

    def process(self, record: AnyRecord) -> None:
        """Do nothing: the record advances stream time, and so causes punctuations."""

    def tick(self, now_ms: int) -> None:
        self.fired += 1
        self.context.forward(Record("tick", self.fired, now_ms))
        if self.fired == self.op.get("max_fires"):
            self.punctuation.cancel()


PROCESSORS: dict[str, Callable[[Op], Step]] = {
    "kv_count": KvCount,
    "running_sum": RunningSum,
    "dedup": Dedup,
    "stream_time_probe": StreamTimeProbe,
    "wall_clock_probe": WallClockProbe,
    "metadata_probe": MetadataProbe,
    "shift_timestamp": ShiftTimestamp,
    "add_header": AddHeader,
    "reorder": Reorder,
    "punctuate_flush": PunctuateFlush,
    "punctuate_tick": PunctuateTick,
}
LOOKS_AT_SEVERAL_KEYS = {"dedup", "reorder", "punctuate_tick"}


def process(world: World, op: Op) -> Any:
    require(
        op,
        "processor",
        "store",
        "window_ms",
        "retention_ms",
        "delta_ms",
        "name",
        "delay_ms",
        "type",
        "interval_ms",
        "clear",
        "max_fires",
    )
    if op["processor"] not in PROCESSORS:
        raise NotSupportedError(f"processor {op['processor']}")
    make = PROCESSORS[op["processor"]]
    if "store" in op:
        world.untimed.add(op["store"])
    stores = [_store(op)] if "store" in op else []
    stream = world.stream(op["in"])
    by_key = op["processor"] not in LOOKS_AT_SEVERAL_KEYS and not stream._flow.rekeyed
    return stream.process(
        lambda: make(op), stores=stores, key=KEY, value=VALUE, by_key=by_key
    )


def _store(op: Op) -> StoreSpec:
    if op["processor"] == "dedup":
        return window_store(
            op["store"],
            key=KEY,
            value=VALUE,
            size=ms(op["window_ms"]),
            retention=ms(op["retention_ms"]),
        )
    return key_value_store(op["store"], key=KEY, value=VALUE)


OPS: Translators = {"process": process}
