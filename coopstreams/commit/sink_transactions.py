"""Application of a task's records to an external sink (`topology.external_sinks`), each
record exactly once.

After each step the records go to the sink in one transaction of the sink's, with the
position behind them. The group commits later, so after a crash the group is behind the
sink. Records between the two positions are read again, and are not applied a second
time. If the sink refused one of these records, it goes to the failure handler again:
what the handler did the first time (a dead letter) was part of a commit that did not
count.

Invariant: the group never commits a position above the sink's.
Relies on: `topology.external_sinks` (what `apply` does), `tasks.committer` (applies
before the group commits).
"""

from __future__ import annotations

from collections.abc import Iterator

from coopstreams.commit.progress import Progress
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ProcessingError
from coopstreams.topology.external_sinks import Applied, SinkRecord, SinkSession
from coopstreams.topology.failures import Failure, OnFailure


class RefusedEarlierError(ProcessingError):
    """The error for a record that is read again, and that the sink refused the first
    time; the log of the earlier process has the first error.
    """


class Applying:
    """The session of one task with its sink. Belongs to the task's stream thread."""

    def __init__(
        self,
        session: SinkSession,
        sink: str,
        source: TopicPartition,
        progress: Progress,
        on_failure: OnFailure,
    ) -> None:
        self.sink = sink
        self._session = session
        self._source = source
        self._progress = progress
        self._on_failure = on_failure
        self._begin = session.position
        """The offset below which earlier sessions applied the records."""

    @property
    def ahead(self) -> int:
        """The number of offsets from the task's position on that are applied already."""
        return max(0, self._begin - self._progress.position(self._source).offset)

    def apply(self, noted: list[Applied], *, all_of_it: bool = False) -> int:
        """Apply the noted records; return how many. `all_of_it`: also move the sink to
        the task's position, which the group commits next.

        Raises:
            SinkUnavailableError, FencedError: all of it may count, or nothing: open the
                task again. Whatever the failure handler raises: nothing of it counts.
        """
        position = self._progress.position(self._source).offset
        fresh = {_offset(each): each for each in self._fresh(noted)}
        if not fresh and not (all_of_it and self._session.position < position):
            return 0
        records = [_record(each) for each in fresh.values()]

        def refused(record: SinkRecord, error: Exception) -> None:
            self._fail(fresh[record.offset], error)

        self._session.apply(
            records,
            position,
            refused,
            self._progress.durable(self._source),
        )
        return len(records)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _fresh(self, noted: list[Applied]) -> Iterator[Applied]:
        """Yield the records that no earlier session has applied; fail those that one
        has refused.
        """
        for each in noted:
            offset = _offset(each)
            if offset >= self._begin:
                yield each
            elif offset in self._session.refused:
                self._fail(
                    each,
                    RefusedEarlierError(
                        f'sink "{self.sink}" has refused the record before'
                    ),
                )

    def _fail(self, record: Applied, error: Exception) -> None:
        _, columns, i = record.hand
        headers = columns.headers[i] if columns.headers is not None else None
        source = columns.keys[i], columns.values[i], columns.timestamps[i], headers
        self._on_failure(
            Failure(
                "production",
                self.sink,
                error,
                self._source,
                columns.offsets[i],
                *source,
            )
        )


def _offset(each: Applied) -> int:
    _, columns, i = each.hand
    return columns.offsets[i]


def _record(each: Applied) -> SinkRecord:
    _, columns, i = each.hand
    headers = columns.headers[i] if columns.headers is not None else None
    return SinkRecord(
        columns.offsets[i],
        each.key,
        each.value,
        columns.timestamps[i],
        headers,
    )
