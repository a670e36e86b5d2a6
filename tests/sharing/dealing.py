"""A share group in memory, as a broker's (KIP-932): locks that end, counted deliveries;
and share threads on it, over a log in memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.common.metrics import Metrics
from coopstreams.log.kafka.share_consumer import AcquiredRecord
from coopstreams.log.log import Position, TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.sharing.share_group import ShareMembers, share_group
from coopstreams.sharing.share_thread import ShareThread, ShareTimes
from coopstreams.sharing.shared_work import SharedWork, ShareServices
from coopstreams.tasks.events import Event, Failed
from coopstreams.tasks.refusals import Refusals
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.tasks.tally import Tallies
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.errors import LogError
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.stores import TableStore

PATIENCE_S = 60.0
MOST_DELIVERIES = 5


@dataclass(slots=True)
class _Dealt:
    record: tuple[Any, ...]
    deliveries: int = 0
    holder: Member | None = None
    until: float = 0.0
    over: str = ""
    """How the record ended: done, or given up."""


@dataclass(slots=True)
class ShareGroup:
    """The broker's side. `lock_s`: how long a member may keep a record."""

    lock_s: float = 30.0
    locks_end: bool = True
    most: int = 50
    """Records of one poll."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    dealt: dict[tuple[str, int, int], _Dealt] = field(default_factory=dict)
    members: int = 0
    releases: int = 0
    """The requests that have released records."""

    def write(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Append records without keys."""
        with self.lock:
            for value in values:
                offset = sum(at[:2] == (topic, partition) for at in self.dealt)
                self.dealt[topic, partition, offset] = _Dealt(
                    (None, value, 1000 + offset, headers)
                )

    def member(self) -> Member:
        """Return a member that has just joined."""
        self.members += 1
        return Member(self)

    @property
    def over(self) -> list[str]:
        """The end of each record: done, or given up; empty: it has not ended."""
        with self.lock:
            return [each.over for each in self.dealt.values()]


class Member:
    """A `KafkaShare` in memory, with the client's rules."""

    def __init__(self, group: ShareGroup) -> None:
        self._group = group
        self._topics: Sequence[str] = ()
        self._open: set[tuple[str, int, int]] = set()
        self._answers: dict[tuple[str, int, int], bool] = {}
        self.breaks_at: int | None = None
        """The request at which the member's broker fails, for ever or (`heals`) for a
        moment; None: never.
        """
        self.heals = False

    def subscribe(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def poll(self, timeout_s: float) -> list[AcquiredRecord]:
        assert not self._open, (
            "the client demands an answer to each record before the next poll"
        )
        records = self._acquired()
        if not records:
            time.sleep(min(timeout_s, 0.005))
        return records

    def _acquired(self) -> list[AcquiredRecord]:
        group, now = self._group, time.monotonic()
        with group.lock:
            free = [
                (at, each)
                for at, each in group.dealt.items()
                if at[0] in self._topics
                and not each.over
                and (each.holder is None or each.until < now)
            ]
            records = []
            for at, each in free[: group.most]:
                if each.deliveries == MOST_DELIVERIES:
                    each.over = "given up"
                    continue
                each.deliveries += 1
                each.holder, each.until = (
                    self,
                    now + group.lock_s if group.locks_end else float("inf"),
                )
                self._open.add(at)
                key, value, timestamp, headers = each.record
                records.append(
                    AcquiredRecord(*at, key, value, timestamp, headers, each.deliveries)
                )
            return records

    def acknowledge(self, record: AcquiredRecord, *, done: bool) -> None:
        if record.id not in self._open:
            raise LogError("it is not in flight", retryable=True)
        self._open.remove(record.id)
        self._answers[record.id] = done

    def commit(self, timeout_s: float) -> dict[TopicPartition, str]:
        if self.breaks_at is not None:
            self.breaks_at -= 1
            if self.breaks_at < 0:
                raise LogError("no broker", retryable=self.heals)
        refused: dict[TopicPartition, str] = {}
        with self._group.lock:
            self._group.releases += not all(self._answers.values())
            for at, done in self._answers.items():
                each = self._group.dealt[at]
                if each.holder is not self or each.until < time.monotonic():
                    refused[TopicPartition(*at[:2])] = "INVALID_RECORD_STATE"
                elif done:
                    each.over = "done"
                else:
                    each.holder = None
        self._answers.clear()
        return refused

    def close(self) -> None:
        """Leave the group; its records are available at once, as with a real broker."""
        with self._group.lock:
            for each in self._group.dealt.values():
                if each.holder is self:
                    each.holder = None


class LateWriter(MemoryWriter):
    """A writer whose records are in the log once it has flushed them, as those of
    Kafka's client.

    `flushes`: whether each flush succeeds, or the error that it raises; afterwards all
    succeed. One that fails has some of its records in the log, and the others never
    will be: Kafka's client reports a record that it has given up once.
    """

    def __init__(self, log: MemoryLog, flushes: Iterator[bool | LogError]) -> None:
        super().__init__(log._state, None)
        self._flushes = flushes
        self._waiting: list[Callable[[], None]] = []

    def append(self, *columns: Any, **more: Any) -> None:
        self._waiting.append(
            partial(super().append, *deepcopy(columns), **deepcopy(more))
        )

    def flush(self, timeout_s: float) -> None:
        outcome = next(self._flushes, True)
        for write in self._waiting[
            : None if outcome is True else len(self._waiting) // 2
        ]:
            write()
        self._waiting.clear()
        if outcome is not True:
            raise outcome or LogError("not all was delivered", retryable=True)
        super().flush(timeout_s)

    def abort(self) -> None:
        self._waiting.clear()
        super().abort()


class Instance:
    """Share threads of one process; `log` has their results."""

    def __init__(
        self,
        topology: Topology,
        group: ShareGroup,
        *,
        threads: int = 1,
        flushes: Iterable[bool | LogError] = (),
        connect: Callable[[], Member] | None = None,
        holds: Callable[[], str] = lambda: "",
        acknowledge_every_s: float = 0.01,
        host: Host = SYSTEM,
        **settings: Any,
    ) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        config = Config.of(
            {"bootstrap.servers": "nowhere:1"} | given, topology.application_id
        )
        self.log = MemoryLog()
        letters = config["errors.dead.letter.queue.topic.name"]
        named = [
            *topology.sink_topics,
            *topology.dead_letter_topics.values(),
            *([letters] if letters else []),
        ]
        self.log.create_topics([TopicSpec(topic, 1) for topic in named])
        self.metrics = Metrics(topology.application_id, "test")
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        programs = [
            compile_subtopology(topology, part)
            for part in topology.subtopologies
            if part.unordered
        ]
        refusals = Refusals(self.log, config)
        tables: dict[str, TableStore] = {}
        services = ShareServices(
            config,
            self.metrics,
            Tallies(self.metrics),
            Sayings(),
            refusals,
            lambda _: 1,
            tables,
            topology.dead_letter_topics,
            host,
        )
        times = ShareTimes(
            commit_s=acknowledge_every_s,
            lock_s=group.lock_s,
            flush_s=30.0,
            drain_s=3.0,
        )
        made, outcomes = [], iter(flushes)
        for number in range(threads):
            writer = LateWriter(self.log, outcomes)
            works = [
                SharedWork(number, program, writer, services) for program in programs
            ]
            made.append(
                ShareThread(
                    number,
                    connect or group.member,
                    works,
                    writer,
                    services,
                    times,
                    holds,
                    self.events.put,
                )
            )
        self.members = ShareMembers(share_group(topology.application_id), made, host)

    def read(self, topic: str) -> list[tuple[bytes | None, Mapping[str, bytes | None]]]:
        """Return values and headers of the records in a topic."""
        reader = self.log.reader()
        reader.assign({TopicPartition(topic, 0): Position(0)})
        found: list[tuple[bytes | None, Mapping[str, bytes | None]]] = []
        for batch in reader.fetch(1 << 20, 0.0):
            columns = batch.columns
            headers = columns.headers or [None] * len(columns)
            found += [
                (value, dict(head or ()))
                for value, head in zip(columns.values, headers, strict=True)
            ]
        return found

    def failure(self) -> BaseException:
        """Return the error that has ended a thread."""
        event = self.events.get(timeout=PATIENCE_S)
        assert isinstance(event, Failed)
        return event.error


@contextmanager
def running(*instances: Instance) -> Iterator[None]:
    """Run the threads of instances."""
    for each in instances:
        each.members.start()
    try:
        yield
    finally:
        for each in instances:
            each.members.stop(time.monotonic() + PATIENCE_S)


def until(true: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.002)
