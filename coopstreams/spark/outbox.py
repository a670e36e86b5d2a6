"""What a task of a backfill writes to Kafka: one transaction, all of it or nothing, once, however often Spark runs the
task.

The last record of the transaction is a *mark*: the task's result, in a topic of the run that has a partition for each
task. Whoever runs the task again (an attempt after a lost executor, `--resume`) takes the transactional id over, which
ends what the attempt before left open, and then finds the mark, or does not.

Invariant: for each task of a run there is at most one committed transaction with its mark in it.
Turned down: a file that says "done" (it cannot be written in the transaction, so one of the two would be ahead),
at-least-once outputs, and one partition for all marks (a transaction that another task left open would keep this one
from seeing its own).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coopstreams.common.config import Config
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log, Position, TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.errors import UnknownTopicError
from coopstreams.topology.naming import MARKS

TRANSACTION_TIMEOUT_MS = 900_000
"""What a broker allows at most, unless it is told otherwise: a task that writes must be done within it."""
BATCH = 10_000


def marks_topic(application: str, run: str) -> str:
    """Return the name of the topic with the marks of a run."""
    return f"{application}{MARKS}{run}"


def marks_spec(application: str, run: str, tasks: int, replication: int) -> TopicSpec:
    """Return the topic with the marks of a run: kept until the run is published."""
    return TopicSpec(
        marks_topic(application, run), tasks, {"cleanup.policy": "compact", "retention.ms": "-1"}, replication
    )


def announce(config: Config, run: str, tasks: int) -> None:
    """Make the topic with the marks of a run, unless it is there: from now on the cluster knows that the run has
    begun.
    """
    cluster = cluster_of(config)
    try:
        cluster.create_topics([marks_spec(config["application.id"], run, tasks, config["replication.factor"])])
    finally:
        cluster.close()


def cluster_of(config: Config) -> KafkaLog:
    """Return the cluster of a configuration, its transactions as long as the brokers allow."""
    settings = {"producer.transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, **config.client}
    return KafkaLog(settings, timeout_s=config["connect.timeout.ms"] / 1000)


def partitions_of(config: Config, topic: str) -> int:
    """Return how many partitions a topic has now.

    Raises:
        UnknownTopicError: it does not exist.
    """
    cluster = cluster_of(config)
    try:
        count = cluster.partitions([topic]).get(topic)
    finally:
        cluster.close()
    if count is None:
        raise UnknownTopicError(
            f'the application writes to "{topic}", which does not exist. Create it, and resume the run.'
        )
    return count


@dataclass(frozen=True, slots=True)
class Seeds:
    """Rows of a changelog partition: what a live task would have written to it by now."""

    changelog: TopicPartition
    rows: Iterable[tuple[bytes, bytes | None, int]]
    """Changelog key, value, timestamp."""


class Outbox:
    """The transaction of one task. One thread.

    `number` is that of the task within its run: it ends the transactional id, and is the partition of the mark.
    """

    def __init__(self, config: Config, run: str, number: int) -> None:
        self._log: Log = cluster_of(config)
        self._mark = TopicPartition(marks_topic(config["application.id"], run), number)
        self._writer = self._log.writer(f"{config['application.id']}-backfill-{run}-{number}")
        self.mark = read_mark(self._log, self._mark)
        """The result that an earlier attempt committed; None: nothing of this task is in Kafka."""
        if self.mark is None:
            self._writer.begin()

    def write(self, output: Output) -> None:
        """Write what the task forwarded to a topic."""
        self._writer.append(
            output.topic,
            output.keys,
            output.values,
            output.timestamps,
            partitions=output.partitions,
            headers=output.headers,
        )

    def seed(self, seeds: Seeds) -> int:
        """Write the rows of a changelog; return how many there were."""
        count, part = 0, list[tuple[bytes, bytes | None, int]]()
        for row in seeds.rows:
            part.append(row)
            if len(part) == BATCH:
                count += self._append(seeds.changelog, part)
                part = []
        return count + self._append(seeds.changelog, part)

    def commit(self, result: str) -> None:
        """Let everything count, and the result with it.

        Raises:
            FencedError: another attempt has taken over.
            LogError: it may or may not have counted; the next attempt will know.
        """
        now = int(time.time() * 1000)
        self._writer.append(self._mark.topic, [b"result"], [result.encode()], [now], partitions=self._mark.partition)
        self._writer.commit(TRANSACTION_TIMEOUT_MS / 1000)

    def close(self) -> None:
        """Let go; what was not committed does not count."""
        self._writer.close()
        self._log.close()

    def _append(self, changelog: TopicPartition, rows: Sequence[tuple[bytes, bytes | None, int]]) -> int:
        if rows:
            keys, values, timestamps = zip(*rows, strict=True)
            self._writer.append(changelog.topic, keys, values, timestamps, partitions=changelog.partition)
        return len(rows)


def read_mark(log: Log, mark: TopicPartition) -> str | None:
    """Return the result of a task whose transaction is committed. Only after its transactional id was taken over:
    nothing is open then.
    """
    end, at, found = log.end_offset(mark), log.start_offset(mark), None
    reader = log.reader()
    try:
        reader.assign({mark: Position(at)})
        while at < end:
            for run in reader.fetch(BATCH, 0.1):
                at = run.next_offset
                found = next((value.decode() for value in reversed(run.columns.values) if value is not None), found)
    finally:
        reader.close()
    return found
