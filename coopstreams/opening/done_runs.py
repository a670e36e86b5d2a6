"""Done runs in the source topic of a table that is restored from it.

Such a table is what its task has read of the topic, up to one offset. So its task does
the records in order and commits positions only (`InFlight`, `in_order`). Done runs that
were found above its position are from

* an earlier version of coopstreams, which committed the gaps between records as runs:
  transaction markers, offsets that were compacted, records of other key ranges. No
  record of the task lies in them, so they are dropped;
* a version of the topology in which the table had a changelog, and records passed each
  other. The rows of such records are in no state that an offset describes.

Turned down: restoring the records of runs beside those below the position (the second
case needs one change of a setting while calls wait, and ends by itself once they have
had their answers; compaction may have removed records of a run).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from coopstreams.commit.ranges import contains
from coopstreams.commit.record import Segment
from coopstreams.common.host import Host
from coopstreams.log.log import Log, Position
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError

BATCH = 10_000
PATIENCE_S = 10.0
"""How long brokers may return nothing before the opening is tried again."""
LOOK_S = 0.1


def first_record_in_runs(
    log: Log, source: TopicPartition, segments: Sequence[Segment], host: Host
) -> int | None:
    """Return the offset of a record of these hashes in the done runs of their segment.

    None: there is none.

    Raises:
        LogError: retryable: the brokers did not return all records in time.
    """
    parted = [segment for segment in segments if segment.runs]
    if not parted:
        return None
    start = max(min(segment.runs[0][0] for segment in parted), log.start_offset(source))
    end = max(segment.end for segment in parted)
    with closing(log.reader()) as reader:
        reader.route(source, [segment.key_range for segment in parted])
        reader.assign({source: Position(start)})
        at = start
        moved_at = host.now()
        while at < end:
            batches = reader.fetch(BATCH, LOOK_S)
            for batch in batches:
                runs = parted[batch.slot].runs
                for offset in batch.columns.offsets:
                    if contains(runs, offset):
                        return offset
            reached = max((batch.next_offset for batch in batches), default=at)
            if reached > at:
                at = reached
                moved_at = host.now()
            elif host.now() - moved_at > PATIENCE_S:
                raise LogError(
                    f"{source} returned no record between offsets {at} and {end} for "
                    f"{PATIENCE_S:g} s: the group has committed done records there",
                    retryable=True,
                )
    return None
