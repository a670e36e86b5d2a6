"""Reads partitions from given offsets to their current ends: small topics, or the rest
of larger ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from coopstreams.common.host import Host
from coopstreams.log.log import Log, Position, RecordBatch
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError

TIMEOUT_S = 30.0
_BATCH = 1000
_LOOK_S = 0.2


def remainder(
    log: Log,
    starts: Mapping[TopicPartition, int],
    host: Host,
) -> Iterator[RecordBatch]:
    """Yield the committed records of these partitions from these offsets to their
    current ends.

    Raises:
        LogError: retryable: the ends are not reached within `TIMEOUT_S`.
    """
    left = set(starts)
    give_up = host.now() + TIMEOUT_S
    with closing(log.reader()) as reader:
        reader.assign({at: Position(offset) for at, offset in starts.items()})
        while left:
            if host.now() > give_up:
                raise LogError(
                    f"{', '.join(map(str, sorted(left)))} could not be read to the end "
                    f"in {TIMEOUT_S:.0f} s",
                    retryable=True,
                )
            for batch in reader.fetch(_BATCH, _LOOK_S):
                yield batch
                if batch.at_end:
                    left.discard(batch.partition)
