"""One reader for all key ranges of a consumer: it fetches each partition once and
routes each record to its range.

A range that is paused or has too many records in flight does not hold up the other
ranges of its partition. Its records are cached, up to `max.bytes.key.range.cache` in
total, and leave the cache when they are handed out. Of a topic that does not reserve
values, the cache keeps only keys and offsets (`waiting`), and a second reader fetches
the values later (`refetching`). Records that do not fit are dropped, and the first
reader goes back for them.

Invariant: a range gets every record from its opening position on, in order, once,
whatever the other ranges of its partition do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from coopstreams.consumer.filters import RecordFilter
from coopstreams.consumer.owned_range import ConsumerRecord, Share
from coopstreams.consumer.refetching import Refetch, Refetching
from coopstreams.log.log import Position, Reader
from coopstreams.topology.columns import TopicPartition


@dataclass(slots=True)
class _Partition:
    shares: list[Share] = field(default_factory=list)
    """The shares, in the order of the reader's slots."""
    at: int | None = None
    """The next offset that the reader fetches; None: the partition is not being read.
    """


class Fetching:
    """Moves records from a reader to key ranges, and on to the user. Belongs to one
    thread.
    """

    def __init__(
        self,
        make_reader: Callable[[], Reader],
        most_bytes: int,
        reserves: Callable[[str], bool],
        filter_: RecordFilter | None,
    ) -> None:
        """`reserves`: whether the values of a topic's records may be kept."""
        self._reader = make_reader()
        self._again = Refetching(make_reader)
        self._most_bytes = most_bytes
        self._reserves = reserves
        self._filter = filter_
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._changed: set[TopicPartition] = set()
        """The partitions whose key ranges have changed since the reader was told; the
        next fetch tells it.
        """
        self._paused: set[TopicPartition] = set()
        self._remade: set[TopicPartition] = set()
        """The partitions of which the reader may have records of a topic that was
        deleted, until it is told.
        """

    def open(self, share: Share) -> None:
        """Read a key range from its opening position on."""
        partition = self._partitions.setdefault(share.at, _Partition())
        share.paused = share.at in self._paused
        partition.shares.append(share)
        share.behind = True
        self._changed.add(share.at)

    def close(self, shares: Iterable[Share], *, remade: bool = False) -> None:
        """Stop reading these key ranges, and drop their waiting records.

        `remade`: their topic was deleted and made anew, so that nothing that was
        fetched of it is of use.
        """
        for share in shares:
            if remade:
                self._remade.add(share.at)
            share.live = False
            share.waiting.clear()
            partition = self._partitions.get(share.at)
            if partition is not None and share in partition.shares:
                partition.shares.remove(share)
                self._changed.add(share.at)
                if not partition.shares:
                    del self._partitions[share.at]

    def fetch(self, most: int, timeout_s: float) -> None:
        """Fetch once; block up to `timeout_s`, and only while no record has arrived.

        Raises:
            LogError: a partition cannot be read, or not from its position. The next
            call tries again.
        """
        self._place()
        for share in self._shares():
            if (offsets := share.ask()) is not None:
                self._again.ask(Refetch(share.at, offsets, share.waiting))
        batches = self._reader.fetch(most, 0.0 if self._again else timeout_s)
        for batch in batches:
            partition = self._partitions.get(batch.partition)
            if partition is not None:
                partition.at = batch.next_offset
                columns = (
                    batch.columns
                    if self._filter is None
                    else self._filter.columns(batch.columns)
                )
                partition.shares[batch.slot].take(
                    columns,
                    batch.next_offset,
                    self._room,
                    values=self._reserves(batch.partition.topic),
                )
        self._again.fetch(0.0 if batches else timeout_s)

    def records(self, most: int) -> list[ConsumerRecord]:
        """Return up to `most` records that can be handed out now."""
        records: list[ConsumerRecord] = []
        for share in self._shares():
            if len(records) < most:
                records += share.hand_out(most - len(records))
            share.settle(self._room, values=self._reserves(share.at.topic))
        return records

    def pause(self, at: TopicPartition, paused: bool) -> None:
        """Stop or resume fetching a partition and handing out its records, also of key
        ranges that are opened later.
        """
        if paused:
            self._paused.add(at)
        else:
            self._paused.discard(at)
        partition = self._partitions.get(at)
        if partition is not None:
            for share in partition.shares:
                share.paused = paused
            self._reader.hold(at, paused)

    def close_reader(self) -> None:
        """Stop reading for good."""
        self._reader.close()
        self._again.close()

    def _room(self) -> int:
        return self._most_bytes - sum(share.waiting.bytes for share in self._shares())

    def _shares(self) -> Iterator[Share]:
        for partition in self._partitions.values():
            yield from partition.shares

    def _place(self) -> None:
        """Set the reader's positions, and the key range of each of its slots, where
        something has changed.

        Also move the reader back for ranges whose records it dropped, and which can
        take records again.
        """
        self._changed |= {
            at
            for at, partition in self._partitions.items()
            if any(
                share.behind and not share.waiting and not share.stuck
                for share in partition.shares
            )
        }
        if not self._changed:
            return
        changed = {
            at: self._partitions[at] for at in self._changed & self._partitions.keys()
        }
        for partition in changed.values():
            partition.shares.sort(key=lambda share: share.id)
            for share in partition.shares:
                if (
                    share.behind
                    and not share.waiting
                    and (partition.at is None or not share.stuck)
                ):
                    share.behind = False
            if taking := [
                share.taken for share in partition.shares if not share.behind
            ]:
                partition.at = min(taking)
        positions = {
            at: Position(partition.at or 0)
            for at, partition in self._partitions.items()
        }
        if self._remade:
            self._reader.assign(
                {
                    at: position
                    for at, position in positions.items()
                    if at not in self._remade
                }
            )
            self._remade.clear()
        self._reader.assign(positions)
        for at, partition in changed.items():
            self._reader.route(at, [share.id.key_range for share in partition.shares])
            self._reader.hold(at, at in self._paused)
        self._changed.clear()
