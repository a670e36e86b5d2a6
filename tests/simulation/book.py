"""The oracle of consumers: which records were handed out, done and committed, and what
violates the rules.

again    a committed record is not handed out again, to a later owner of its key range or to its committer
order    records of a key come in order, and no record is skipped that is not done
owners   once a key range has a new owner, no commit that an earlier owner begins succeeds
results  a record has at most one committed result

A topic may be deleted and made anew: its records are others then. A consumer that has
not noticed reads the new ones from its old position on; what it does with them counts
for nothing, because they are handed out again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from coopstreams.consumer import ConsumerRecord, KeyRange
from coopstreams.consumer.owned_range import OwnedRange
from coopstreams.topology.columns import Columns, TopicPartition


class Place(NamedTuple):
    """The partition and offset of a record. `made`: which of the topics of that name it
    is in, from 0 on.
    """

    at: TopicPartition
    offset: int
    made: int


def place(record: ConsumerRecord) -> Place:
    """Return the place of a record, whose value is the number of its topic."""
    return Place(
        TopicPartition(record.topic, record.partition),
        record.offset,
        int(record.value or b""),
    )


@dataclass(eq=False, slots=True)
class _Owned:
    """A key range of a partition with one of its owners, which opened it between the
    moments `after` and `since`.
    """

    by: str
    at: TopicPartition
    key_range: KeyRange
    after: int
    since: int
    handed: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The offsets that it has handed out, by key."""


class Book:
    """Everything observed. `denied`: keys that no consumer gets."""

    def __init__(self, denied: frozenset[bytes], now: Callable[[], float]) -> None:
        self.wrong: dict[str, list[str]] = {
            "again": [],
            "order": [],
            "owners": [],
            "results": [],
        }
        self._denied, self._now = denied, now
        self._count = 0
        """Numbers the events."""
        self._topics: dict[str, list[str]] = defaultdict(list)
        """The ids of the topics of each name."""
        self._written: dict[tuple[TopicPartition, int, bytes], list[int]] = defaultdict(
            list
        )
        self._done: set[Place] = set()
        self._committed: dict[Place, tuple[int, _Owned]] = {}
        self._opened: list[_Owned] = []
        self._owned: dict[OwnedRange, _Owned] = {}
        self._results: dict[Place, int] = {}
        self._last_result: dict[tuple[TopicPartition, int, bytes], int] = {}

    def made(self, topic: str, topic_id: str) -> None:
        """Note that a topic was made."""
        self._topics[topic].append(topic_id)

    def newest(self, topic: str) -> int:
        """Return the number of the latest topic of a name."""
        return len(self._topics[topic]) - 1

    def counts(self, record: ConsumerRecord) -> bool:
        """Whether a record is of the topic in which its key range was opened."""
        return place(record).made == self._opened_in(record.owned)

    def written(self, at: TopicPartition, offset: int, key: bytes) -> None:
        """Note that a record is in the log."""
        if key not in self._denied:
            self._written[at, self.newest(at.topic), key].append(offset)

    def moment(self) -> int:
        """Return a number above all earlier ones."""
        self._count += 1
        return self._count

    def opened(
        self, by: str, at: TopicPartition, key_range: KeyRange, after: int
    ) -> None:
        """Note that a consumer has opened a key range. `after`: the moment before the
        call, which may have paused.
        """
        self._opened.append(_Owned(by, at, key_range, after, self.moment()))

    def handed(self, by: str, record: ConsumerRecord) -> None:
        """Note that a consumer has got a record."""
        here, key, holder = place(record), record.key or b"", self._of(by, record.owned)
        if here.made < self._opened_in(record.owned):
            self._say(
                "order",
                f"{by} gets {here} of {record.owned}, and that topic was deleted before it began",
            )
        if not self.counts(record):
            return
        if here in self._committed:
            since, owner = self._committed[here]
            if since < holder.after or owner is holder:
                self._say(
                    "again",
                    f"{by} gets {here} of {record.owned}, which {owner.by} has committed",
                )
        earlier, mine = self._written[here.at, here.made, key], holder.handed[key]
        if mine and mine[-1] >= here.offset:
            self._say("order", f"{by} gets {here} of key {key!r} after {mine[-1]}")
        before = bisect_left(earlier, here.offset)
        if (
            before
            and (last := earlier[before - 1]) not in mine
            and here._replace(offset=last) not in self._done
        ):
            self._say(
                "order", f"{by} gets {here} of key {key!r}, and nobody has done {last}"
            )
        mine.append(here.offset)

    def done(self, record: ConsumerRecord) -> None:
        """Note that a consumer has done a record."""
        if self.counts(record):
            self._done.add(place(record))

    def committed(self, by: str, records: Iterable[ConsumerRecord], began: int) -> None:
        """Note that a commit of these has succeeded. `began`: the moment before it."""
        for record in filter(self.counts, records):
            here, holder = place(record), self._of(by, record.owned)
            since, other = self._committed.setdefault(here, (self.moment(), holder))
            if other is not holder:
                self._say(
                    "owners",
                    f"{by} commits {here} of {record.owned}, which {other.by} committed at {since}",
                )
            for later in self._opened:
                if (
                    later.at == here.at
                    and holder.since < later.after
                    and later.since < began
                    and later.key_range.overlaps(holder.key_range)
                ):
                    self._say(
                        "owners",
                        f"{by} commits {here} of {record.owned}, which {later.by} has opened since",
                    )

    def told(self, results: Columns) -> None:
        """Note committed results."""
        for key, value in zip(results.keys, results.values, strict=True):
            if not value:
                continue  # of a record that does not count
            topic, partition, offset, made = value.decode().split(":")
            here, name = (
                Place(TopicPartition(topic, int(partition)), int(offset), int(made)),
                key or b"",
            )
            self._results[here] = self._results.get(here, 0) + 1
            if self._results[here] > 1:
                self._say("results", f"{here} has {self._results[here]} results")
            series = here.at, here.made, name
            if self._last_result.get(series, -1) > here.offset:
                self._say(
                    "results",
                    f"{here} has its result after that of {self._last_result[series]}",
                )
            self._last_result[series] = here.offset

    def lacking(self, *, results: bool) -> list[str]:
        """Return the records of the latest topics that are not done, or are done
        without a result.
        """
        every = {
            Place(at, offset, made)
            for (at, made, _), offsets in self._written.items()
            for offset in offsets
            if made == self.newest(at.topic)
        }
        lacking = sorted(every - (self._results.keys() if results else self._done))
        return (
            [f"{len(lacking)} records are not done, the first is {lacking[0]}"]
            if lacking
            else []
        )

    def _opened_in(self, owned: OwnedRange) -> int:
        """Return the number of the topic in which a key range was opened."""
        topic = owned.at.topic
        return self._topics[topic].index(owned.progress.topic_ids[topic])

    def _of(self, by: str, owned: OwnedRange) -> _Owned:
        """Return the entry of an open key range: the latest opening of which the owner
        was informed.
        """
        if owned not in self._owned:
            self._owned[owned] = next(
                one
                for one in reversed(self._opened)
                if (one.by, one.at, one.key_range) == (by, owned.at, owned.id.key_range)
            )
        return self._owned[owned]

    def _say(self, oracle: str, what: str) -> None:
        self.wrong[oracle].append(what)
