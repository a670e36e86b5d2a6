"""The Kafka writes of a backfill's task: one transaction that counts exactly once,
however often Spark runs the task.

The last record of the transaction is a *mark*: the task's result, in a topic of the run
that has a partition for each task. A later attempt (after a lost executor, or with
`--resume`) takes over the transactional id, which aborts an open transaction of the
attempt before it. Then it looks for the mark, which is there exactly if that
transaction committed.

Invariant: for each task of a run there is at most one committed transaction with its
mark in it.
Invariant: the rows of a task count only if no instance of the application has begun. An
instance that was starting when the run was announced may have looked for runs before,
and joins its group minutes later, when its global tables are read. So a task looks for
members once its own rows are in the log. An instance that has joined by then is found.
One that joins later finds rows in its changelogs and no position, and ends
(`opening.position_check`).
Turned down: a file that says "done" (it is not part of the transaction, so one of the
two would be ahead), at-least-once outputs, and one partition for all marks (an open
transaction of another task would hide this task's own mark).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.client_settings import LONGEST_TRANSACTION_MS
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import (
    BROKERS_TIME,
    Log,
    Position,
    TopicSpec,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.errors import GroupError, UnknownTopicError
from coopstreams.topology.naming import marks_topic

BATCH = 10_000


def marks_spec(
    application: str,
    run: str,
    tasks: int,
    replication: int,
) -> TopicSpec:
    """Return the topic with the marks of a run, which is kept until the run is
    published.
    """
    settings = {"cleanup.policy": "compact", **BROKERS_TIME, "retention.ms": "-1"}
    return TopicSpec(marks_topic(application, run), tasks, settings, replication)


def announce(
    config: Config,
    run: str,
    tasks: int,
) -> None:
    """Create the topic with the marks of a run, if missing. Other runs that find it
    know that this run has begun.
    """
    with closing(cluster_of(config)) as cluster:
        cluster.create_topics(
            [
                marks_spec(
                    config["application.id"],
                    run,
                    tasks,
                    config["replication.factor"],
                )
            ]
        )


def cluster_of(config: Config) -> KafkaLog:
    """Return the cluster of a configuration, with the longest transaction time-out that
    brokers allow.
    """
    settings = {
        "producer.transaction.timeout.ms": LONGEST_TRANSACTION_MS,
        **config.client,
    }
    return KafkaLog(settings, timeout_s=config["connect.timeout.ms"] / 1000)


def partitions_of(config: Config, topic: str) -> int:
    """Return the current partition count of a topic.

    Raises:
        UnknownTopicError: the topic does not exist.
    """
    with closing(cluster_of(config)) as cluster:
        count = cluster.partitions([topic]).get(topic)
    if count is None:
        raise UnknownTopicError(
            f'the application writes to "{topic}", which does not exist. Create it, and resume the run.'
        )
    return count


@dataclass(frozen=True, slots=True)
class Seeds:
    """The rows of one changelog partition that a live task would have written by the
    cut.
    """

    changelog: TopicPartition
    rows: Iterable[tuple[bytes, bytes | None, int]]
    """Changelog key, value, timestamp."""


class Outbox:
    """The transaction of one task. Belongs to one thread.

    `number`: that of the task within its run. It is the suffix of the transactional id,
    and the partition of the mark.
    """

    def __init__(
        self,
        config: Config,
        run: str,
        number: int,
    ) -> None:
        self._config = config
        self._run = run
        self._log: Log = cluster_of(config)
        self._mark = TopicPartition(marks_topic(config["application.id"], run), number)
        self._writer = self._log.writer(
            f"{config['application.id']}-backfill-{run}-{number}"
        )
        # After the writer, which ends the earlier attempt: no mark can appear any more.
        self.mark = read_mark(self._log, self._mark)
        """The result that an earlier attempt committed; None: nothing of this task is
        in Kafka.
        """
        if self.mark is None:
            self._writer.begin()

    def write(self, output: Output) -> None:
        """Write the records that the task forwarded to a topic."""
        output.append_to(self._writer.append)

    def seed(self, seeds: Seeds) -> int:
        """Write the rows of a changelog; return their number."""
        count = 0
        part = list[tuple[bytes, bytes | None, int]]()
        for row in seeds.rows:
            part.append(row)
            if len(part) == BATCH:
                count += self._append(seeds.changelog, part)
                part = []
        return count + self._append(seeds.changelog, part)

    def check_alone(self, sources: Collection[TopicPartition]) -> None:
        """Check that the application has not begun beside the run, in these partitions
        or at all.

        Raises:
            GroupError: it has members, or has committed.
        """
        # before the question: an instance that joins later finds the rows
        self._writer.flush(LONGEST_TRANSACTION_MS / 1000)
        application = self._config["application.id"]
        with GroupAdmin(self._config.client, application) as group:
            said = group.describe().members_text
            offsets = group.fetch_offsets(sources, stable=False).offsets
        places = [at for at, found in offsets.items() if found is not None]
        if said or places:
            raise GroupError(
                f'"{application}" has {said or f"committed an offset of {places[0]}"}: it has begun beside run '
                f"{self._run} of a backfill, and rows of both would be in its changelogs. Stop all its instances. If "
                "it has committed nothing (`coopstreams group describe`), resume the run. If it has, `coopstreams "
                "reset` it, and start it live, or backfill the program under another application id"
            )

    def commit(self, result: str) -> None:
        """Write the result as the mark, and commit the transaction.

        Raises:
            FencedError: another attempt has taken over.
            LogError: it is unknown whether the transaction committed; the next attempt
            looks for the mark.
        """
        now = int(time.time() * 1000)
        self._writer.append(
            self._mark.topic,
            [b"result"],
            [result.encode()],
            [now],
            partitions=self._mark.partition,
        )
        self._writer.commit(LONGEST_TRANSACTION_MS / 1000)

    def close(self) -> None:
        """Close the writer, which aborts an open transaction."""
        self._writer.close()
        self._log.close()

    def _append(
        self,
        changelog: TopicPartition,
        rows: Sequence[tuple[bytes, bytes | None, int]],
    ) -> int:
        """Write rows of a changelog; return how many."""
        if rows:
            keys, values, timestamps = zip(*rows, strict=True)
            self._writer.append(
                changelog.topic,
                keys,
                values,
                timestamps,
                partitions=changelog.partition,
            )
        return len(rows)


def read_mark(log: Log, mark: TopicPartition) -> str | None:
    """Return the result of a task from its mark; None if the task has not committed.

    The caller must first take over the transactional id, which ends an open
    transaction.
    """
    end = log.end_offset(mark)
    at = log.start_offset(mark)
    found = None
    with closing(log.reader()) as reader:
        reader.assign({mark: Position(at)})
        while at < end:
            for run in reader.fetch(BATCH, 0.1):
                at = run.next_offset
                found = next(
                    (
                        value.decode()
                        for value in reversed(run.columns.values)
                        if value is not None
                    ),
                    found,
                )
    return found
