"""The global tables of an instance: each is loaded in full before the first task
starts, then kept up to date.

Every instance reads every partition of their topics, outside of the group and without
commits. After a restart it reads all rows again. No committed position has the ids of
these topics, so `topic_ids` keeps them for the watcher.

Invariant: when `load` has returned, the rows hold everything that was in the topics
when it was called. A record that cannot be deserialised goes to the deserialisation
handler. A record at which the processor of a global store raises goes to the processing
handler. Without commits, each start of each instance meets the record again: every time
it is counted and logged, and a dead letter is written.
Relies on: `state.global_table` and `state.global_updates` (the rows),
`tasks.failure_handlers`, `instance.topic_changes` (the watcher).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host, HostThread
from coopstreams.log.log import Log, Position, Writer
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.global_updates import rows_of
from coopstreams.tasks.events import Failed
from coopstreams.tasks.failure_handlers import Count, FailureHandler
from coopstreams.tasks.repeated_warnings import Sayings
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.errors import LogError, OffsetOutOfRangeError
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.nodes import GlobalTable

MADE_ANEW = (
    "the topic of a global table was deleted and made anew, or has lost records that were not read yet. The next start "
    "reads it from its beginning"
)

log = logging.getLogger(__name__)

_BATCH = 10_000
_WAIT_S = 0.1


class Globals:
    """The rows of global tables, by store name, and the thread that follows their
    topics.

    `waits_for` is thread-safe: what it reads is replaced as a whole.
    """

    def __init__(
        self,
        log: Log,
        tables: Sequence[GlobalTable],
        partitions: Mapping[str, int],
        config: Config,
        count: Count,
        sayings: Sayings,
        dropped: Callable[[str, str, int], None],
        host: Host = SYSTEM,
    ) -> None:
        """Open a reader.

        `count`: called with each failed record that is left out. `dropped`: called with
        node, reason and number of the records that are dropped because they have no
        valid timestamp.
        """
        self._host = host
        self._dropped = dropped
        self.rows = {
            table.store.name: rows_of(table, host.wall_ms, config.extractor)
            for table in tables
        }
        self._closing = list(self.rows.values())
        self.loaded = False
        """Whether `load` has read the topics to their ends."""
        self.topic_ids: dict[str, str] = {}
        """The ids of the topics, fetched before any record was read. Empty until `load`
        has fetched them.
        """
        self._left: dict[TopicPartition, tuple[int, int]] = {}
        """While loading: the next offset and the end of each partition that was not
        read to its end.
        """
        self._held = frozenset[TopicPartition]()
        """While loading: the partitions in `_left` that were read to their last stable
        offset.
        """
        self._log = log
        self._of: dict[TopicPartition, list[GlobalRows]] = {}
        for table in tables:
            for partition in range(partitions[table.topic]):
                self._of.setdefault(TopicPartition(table.topic, partition), []).append(
                    self.rows[table.store.name]
                )
        self._reader = log.reader() if tables else None
        self._writer: Writer | None = None
        self._undelivered: list[tuple[Failure, Headers, str]] = []
        self._timeout_s = config["transaction.timeout.ms"] / 1000
        self._on_failure = FailureHandler(
            None,
            config,
            count,
            self._dead_letter,
            sayings,
        )
        self._stopped = host.signal()
        self._thread: HostThread | None = None

    def load(self, cancelled: Callable[[], bool]) -> None:
        """Read the topics to their present ends, or until `cancelled` returns True.

        Raises:
            LogError: the topics cannot be read, or a dead letter cannot be written.
            ProcessingError: a record cannot be deserialised, or the processor of a
            global store raised, and the handler says `fail`.
            CoopStreamsError: the processor called `sys.exit()`.
        """
        if self._reader is None:
            self.loaded = True
            return
        # Ids before offsets: a topic that is made anew in between shows another id.
        self.topic_ids |= {
            topic: self._log.topic_id(topic)
            for topic in sorted({at.topic for at in self._of})
        }
        ends = self._log.end_offsets(self._of)
        starts = {
            partition: self._log.start_offset(partition) for partition in self._of
        }
        self._reader.assign(
            {partition: Position(start) for partition, start in starts.items()}
        )
        self._left = {
            at: (starts[at], end) for at, end in ends.items() if starts[at] < end
        }
        while self._left and not cancelled():
            self._load_more(ends)
        self.loaded = not self._left
        rows = (f"{name} has {len(of.entries)} rows" for name, of in self.rows.items())
        log.info("global tables: %s", ", ".join(rows))

    def _load_more(self, ends: Mapping[TopicPartition, int]) -> None:
        """Fetch and apply records once, and update what is left to load."""
        try:
            step = self._step()
        except SystemExit as error:  # of the processor of a global store
            raise Failed(error, "global tables").raised from error
        left = self._left | {
            partition: (reached, ends[partition])
            for partition, (reached, _) in step.items()
        }
        self._left = {
            at: bounds for at, bounds in left.items() if bounds[0] < bounds[1]
        }
        ended = {partition for partition, (_, at_end) in step.items() if at_end}
        self._held = (self._held - step.keys() | ended) & self._left.keys()

    @property
    def waits_for(self) -> str:
        """What is still to be read before the instance joins the group, in words; empty
        if nothing is.
        """
        left = [
            f"{partition} at offset {at} of {end}"
            for partition, (at, end) in sorted(self._left.items())
        ]
        if not left:
            return ""
        held = ", ".join(map(str, sorted(self._held)))
        why = (
            f". An open transaction of a producer keeps back the rest of {held}: it has to end"
            if held
            else ""
        )
        return f"its global tables are read first: {', '.join(left)}{why}"

    def follow(self, failed: Callable[[BaseException], None]) -> None:
        """Follow the topics in a separate thread. `failed`: called with the error that
        ends the thread.
        """
        if self._reader is not None:
            self._thread = self._host.thread(
                partial(self._run, failed),
                "global tables",
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread and close reader, tables and writer. Idempotent."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(10)
        if self._reader is not None:
            self._reader.close()
        while self._closing:
            self._closing.pop().close()
        if self._writer is not None:
            self._writer.close()

    def _run(self, failed: Callable[[BaseException], None]) -> None:
        """Follow the topics until `stop`; see `follow`."""
        try:
            while not self._stopped.is_set():
                self._step()
        except BaseException as error:  # any error: the control thread must get it
            log.debug("the global tables end", exc_info=True)
            failed(error)

    def _step(self) -> dict[TopicPartition, tuple[int, bool]]:
        """Fetch and apply records once; return, for each fetched partition, the next
        offset and whether the end is reached.

        Raises:
            OffsetOutOfRangeError: the topic no longer has the next record.
        """
        assert self._reader is not None
        reached: dict[TopicPartition, tuple[int, bool]] = {}
        try:
            fetched = self._reader.fetch(_BATCH, _WAIT_S)
        except OffsetOutOfRangeError as error:
            raise OffsetOutOfRangeError(
                f"{MADE_ANEW} ({str(error).partition(': ')[0]})"
            ) from error
        for batch in fetched:
            for rows in self._of[batch.partition]:
                rows.apply(batch.partition, batch.columns, self._on_failure)
                for (node, reason), count in rows.dropped.items():
                    self._dropped(node, reason, count)
                rows.dropped.clear()
            reached[batch.partition] = batch.next_offset, batch.at_end
        self._deliver()
        return reached

    def _dead_letter(
        self,
        failure: Failure,
        headers: Headers,
        topic: str,
    ) -> None:
        """Write a dead letter, and keep it until `_deliver` knows that it is in the
        log.
        """
        if self._writer is None:
            self._writer = self._log.writer()
        self._undelivered.append((failure, headers, topic))
        self._write(failure, headers, topic)

    def _write(
        self,
        failure: Failure,
        headers: Headers,
        topic: str,
    ) -> None:
        """Append a failed record with these headers to a dead-letter topic."""
        assert self._writer is not None
        self._writer.append(
            topic,
            [failure.key],
            [failure.value],
            [failure.timestamp],
            headers=[headers],
        )

    def _deliver(self) -> None:
        """Wait until the dead letters are in the log. After a retryable failure all are
        written again, some of them twice.

        Raises:
            LogError: the brokers refuse them, or the instance stops.
        """
        while self._undelivered and self._writer is not None:
            try:
                self._writer.flush(self._timeout_s)
                self._undelivered.clear()
            except LogError as error:
                if not error.retryable or self._stopped.is_set():
                    raise
                log.warning(
                    "global tables: dead letters are not written: %s; trying again",
                    error,
                )
                self._writer.abort()
                for failure, headers, topic in self._undelivered:
                    self._write(failure, headers, topic)
