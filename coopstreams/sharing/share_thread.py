"""Implements a share thread: a member of the application's share group that processes
the records it acquires.

    poll -> calls -> program -> writer -> flush -> acknowledge -> the next poll

Invariant: a record is acknowledged after its results are in the log. An unacknowledged
record is delivered once more, to this or another member: at-least-once, in any order.
Invariant: while the thread runs, it releases an unprocessed record at most once,
because the broker archives a record after some failed deliveries
(`group.share.delivery.count.limit`, five by default). So a record to be retried is kept
as long as the lock of its first delivery lasts. It is then released, so that another
member can try it, and that member keeps it. Cost: the client allows no poll while
records of the last poll are unfinished, so a slow record delays its own thread, but no
other.
Invariant: a record that ends the thread does not affect others: the thread first
finishes its other records. Otherwise they would wait for the next start by the
supervisor, and each start would use up a delivery.
Relies on: `delivery` (the states of a record), `shared_work` (results and failures),
`log/kafka/share_consumer.py` (each record of a poll is acknowledged before the next).
Turned down: exactly-once (a share
consumer acknowledges outside of transactions), and renewing locks (KIP-1222: the client
cannot).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from threading import get_ident

from coopstreams.log import time_marks
from coopstreams.log.kafka.kafka_errors import made_again
from coopstreams.log.kafka.share_consumer import AcquiredRecord
from coopstreams.log.log import Writer
from coopstreams.sharing.delivery import Deliverer, Delivery, columns_of
from coopstreams.sharing.shared_work import SharedWork, ShareServices
from coopstreams.tasks.events import Event, Failed
from coopstreams.tasks.queues import STEP_S, Pace
from coopstreams.tasks.repeated_timeouts import InVain
from coopstreams.tasks.tally import Counts
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    DeliveryError,
    LogError,
    ProcessingError,
    RefusedError,
)

log = logging.getLogger(__name__)

POLL_S = 0.5
"""The time-out of a poll. It is short because a record's lock is timed from the
beginning of the poll.
"""
LOOK_S = 0.5
"""The pause between two checks of whether a thread may take records, or its calls have
ended.
"""
ACKNOWLEDGE_S = 30.0
"""The time-out of the broker's answer to an acknowledgement."""
LOCK_PART = 0.8
"""The part of its lock time for which a failed record is kept before it is released."""
AGAIN_S = 1.0
"""The pause before the thread rejoins a share group that does not answer."""
MOST_DELIVERIES = 5
"""The default of the brokers' `group.share.delivery.count.limit`."""
MOST_SHOWN = 10
"""The most records that one log line names."""


@dataclass(frozen=True, slots=True)
class WorkFigures:
    """The counts of a share thread for one sub-topology since the thread started."""

    subtopology: int
    topics: tuple[str, ...]
    redelivered: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class ShareFigures:
    """The figures that a share thread publishes, and all that other threads read of
    it.
    """

    number: int
    waits: str
    """The reason why the thread takes no records, in words; empty if it takes
    records.
    """
    moved_at: float
    """The time of the thread's last poll or last finished record (`Host.now`)."""
    held: Mapping[str, int] = field(default_factory=dict)
    """The number of records acquired and not yet acknowledged, by topic."""
    ident: int | None = None
    """The id of the Python thread that runs it, or None if it has not started."""
    pauses: str = ""
    """The reason why no calls are begun, in words; empty if calls are begun."""
    retrying: bool = False
    """Whether the thread has failed records that wait for a retry."""
    flushing: bool = False
    """Whether the thread waits for a flush of its results to the brokers."""
    works: tuple[WorkFigures, ...] = ()
    """The counts of each sub-topology."""


@dataclass(frozen=True, slots=True)
class ShareTimes:
    """The intervals and time-outs of a share thread.

    Units: seconds.
    """

    commit_s: float
    """The commit interval."""
    lock_s: float
    """The time for which the broker gives an acquired record to no other member."""
    flush_s: float
    """The time-out of a flush of the writer."""
    drain_s: float
    """How long a thread that ends waits for its calls, if their locks last so long."""

    @property
    def acknowledge_s(self) -> float:
        """The time between two acknowledgements.

        It is short even if the commit interval is long: while a slow record is
        processed, the locks of finished records would end.
        """
        return min(self.commit_s, (1 - LOCK_PART) * self.lock_s)


class ShareThread:
    """One member of the share group, for all sub-topologies that read by it. Other
    threads call `start`, `hurry`, `ask_to_stop` and `join`, and read `figures`.
    """

    def __init__(
        self,
        number: int,
        connect: Callable[[], Deliverer],
        works: Sequence[SharedWork],
        writer: Writer,
        services: ShareServices,
        times: ShareTimes,
        holds: Callable[[], str],
        emit: Callable[[Event], None],
    ) -> None:
        """Make the thread; `start` starts it.

        `connect`: returns a new member of the group. `holds`: returns the reason why no
        record may be taken now; empty if records may be taken.
        """
        host = services.host
        self.number = number
        self.works = {topic: work for work in works for topic in work.topics}
        self._waits = "it has not joined its share group yet"
        self._held: dict[tuple[str, int, int], Delivery] = {}
        """The records that the thread has acquired and not acknowledged."""
        self._moved_at = host.now()
        self._ident: int | None = None
        self.every = tuple(works)
        """The `SharedWork` of each sub-topology."""
        self._connect = connect
        self._holds = holds
        self._emit = emit
        self._metrics = services.metrics
        self._writer = writer
        self._refusals = services.refusals
        self._times = times
        self._host = host
        self._client: Deliverer | None = None
        self._connected = False
        """Whether `connect` has succeeded once, so the client's settings are good."""
        self._ready: list[Delivery] = []
        """The records that may be processed now."""
        self._later: list[Delivery] = []
        """The failed records that wait for a retry."""
        self._done: list[Delivery] = []
        """The processed records that are not acknowledged yet."""
        self._failed: list[Delivery] = []
        """The records whose failures end the thread."""
        self._ends: ProcessingError | None = None
        """The error of the first record in `_failed`, or None."""
        self._acknowledge_at = 0.0
        self._pace = Pace()
        self._in_vain = InVain()
        self._stopping = False
        self._hurried = False
        self._news = host.signal()
        self._thread = host.thread(self._run, f"share-{number}")
        self.figures = self._figures()
        """The figures that other threads read; replaced as a whole."""

    def start(self) -> None:
        """Start the thread, which then joins the group and takes records."""
        self._thread.start()

    def hurry(self) -> None:
        """Have a thread that was asked to stop wait for no calls."""
        self._hurried = True

    def ask_to_stop(self) -> None:
        """Ask the thread to finish the calls under way, release the other records, and
        end. Return at once.
        """
        self._stopping = True
        self._news.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended, for at most `timeout_s`. Return whether it
        has ended.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _figures(self, *, flushing: bool = False) -> ShareFigures:
        pauses = [work.calls.pauses for work in self.every if work.calls is not None]
        return ShareFigures(
            number=self.number,
            waits=self._waits,
            moved_at=self._moved_at,
            held=Counter(topic for topic, _, _ in self._held),
            ident=self._ident,
            pauses="; ".join(filter(None, pauses)),
            retrying=bool(self._later),
            flushing=flushing,
            works=tuple(
                WorkFigures(
                    work.id.subtopology,
                    work.topics,
                    work.redelivered,
                    Counts.of(work),
                )
                for work in self.every
            ),
        )

    def _run(self) -> None:
        self._ident = get_ident()
        try:
            with ExitStack() as closing:
                closing.callback(self._writer.close)
                closing.callback(self._leave)
                while not self._stopping and not self._is_through():
                    self._turn()
            if self._ends is not None:
                raise self._ends
        except BaseException as error:  # any error: the control thread must get it
            log.debug("share thread %d ends", self.number, exc_info=True)
            self._emit(Failed(error, f"share thread {self.number}"))

    def _is_through(self) -> bool:
        """Return whether the thread can end after a fatal failure: its other records
        are processed, wait for a retry, or will lose their locks.
        """
        if self._ends is None:
            return False
        over = len(self._failed) + len(self._later) + len(self._done)
        return (
            over == len(self._held)
            or self._kept_until(next(iter(self._held.values()))) <= self._host.now()
        )

    def _turn(self) -> None:
        """Join the group if need be, and work; leave it while no records may be taken,
        or after an error.
        """
        if why := self._holds():
            self._leave()
            self._waits = why
            self.figures = self._figures()
            self._wait(LOOK_S)
            return
        try:
            if self._client is None:
                self._join()
            self._work()
        except LogError as error:
            if not error.retryable:
                raise
            self._waits = f"its share group is joined again: {error}"
            log.warning(
                "share thread %d: what it has is delivered again: %s",
                self.number,
                error,
            )
            self._leave()
            self.figures = self._figures()
            self._wait(AGAIN_S)

    def _wait(self, seconds: float) -> None:
        if not self._stopping:
            self._news.wait(seconds)
        self._news.clear()

    def _join(self) -> None:
        """Join the share group, and prepare the work."""
        client = made_again(self._connect) if self._connected else self._connect()
        self._connected = True
        try:
            client.subscribe(sorted(self.works))
        except BaseException:
            client.close()
            raise
        self._client = client
        for work in self.every:
            work.open(self._news.set)

    def _work(self) -> None:
        """Poll records if none is left, begin their calls, process those that are
        ready, and acknowledge when due.
        """
        assert self._client is not None
        if not self._held:
            began = self._host.now()
            records = self._client.poll(POLL_S)
            self._moved_at = self._host.now()
            self._waits = ""
            self._take(records, began + self._times.lock_s)
        elif not self._ready:
            self._wait(self._next_s())
        self._look()
        # Before the functions of the program, which may take long.
        self.figures = self._figures()
        self._step()
        if self._acknowledge_at <= self._host.now() or len(self._done) == len(
            self._held
        ):
            self._acknowledge()
        self.figures = self._figures()

    def _take(self, records: Iterable[AcquiredRecord], until: float) -> None:
        """Take in the records of a poll, whose locks end at `until`, and begin their
        calls. Time marks are done already.
        """
        deliveries = [Delivery(record, until) for record in records]
        if not deliveries:
            return
        self._acknowledge_at = self._host.now() + self._times.acknowledge_s
        self._held = {delivery.place: delivery for delivery in deliveries}
        self._metrics.acquired(self.number, len(self._held))
        for work in self.every:
            work.took([each for each in deliveries if each.record.topic in work.topics])
        for source, those in _by_partition(deliveries):
            marks = [at for at, _ in time_marks.marks_in(columns_of(source, those))]
            for index in marks:
                those[index].mark = True
                self._done.append(those[index])
            self._begin(source, [each for each in those if not each.mark])

    def _begin(self, source: TopicPartition, deliveries: Sequence[Delivery]) -> None:
        self.works[source.topic].begin(source, deliveries)
        self._ready += (delivery for delivery in deliveries if not delivery.waits_for)

    def _look(self) -> None:
        """Add the records whose calls have ended to the ready ones, begin the retries
        that are due, and release retries whose lock ends.
        """
        for work in self.every:
            if work.calls is not None:
                self._ready += work.calls.ready()
        now = self._host.now()
        due = list[Delivery]()
        released = list[Delivery]()
        later = list[Delivery]()
        for delivery in self._later:
            assert delivery.again_at is not None
            if delivery.again_at <= now:
                due.append(delivery)
            elif self._released_at(delivery) <= now:
                released.append(delivery)
            else:
                later.append(delivery)
        self._later = later
        for source, those in _by_partition(due):
            self._begin(source, those)
        if released:
            self._answer(released, done=False)

    def _released_at(self, delivery: Delivery) -> float:
        """Return the time at which a failed record is released to another member;
        infinity if this member keeps it.
        """
        return (
            self._kept_until(delivery)
            if delivery.record.deliveries == 1
            else float("inf")
        )

    def _kept_until(self, delivery: Delivery) -> float:
        """Return when to give a record up, in time before its lock ends."""
        return delivery.until - (1 - LOCK_PART) * self._times.lock_s

    def _next_s(self) -> float:
        """Return for how long the thread waits for calls and retries, in seconds."""
        at = [self._acknowledge_at if self._done else float("inf")]
        for delivery in self._later:
            assert delivery.again_at is not None
            at.append(min(delivery.again_at, self._released_at(delivery)))
        return max(0.0, min(LOOK_S, min(at) - self._host.now()))

    def _step(self) -> None:
        """Process ready records for about `STEP_S` seconds."""
        give_up = self._host.now() + STEP_S
        ready = self._ready
        self._ready = []
        for source, those in _by_partition(ready):
            while those and (now := self._host.now()) < give_up and not self._stopping:
                some = those[: self._pace.most]
                those = those[self._pace.most :]
                self._process(source, some)
                self._pace.took(len(some), self._host.now() - now)
            self._ready += those

    def _process(self, source: TopicPartition, deliveries: Sequence[Delivery]) -> None:
        """Process records of one partition, and note which are done, failed, or to be
        retried.
        """
        try:
            passed, again, failed = self.works[source.topic].process(source, deliveries)
        except LogError as error:
            self._ready += deliveries
            self._undo(error)
            return
        self._done += passed
        self._moved_at = self._host.now()
        for delivery, later in again:
            delivery.failures += 1
            delivery.again_at = self._moved_at + later.pause_s
            self._later.append(delivery)
        if failed is None:
            return
        others = {*passed, *(delivery for delivery, _ in again)}
        self._failed += (delivery for delivery in deliveries if delivery not in others)
        if self._ends is None:
            self._ends = failed
            log.error(
                "share thread %d ends as soon as it is through with the other records that it has: %s",
                self.number,
                failed,
            )

    def _acknowledge(self) -> None:
        """Flush the results to the log, and acknowledge the records that they come
        from.
        """
        self._acknowledge_at = self._host.now() + self._times.acknowledge_s
        if not self._done:
            return
        self.figures = self._figures(flushing=True)
        try:
            self._writer.flush(self._times.flush_s)
        except LogError as error:
            self._undo(error)
            return
        done = self._done
        self._done = []
        self._answer(done, done=True)
        for work in self.every:
            work.count()

    def _answer(self, deliveries: Sequence[Delivery], *, done: bool) -> None:
        """Acknowledge these records, or release them to other members."""
        assert self._client is not None
        for delivery in deliveries:
            del self._held[
                delivery.place
            ]  # first: never acknowledge a record again after an error
            self._client.acknowledge(delivery.record, done=done)
        if not done:
            self._say_given_up(deliveries)
        self._metrics.acquired(self.number, len(self._held))
        refused = self._client.commit(ACKNOWLEDGE_S)
        for partition, why in refused.items():
            log.warning(
                "share thread %d: records of %s are delivered again: %s",
                self.number,
                partition,
                why,
            )

    def _say_given_up(self, released: Sequence[Delivery]) -> None:
        """Log the released records that the broker will not deliver any more. Brokers
        do not report them.
        """
        last = [
            each.place
            for each in released
            if each.record.deliveries >= MOST_DELIVERIES and not each.mark
        ]
        if last:
            shown = ", ".join(
                f"{topic}[{partition}]@{offset}"
                for topic, partition, offset in last[:MOST_SHOWN]
            )
            log.error(
                "share thread %d: %d records were delivered %d times in vain. The brokers give such records up "
                "(group.share.delivery.count.limit, %d unless set), so they will not be processed: %s%s",
                self.number,
                len(last),
                max(each.record.deliveries for each in released),
                MOST_DELIVERIES,
                shown,
                ", ..." if len(last) > MOST_SHOWN else "",
            )

    def _undo(self, error: LogError) -> None:
        """Abort the results that are not in the log, and make their records ready for
        another run, even if the thread ends with the error.

        A writer reports a lost record only once. Without the abort, the flush before
        the thread leaves would succeed, and the source records would be acknowledged.

        Raises:
            LogError: another run cannot cure the error.
        """
        self._ready += (delivery for delivery in self._done if not delivery.mark)
        self._done = [delivery for delivery in self._done if delivery.mark]
        self._writer.abort()
        if not error.retryable:
            hopeless = isinstance(error, DeliveryError) and not isinstance(
                error,
                RefusedError,
            )
            if self._in_vain.again(self._host.now()) or hopeless:
                raise error
        log.warning(
            "share thread %d: records are processed again: %s",
            self.number,
            error,
        )
        if isinstance(error, RefusedError):
            self._refusals.expect()

    def _leave(self) -> None:
        """Wait for the calls under way, acknowledge the processed records,
        release the other records, and leave the group.
        """
        if self._client is None:
            return
        client = self._client
        try:
            self._end_calls()
            self._acknowledge()
            if left := list(self._held.values()):
                self._answer(left, done=False)
                log.info(
                    "share thread %d: %d records are left to other members",
                    self.number,
                    len(left),
                )
        except LogError as error:
            log.warning(
                "share thread %d: what it has is delivered again: %s",
                self.number,
                error,
            )
        finally:
            self._client = None
            self._held = {}
            self._metrics.acquired(self.number, 0)
            self._ready = []
            self._later = []
            self._done = []
            self._failed = []
            for work in self.every:
                work.close()
                work.count()
            client.close()

    def _end_calls(self) -> None:
        """Wait for the calls under way, and process the records whose calls have ended.

        The wait ends before the locks do: another member may then have the records.
        """
        give_up = min(
            map(self._kept_until, self._held.values()),
            default=float("inf"),
        )
        give_up = min(give_up, self._host.now() + self._times.drain_s)
        calls = [work.calls for work in self.every if work.calls is not None]
        for each in calls:
            each.drain()
        while (
            not all(each.drained for each in calls)
            and self._host.now() < give_up
            and not self._hurried
        ):
            self._news.wait(LOOK_S / 10)
            self._news.clear()
        ended = [delivery for each in calls for delivery in each.ready()]
        for source, those in _by_partition(ended):
            self._process(source, those)


def _by_partition(
    deliveries: Iterable[Delivery],
) -> list[tuple[TopicPartition, list[Delivery]]]:
    """Return the records of each partition, in the order of their offsets."""
    ordered = sorted(deliveries, key=attrgetter("place"))
    return [
        (source, list(those))
        for source, those in groupby(ordered, attrgetter("source"))
    ]
