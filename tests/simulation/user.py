"""One life of a program that uses a `CooperativeConsumer`, on a simulated machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from coopstreams.commit.offset_runs import contains
from coopstreams.common.host import Empty
from coopstreams.consumer import CommitResult, ConsumerRecord, CooperativeConsumer
from coopstreams.consumer.consumer_session import Ranges
from coopstreams.topology.errors import (
    IndividualCommitError,
    LogError,
    MembershipLostError,
    OffsetOutOfRangeError,
)
from tests.simulation.book import place
from tests.simulation.producer import Producer
from tests.simulation.stage import Life

if TYPE_CHECKING:
    from tests.simulation.consumers import Consumers

WORKERS = 2
CALM_WORK_S = 1.0
"""The longest work between two calls of `consume` after the last fault."""


class UserError(Exception):
    """A program's own error, within a transaction."""


class User(Life):
    """One life of one program."""

    def __init__(self, stage: Consumers, number: int, life: int) -> None:
        super().__init__(stage, number, life)
        self._stage, self._book = stage, stage.book
        self._random = Random(stage.random.getrandbits(64))
        self._stopping = False
        self._consumer: CooperativeConsumer | None = None
        self._producer: Producer | None = None
        self._held: list[ConsumerRecord] = []
        """Records to be done."""
        self._done: list[ConsumerRecord] = []
        """Records that are done, and maybe not committed."""
        self._works_on = self.machine.inbox()
        self._by_workers = self._random.random() < 0.5
        self._most = self._random.choice((1, 5, 100))
        self._trouble = ""
        self._asked = 0
        """The moment before the user's last `consume`."""

    def stop(self) -> None:
        self._stopping = True

    def reasons(self) -> str:
        """Return what the program waits for."""
        open_ = (
            None
            if self._consumer is None or self._consumer._running is None
            else self._consumer.assignment()
        )
        return f"{self.machine.name}: {open_} holds {len(self._held)}, {self._trouble}"

    def run(self) -> None:
        consumer = CooperativeConsumer(
            self._stage.settings(self._random),
            filter=self._stage.filter,
            wiring=self.wiring(),
        )
        try:
            consumer.subscribe(
                self._stage.topics,
                allow_key_share=self._random.random() < 0.9,
                on_assign=self._assigned,
            )
        except LogError as error:
            if not error.retryable:
                raise
            self._stage.say(f"{self.machine.name} has not started: {error}")
        else:
            self._consumer = consumer
            for number in range(WORKERS if self._by_workers else 0):
                self.machine.thread(self._work, f"worker {number}").start()
            while not self._stopping:
                with self._trying_again():
                    self._round(consumer)
            consumer.close()
        self.ended = True
        self.machine.kill()

    def _assigned(self, ranges: Ranges) -> None:
        for at, some in ranges.items():
            for key_range in some:
                self._book.opened(self.machine.name, at, key_range, self._asked)

    @contextmanager
    def _trying_again(self) -> Iterator[None]:
        """Continue after errors that a program may survive."""
        try:
            yield
        except OffsetOutOfRangeError:
            raise
        except (MembershipLostError, LogError, KafkaException) as error:
            self._trouble = f"{type(error).__name__}: {error}"

    def _round(self, consumer: CooperativeConsumer) -> None:
        chance, self._asked = self._random, self._book.moment()
        for record in consumer.consume(self._most, chance.choice((0.0, 0.2, 1.0))):
            self._book.handed(self.machine.name, record)
            self._held.append(record)
        if consumer.to_be_revoked() and chance.random() < 0.3:
            consumer.delay_revoke(consumer.to_be_revoked())
        self._held = [record for record in self._held if record.owned.live]
        self._done = [record for record in self._done if record.owned.live]
        self._work_for(
            chance.choice((0.0, 0.0, 0.05, 0.5))
            if chance.random() < 0.98
            else chance.choice((4.0, 14.0))
        )
        if self._stage.exactly_once:
            self._transaction(consumer)
            return
        chance.shuffle(self._held)
        some = chance.randint(0, len(self._held))
        doing, self._held = self._held[:some], self._held[some:]
        if self._by_workers:
            for record in doing:
                self._works_on.put(record)
        elif chance.random() < 0.1:
            self._commit(consumer, lambda: self._by_name(consumer, doing), doing)
            return
        else:
            for record in doing:
                self._finish(record)
        if chance.random() < 0.3:
            self._commit(consumer, consumer.commit, list(self._done))

    def _work_for(self, seconds: float) -> None:
        """Work; in the end no longer than the group waits: members that it removes
        again and again get nothing done.
        """
        self.machine.sleep(min(seconds, CALM_WORK_S) if self._stage.calm else seconds)

    def _finish(self, record: ConsumerRecord) -> None:
        self._book.done(record)
        assert self._consumer is not None
        self._consumer.done(record)
        self._done.append(record)

    def _work(self) -> None:
        while True:
            try:
                record = self._works_on.get()
            except Empty:
                continue
            self.machine.sleep(self._random.expovariate(10.0))
            self._finish(record)

    def _by_name(
        self, consumer: CooperativeConsumer, records: list[ConsumerRecord]
    ) -> CommitResult:
        """Commit these records by their offsets."""
        ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for record in records:
            if record.owned.live:
                self._book.done(record)
                ranges.setdefault((record.topic, record.partition), []).append(
                    (record.offset, record.offset)
                )
        try:
            return consumer.commit_ranges(ranges)
        except IndividualCommitError as error:
            self._trouble = str(error)
            for record in records:
                self._finish(record)
            raise LogError("not committed", retryable=True) from error

    def _commit(
        self,
        consumer: CooperativeConsumer,
        commit: Callable[[], CommitResult],
        records: list[ConsumerRecord],
    ) -> None:
        """Commit; note the committed records: the consumer commits by itself, too."""
        began, at = self._book.moment(), self.machine.now()
        ranges = commit().ranges
        if self.machine.now() == at:
            began = (
                0  # nobody was asked: an earlier commit, which was in doubt, had them
            )
        session = consumer._running
        assert session is not None
        if (
            not session.commits.in_order
        ):  # with `in_order`, records above a gap are not committed
            counted = [
                record
                for record in records
                if record.owned.live
                and contains(ranges.get(place(record).at, ()), record.offset)
            ]
            self._book.committed(self.machine.name, counted, began)
        self._done = [record for record in self._done if record not in records]

    def _transaction(self, consumer: CooperativeConsumer) -> None:
        """Write the results of all held records, and commit both."""
        if self._random.random() < 0.3:
            return
        if self._producer is None:
            producer = Producer(self.client, consumer.transactional_id)
            producer.init_transactions()
            self._producer = producer
        records, self._held, began = self._held, [], self._book.moment()
        try:
            with consumer.transaction(self._producer):
                for record in records:
                    at, offset, made = place(record)
                    told = (
                        f"{at.topic}:{at.partition}:{offset}:{made}"
                        if self._book.counts(record)
                        else ""
                    )
                    self._producer.produce("out", told.encode(), record.key, 0)
                    consumer.done(record)
                    self._book.done(record)
                if self._random.random() < 0.1:
                    self._work_for(self._random.choice((1.0, 20.0)))
                if self._random.random() < 0.05:
                    raise UserError
        except UserError:
            return
        except BaseException:
            self._producer = None
            raise
        self._book.committed(self.machine.name, records, began)
