"""The oracles of databases and of queries.

databases   a row is one that its changelog has had, from a committed transaction
queries     the owner of a key answers with the current row, or with one no older than the last answer
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from coopstreams.log.log import Position
from coopstreams.log.memory.reader import MemoryReader
from coopstreams.log.memory.state import MemoryState
from coopstreams.state import layout
from coopstreams.state.database import Database
from coopstreams.state.views import KeyRangeView, StoredRow
from coopstreams.topology.columns import Columns, TopicPartition
from coopstreams.topology.keys import ALL_GROUPS, KeyRange
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.stores import StoreSpec
from tests.simulation import disk

ORACLES = {
    "members": "no member ends the transaction of another one that is in the group",
    "moves": "what has many rows is taken from an owner that stays only for who has caught up",
    "calls": "of a key, a record is asked about when every earlier one has had an answer",
    "results": "a result is one that a single task tells, and in its place",
    "births": "no record is born before the least of all time marks in front of it",
    "queries": "no answer has an older row than an answer that had come before its query began",
    "progress": "when nothing goes wrong any more, every result comes",
    "rows": "a database has rows that were committed, and no others",
    "stores": "in the end, stores have what those of a single task have",
    "answers": "no owner of a key answers with an older row than was answered before",
    "again": "a record whose commit has counted is not handed out again, to the same owner or a later one",
    "order": "records of a key are handed out in order, and none is passed over that nobody has done",
    "owners": "once a key range has a new owner, no commit counts that an earlier one begins",
    "errors": "no thread ends with an error",
    "turns": "time passes",
}
"""The oracles by name. A planted bug (`planted`) violates each of them."""

EXPIRES_MS = 3_600_000
"""Rows with a shorter retention may expire within a history."""
Told = tuple[bytes | None, int]
"""A value and its timestamp."""


class ViolationError(AssertionError):
    """An oracle is violated. `oracle`: which of `ORACLES`."""

    def __init__(self, oracle: str, wrong: str) -> None:
        super().__init__(f"{oracle}: {wrong}")
        self.oracle = oracle


class Part(NamedTuple):
    """A store in the database of a process. `where`: for messages."""

    where: str
    partition: int
    database: Database
    spec: StoreSpec
    ranges: Sequence[KeyRange]

    def rows(self) -> list[StoredRow]:
        """Return the rows of these ranges, as queries see them."""
        return list(KeyRangeView(self.database, self.spec, self.ranges).range())

    def everything(self) -> Iterator[StoredRow]:
        """Yield all rows of the store, expired windows included."""
        groups = ALL_GROUPS.numbers
        for key, data in self.database.scan(self.spec.name, groups, None, None):
            yield StoredRow(key, *layout.unpack(data))


class Changelogs:
    """The committed rows of changelogs, as far as they were read."""

    def __init__(self, state: MemoryState, application: str) -> None:
        self._state, self._application = state, application
        self._reader = MemoryReader(state, committed_only=True)
        self._read: dict[TopicPartition, Position] = {}
        self._rows: dict[TopicPartition, dict[bytes, list[Told]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._answered: dict[TopicPartition, dict[bytes, int]] = defaultdict(dict)
        """The number of the row of each key that was answered last."""
        self._right: dict[tuple[str, str, str], object] = {}
        """The content of each part that was found right: it is not checked again while
        it is unchanged.
        """

    def read(self, topic: str, *, made_anew: bool = False) -> None:
        """Read a changelog while it has everything; `made_anew`: its offsets will
        change.
        """
        changelogs = [
            TopicPartition(topic, number)
            for number in range(len(self._state.topic(topic).partitions))
        ]
        for changelog in changelogs:
            self._look(changelog)
        if made_anew:
            self._read |= dict.fromkeys(changelogs, Position(0))
            self._reader.assign(self._read)

    def before_deletion(self, partition: TopicPartition, offset: int) -> None:
        """Read the records below an offset, which are about to be deleted.

        Those of an open transaction are taken for committed.
        """
        if partition not in self._read:
            return
        self._look(partition)
        at = self._read[partition].offset
        if at < offset:
            columns, _, _ = self._state.partition(partition).read(
                at, offset, committed_only=False
            )
            self._add(partition, columns)
            self._read[partition] = Position(offset)
            self._reader.assign(self._read)

    def begin_anew(self) -> None:
        """Take it that the application was reset: its changelogs are deleted, and
        answers begin anew.
        """
        for changelog in list(self._read):
            self._look(changelog)
        for memory in (self._read, self._answered, self._right):
            memory.clear()
        self._reader.assign({})

    def wrong(self, part: Part) -> list[str]:
        """Return each row of a database that was never committed."""
        changelog = self._of(part)
        if not self._look(changelog):
            return []
        return self._asked("rows", part, disk.contents(part.database), self._wrong_rows)

    def wrong_answers(self, part: Part) -> list[str]:
        """Return the violations of a sequential history in this answer: all rows of
        owned ranges.

        Windows that expire soon are ignored: a new owner may show some that the earlier
        one has dropped.
        """
        if _soon_over(part.spec):
            return []
        changelog = self._of(part)
        decided, answered = self._look(changelog), self._answered[changelog]
        return self._asked(
            "answers",
            part,
            (
                disk.contents(part.database),
                self._read.get(changelog),
                decided,
                part.ranges,
                len(answered),
                sum(answered.values()),
            ),
            lambda part: self._wrong_answers(part, decided=decided),
        )

    def some_key(
        self, specs: Sequence[StoreSpec], random: Random
    ) -> tuple[StoreSpec, bytes, bytes] | None:
        """Return a key that a store has had, as its plain and its store key; None:
        there is none.
        """
        known = [
            (spec, rows)
            for spec in specs
            if not _soon_over(spec)
            for changelog, rows in self._rows.items()
            if rows and changelog.topic == self._topic(spec)
        ]
        if not known:
            return None
        spec, rows = random.choice(known)
        key = layout.store_key(spec.kind, random.choice(list(rows)))
        return spec, layout.plain_key(spec, key), key

    def floor(self, spec: StoreSpec, partition: int, key: bytes) -> int:
        """Return the number of the row of a store key that was answered last: none may
        be older from now on.
        """
        known = self._answered.get(TopicPartition(self._topic(spec), partition), {})
        return known.get(layout.changelog_key(spec.kind, key), -1)

    def wrong_answer(
        self,
        who: str,
        spec: StoreSpec,
        partition: int,
        key: bytes,
        row: Told | None,
        floor: int,
    ) -> list[str]:
        """Return the violation of a sequential history in the answer to a query that
        began at a `floor`.
        """
        changelog = TopicPartition(self._topic(spec), partition)
        decided, name = self._look(changelog), layout.changelog_key(spec.kind, key)
        return list(self._forbidden(who, changelog, name, row, floor, decided=decided))

    def _asked(
        self,
        what: str,
        part: Part,
        about: object,
        wrong: Callable[[Part], Iterator[str]],
    ) -> list[str]:
        """Return the violations; none if everything relevant is unchanged since it was
        right.
        """
        name = what, part.where, part.spec.name
        if self._right.get(name) == about:
            return []
        if not (found := list(wrong(part))):
            self._right[name] = about
        return found

    def _wrong_rows(self, part: Part) -> Iterator[str]:
        changelog = self._of(part)
        known = self._rows[changelog]
        for key, value, timestamp in part.everything():
            if (value, timestamp) not in known[
                layout.changelog_key(part.spec.kind, key)
            ]:
                yield f"the database of {part.where} has {value!r} of {key!r}, which {changelog} never had"

    def _wrong_answers(self, part: Part, *, decided: bool) -> Iterator[str]:
        changelog = self._of(part)
        answered = self._answered[changelog]
        view = KeyRangeView(part.database, part.spec, part.ranges)
        answer = {
            layout.changelog_key(part.spec.kind, key): (value, timestamp)
            for key, value, timestamp in view.range()
        }
        for key in self._rows[changelog]:
            if not view.owns(
                layout.plain_key(part.spec, layout.store_key(part.spec.kind, key))
            ):
                continue
            yield from self._forbidden(
                part.where,
                changelog,
                key,
                answer.get(key),
                answered.get(key, -1),
                decided=decided,
            )

    def _forbidden(
        self,
        who: str,
        changelog: TopicPartition,
        key: bytes,
        row: Told | None,
        last: int,
        *,
        decided: bool,
    ) -> Iterator[str]:
        """Yield the violation if the row must not be answered for the key after row
        `last`; otherwise note the row.
        """
        if row is None and last < 0:
            return  # in the answering instance's view, the key has not been written yet
        had, answered = self._rows[changelog][key], self._answered[changelog]
        at = next(
            (
                at
                for at in range(max(last, 0), len(had))
                if (had[at] if had[at][0] is not None else None) == row
            ),
            None,
        )
        if at is not None:
            answered[key] = max(at, answered.get(key, -1))
        # otherwise it may belong to a transaction without a marker yet
        elif decided or (
            row in had[: max(last, 0)] and not self._may_come(changelog, key, row)
        ):
            yield f"{who} answers {row} for {key!r} after {had[last] if last >= 0 else 'nothing'} was answered"

    def _may_come(
        self, changelog: TopicPartition, key: bytes, row: Told | None
    ) -> bool:
        """Return whether a transaction without a marker yet has written this row, like
        an earlier one.
        """
        stored = self._state.partition(changelog)
        columns, _, _ = stored.read(
            self._read[changelog].offset, stored.end, committed_only=False
        )
        rows = zip(columns.values, columns.timestamps, strict=True)
        return row is not None and any(
            at == key and told == row
            for at, told in zip(columns.keys, rows, strict=True)
        )

    def _topic(self, spec: StoreSpec) -> str:
        return spec.source or changelog_topic(self._application, spec.name)

    def _of(self, part: Part) -> TopicPartition:
        return TopicPartition(self._topic(part.spec), part.partition)

    def _look(self, changelog: TopicPartition) -> bool:
        """Read on; return whether all records are decided."""
        if changelog.topic not in self._state.topics:
            return False
        stored = self._state.partition(changelog)
        if changelog not in self._read:
            self._read[changelog] = Position(stored.start)
            self._reader.assign(self._read)
        news = (
            self._reader.fetch(1 << 20, 0)
            if self._read[changelog].offset < stored.stable_end
            else ()
        )
        for run in news:
            self._read[run.partition] = Position(run.next_offset)
            self._add(run.partition, run.columns)
        return stored.stable_end == stored.end

    def _add(self, changelog: TopicPartition, columns: Columns) -> None:
        rows = self._rows[changelog]
        records = zip(columns.keys, columns.values, columns.timestamps, strict=True)
        for key, value, timestamp in records:
            if key is not None:
                rows[key].append((value, timestamp))


def _soon_over(spec: StoreSpec) -> bool:
    return spec.retention_ms is not None and spec.retention_ms < EXPIRES_MS
