"""The oracle of results: those of one task in the test driver over the same records,
compared as strictly as each program allows.

    Counted    counts: exactly the driver's, in order for each key; at least once: no smaller ones
    Sessions   likewise; at least once: maybe of a session that contains the driver's
    Ordered    exactly the driver's; at least once: in its order, with repetitions
    Paired     the driver's in any order; at least once: with repetitions
    Alone      likewise; an unmatched record may be emitted earlier than in the driver
    Either     likewise, for both streams
    Parted     the driver's in any order; at least once: with repetitions, and records whose match is gone
    Matched    each record of a stream once, with some row that the table has had for its key
    Settled    the last result of each key is the driver's
    Stepwise   each count differs from the one before by at most one; there are as many as the driver's
    Latest     counts: some of the driver's, in its order, and the last one
    Final      counts, each emitted once, perhaps earlier than by the driver
    Silent     counts: each higher than the one before; at least of all that is in time by any partition's records
    Complete   final counts: of all records of the window, once the newest record of any partition closes it

Invariant: a result is judged by the records written before it; a missing one is found
at the end.
Source: docs/semantics.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from coopstreams import serdes
from coopstreams.state.views import KeyRangeView, StoredRow
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import WHOLE, partition_of

Key = bytes
Value = bytes | None
Rows = Sequence[tuple[Key, Value]]
"""Keys and values of a topic, those of one partition in order."""

SIZE_MS = 10_000
GRACE_MS = 5_000
"""The windows of `Silent`."""
PATIENT_SIZE_MS = 4_000
PATIENT_GRACE_MS = 6_000
"""The windows of `Complete`."""


class Written(NamedTuple):
    """A record of a source topic."""

    topic: str
    key: Key
    value: Value
    timestamp: int


class Answer:
    """The expected results of the records written so far, and the observed ones.

    `orders`: for each partition whose results are told by a driver of its own, the
    function that takes records as they are written, and returns those that this driver
    gets then. Empty: there is one driver, which gets the same records. One: all results
    are told by it.
    """

    def __init__(
        self,
        topology: Topology,
        settings: Mapping[str, Any],
        partitions: int,
        *,
        exactly_once: bool,
        orders: Sequence[Callable[[Sequence[Written]], Sequence[Written]]] = (),
    ) -> None:
        self.exactly_once = exactly_once
        self._orders = orders
        self.expected: dict[Key, list[Value]] = defaultdict(list)
        self.told: dict[Key, list[Value]] = defaultdict(list)
        self.written: dict[str, dict[Key, set[bytes]]] = defaultdict(
            lambda: defaultdict(set)
        )
        """The written values by topic and key; a deletion is empty bytes."""
        counts = {**dict.fromkeys(topology.source_topics, partitions), "out": 1}
        self._drivers = [
            TopologyTestDriver(topology, config=settings, partitions=counts)
            for _ in orders or (None,)
        ]
        self._results = [
            driver.output("out", serdes.raw, serdes.raw) for driver in self._drivers
        ]

    def close(self) -> None:
        """Close the drivers."""
        for driver in self._drivers:
            driver.close()

    def write(self, records: Iterable[Written]) -> None:
        """Note records that were written."""
        records = list(records)
        for record in records:
            self.written[record.topic][record.key].add(record.value or b"")
        for number, driver in enumerate(self._drivers):
            given = self._orders[number](records) if self._orders else records
            for record in given:
                driver.input(record.topic, serdes.raw, serdes.raw).send(
                    record.key, record.value, record.timestamp
                )
            for result in self._results[number].read():
                if self._is_told_by(number, result.key):
                    self.expected[result.key].append(result.value)

    def _is_told_by(self, number: int, key: Key) -> bool:
        """Return whether a driver tells the results of a key. That of a window begins
        with the key of its records, which has two bytes (`topologies.PAIRS`).
        """
        count = len(self._drivers)
        return count == 1 or partition_of(key[:2], count) == number

    def tell(self, rows: Rows) -> list[str]:
        """Note results; return the wrong ones, in words."""
        wrong = []
        for key, value in rows:
            if problem := self._problem(key, value):
                wrong.append(f"{key!r}: {problem}")
            self.told[key].append(value)
        return wrong

    def lacking(self) -> list[str]:
        """Return the results that are missing now."""
        return [
            f"{key!r}: {problem}"
            for key in self.expected
            if (problem := self._lack(key))
        ]

    def rows(self, store: str) -> list[StoredRow]:
        """Return the rows of a store."""
        (driver,) = self._drivers
        driver.commit()
        spec = next(
            spec
            for part in driver.topology.subtopologies
            for spec in part.stores
            if spec.name == store
        )
        databases = [
            database
            for (number, _), database in driver._databases.items()
            if spec in driver.topology.subtopologies[number].stores
        ]
        return sorted(
            row
            for database in databases
            for row in KeyRangeView(database, spec, [WHOLE]).range()
        )

    def _problem(self, key: Key, value: Value) -> str:
        raise NotImplementedError

    def _lack(self, key: Key) -> str:
        raise NotImplementedError

    def _out_of_order(self, key: Key, value: Value) -> str:
        """Return why this is not the driver's next result."""
        number, expected = len(self.told[key]), self.expected.get(key, [])
        if number < len(expected) and expected[number] == value:
            return ""
        due = _shown(expected[number]) if number < len(expected) else "nothing"
        return f"{_shown(value)} came after {_shown(self.told[key][-1]) if number else 'nothing'}, {due} was due"

    def _short(self, key: Key) -> str:
        told, expected = len(self.told[key]), len(self.expected[key])
        return (
            f"{told} results came, {_shown(self.expected[key][told])} is the next of {expected}"
            if told < expected
            else ""
        )

    def _other_last(self, key: Key) -> str:
        """Return why the last result is not the driver's."""
        told, last = [None, *self.told[key]][-1], self.expected[key][-1]
        return (
            "" if told == last else f"{_shown(told)} is the last, it is {_shown(last)}"
        )


class Counted(Answer):
    """Results are counts of records."""

    def _problem(self, key: Key, value: Value) -> str:
        if self.exactly_once:
            return self._out_of_order(key, value)
        return ""

    def _lack(self, key: Key) -> str:
        if self.exactly_once:
            return self._short(key)
        # a session may have been merged with one of uncommitted records, which are
        # processed again
        told, last = (
            [value for value in self.told[key] if value is not None],
            self.expected[key][-1],
        )
        enough = last is None or (
            told and serdes.int64.decode(told[-1]) >= serdes.int64.decode(last)
        )
        return (
            ""
            if enough
            else f"{_shown(told[-1]) if told else 'nothing'} was told, it is {_shown(last)}"
        )


class Sessions(Counted):
    """Results are counts of the records of sessions. Under at-least-once, a repeated
    record may merge with a session that would have been closed at its first processing.
    """

    def _lack(self, key: Key) -> str:
        problem = super()._lack(key)
        if self.exactly_once or not problem:
            return problem
        name, end, start = key[:-16], key[-16:-8], key[-8:]
        longer = (
            each for each, told in self.told.items() if told and each[:-16] == name
        )
        return (
            ""
            if any(each[-8:] <= start and end <= each[-16:-8] for each in longer)
            else problem
        )


class Ordered(Answer):
    """Results name the record that they come from."""

    def _problem(self, key: Key, value: Value) -> str:
        if self.exactly_once:
            return self._out_of_order(key, value)
        return (
            ""
            if value in self.expected.get(key, ())
            else f"{_shown(value)} is nobody's result"
        )

    def _lack(self, key: Key) -> str:
        if self.exactly_once:
            return self._short(key)
        told = iter(self.told[key])
        return next(
            (
                f"{_shown(due)} did not come in its place"
                for due in self.expected[key]
                if due not in told
            ),
            "",
        )


class Paired(Answer):
    """Results name the two records that they come from."""

    def _problem(self, key: Key, value: Value) -> str:
        expected, told = self.expected.get(key, ()), self.told[key]
        if value not in expected:
            return f"{_shown(value)} is no pair"
        return (
            f"{_shown(value)} was told twice"
            if self.exactly_once and value in told
            else ""
        )

    def _lack(self, key: Key) -> str:
        missing = (Counter(self.expected[key]) - Counter(self.told[key])).elements()
        return ", ".join(map(_shown, missing))


class Alone(Paired):
    """Results are `n:m`, two records, or `n:`, a record of the left stream without a
    match, or without one in time.
    """

    def _problem(self, key: Key, value: Value) -> str:
        assert value is not None
        if not value.endswith(b":"):
            return super()._problem(key, value)
        if value.rstrip(b"?:") not in self.written["left"][key]:
            return f"record {_shown(value)} was never written"
        return (
            f"{_shown(value)} was told twice"
            if self.exactly_once and value in self.told[key]
            else ""
        )


class Either(Alone):
    """As `Alone`, and also `:m`: a record of the right stream without a match, or
    without one in time.
    """

    def _problem(self, key: Key, value: Value) -> str:
        if value is None or not value.startswith(b":"):
            return super()._problem(key, value)
        if value[1:] not in self.written["right"][key]:
            return f"record {_shown(value)} was never written"
        return (
            f"{_shown(value)} was told twice"
            if self.exactly_once and value in self.told[key]
            else ""
        )


class Parted(Paired):
    """Results are `n:m`, two records, or `n:`, a record of the left stream without a
    match: both streams come in a known order, but a record may be emitted earlier than
    in the driver if it has no match there, either. Under at-least-once, the match of a
    repeated record may have expired.
    """

    def _problem(self, key: Key, value: Value) -> str:
        expected, told = self.expected.get(key, ()), self.told[key]
        if value in expected or not _has_no_match(value):
            wrong = super()._problem(key, value)
            alone = _record(value) + b":"
            if self.exactly_once and alone in told and alone not in expected:
                return f"{_shown(value)} was told after {_shown(alone)}"
            return wrong
        if not self.exactly_once:
            return ""
        if value in told:
            return f"{_shown(value)} was told twice"
        pairs = [each for each in expected if _record(each) == _record(value)]
        return f"{_shown(value)} was told, it has {pairs}" if pairs else ""


class Matched(Answer):
    """Results are `n:m`: a record, and the row that it was joined with, if any."""

    def _problem(self, key: Key, value: Value) -> str:
        assert value is not None
        record, _, row = value.partition(b":")
        told, due = (
            len(self.told[key]),
            [_record(each) for each in self.expected.get(key, ())],
        )
        if row and row not in self.written["table"][key]:
            return f"row {_shown(row)} was never written"
        if record not in due:
            return f"record {_shown(record)} was never written"
        return (
            f"record {_shown(record)} is not number {told}"
            if self.exactly_once and (told >= len(due) or due[told] != record)
            else ""
        )

    def _lack(self, key: Key) -> str:
        told = set(map(_record, self.told[key]))
        return ", ".join(
            _shown(record)
            for record in map(_record, self.expected[key])
            if record not in told
        )


class Settled(Answer):
    """Results are `n:m`, the latest of two rows, or `n:None`. They follow two topics,
    read in no fixed order.
    """

    right_alone = False
    """Whether results may be `None:m`."""

    def _problem(self, key: Key, value: Value) -> str:
        if value is None:
            return ""
        left, _, right = value.partition(b":")
        rights = set[bytes]().union({b"None"}, *self.written["right"].values())
        known = left in self.written["left"][key] or (
            self.right_alone and left == b"None" != right
        )
        if not known or right not in rights:
            return f"{_shown(value)} is of no two rows"
        return (
            f"{_shown(value)} was told twice"
            if self.exactly_once and value in self.told[key]
            else ""
        )

    def _lack(self, key: Key) -> str:
        return self._other_last(key)


class SettledOuter(Settled):
    """As `Settled`; results may also be `None:m`."""

    right_alone = True


class SettledInCache(Settled):
    """As `Settled`, with a record cache: no result of a row that comes and goes between
    two commits.
    """

    def _lack(self, key: Key) -> str:
        gone = (
            self.expected[key][-1] is None and not self.exactly_once
        )  # docs/semantics.md, Quirks
        return "" if gone else self._other_last(key)


class SettledOuterInCache(SettledInCache):
    """As `SettledInCache`; results may also be `None:m`."""

    right_alone = True


class Stepwise(Counted):
    """Results are counts of rows. Each record removes a row, adds one or both, in any
    order.
    """

    def _problem(self, key: Key, value: Value) -> str:
        if value is None or len(value) != 8:
            return f"{_shown(value)} is no number"
        told, now = self.told[key], serdes.int64.decode(value)
        before = serdes.int64.decode(told[-1] or bytes(8)) if told else 0
        step = not self.exactly_once or (
            abs(now - before) <= 1 and len(told) < len(self.expected[key])
        )
        return (
            ""
            if step
            else f"{now} came after {before}, number {len(told)} of {len(self.expected[key])}"
        )

    def _lack(self, key: Key) -> str:
        if not self.exactly_once:
            return "" if self.told[key] else "nothing was told"
        return self._other_last(key)


class LastCounts(Stepwise):
    """As `Stepwise`, where updates of rows are left out: a count may change by more,
    and a group may never be told of whose rows none is left.
    """

    def _problem(self, key: Key, value: Value) -> str:
        if value is not None and len(value) != 8:
            return f"{_shown(value)} is no number"
        return ""

    def _lack(self, key: Key) -> str:
        nothing = (None, bytes(8))
        if self.exactly_once and not (
            self.expected[key][-1] in nothing and [None, *self.told[key]][-1] in nothing
        ):
            return self._other_last(key)
        return ""


class LastRows(Ordered):
    """As `Ordered`, where some updates of a row are left out: the others in order, and
    the last one.
    """

    def _problem(self, key: Key, value: Value) -> str:
        if self.exactly_once and not _in_order(
            [*self.told[key], value], self.expected.get(key, ())
        ):
            return f"{_shown(value)} did not come in its place behind {list(map(_shown, self.told[key]))}"
        return super()._problem(key, value) if not self.exactly_once else ""

    def _lack(self, key: Key) -> str:
        gone = (
            self.expected[key][-1] is None and not self.exactly_once
        )  # docs/semantics.md, Quirks
        return "" if gone else self._other_last(key)


class Latest(Counted):
    """Results are counts of records: the driver's latest when they were committed."""

    def _problem(self, key: Key, value: Value) -> str:
        if not self.exactly_once or _in_order(
            [*self.told[key], value], self.expected.get(key, ())
        ):
            return ""
        return f"{_shown(value)} did not come in its place behind {list(map(_shown, self.told[key]))}"

    def _lack(self, key: Key) -> str:
        if not self.exactly_once:
            return super()._lack(key)
        return self._other_last(key)


class Final(Latest):
    """Results are final counts of records."""

    def _problem(self, key: Key, value: Value) -> str:
        if value is None or len(value) != 8:
            return f"{_shown(value)} is no number"
        again = self.exactly_once and self.told[key]
        return (
            f"{_shown(value)} was told after {_shown(self.told[key][-1])}"
            if again
            else ""
        )


class Silent(Counted):
    """Results are counts of the records of a window, of which some may be late: nobody
    knows for how long partitions were silent. What is in time by the newest record of
    all partitions that was written before it counts in any case.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._most: Counter[Key] = Counter()
        self._least: Counter[Key] = Counter()
        self._newest = -1

    def write(self, records: Iterable[Written]) -> None:
        records = list(records)
        super().write(records)
        for record in records:
            self._newest = max(self._newest, record.timestamp)
            start = record.timestamp - record.timestamp % SIZE_MS
            key = record.key[:1] + b"x" + start.to_bytes(8)
            self._most[key] += 1
            self._least[key] += start + SIZE_MS + GRACE_MS > self._newest

    def lacking(self) -> list[str]:
        return [
            f"{key!r}: {self._last(key)} is the last, at least {least} are in time"
            for key, least in self._least.items()
            if self._last(key) < least
        ]

    def _problem(self, key: Key, value: Value) -> str:
        told = -1 if value is None or len(value) != 8 else serdes.int64.decode(value)
        last = self._last(key)
        due = last < told <= self._most[key]
        if due or (told > 0 and not self.exactly_once):
            return ""
        return f"{_shown(value)} of {self._most[key]} came after {last}"

    def _last(self, key: Key) -> int:
        told = self.told[key]
        return serdes.int64.decode(told[-1] or bytes(8)) if told else 0


class Complete(Answer):
    """Results are final counts of the records written to each window, in whatever
    partition. No record is late. A window closes when the newest record of all
    partitions closes it: silent ones do not hold it.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._counts: Counter[Key] = Counter()
        self._newest = -1

    def write(self, records: Iterable[Written]) -> None:
        records = list(records)
        super().write(records)
        for record in records:
            start = record.timestamp - record.timestamp % PATIENT_SIZE_MS
            self._counts[record.key[:1] + b"x" + start.to_bytes(8)] += 1
            self._newest = max(self._newest, record.timestamp)

    def lacking(self) -> list[str]:
        return [
            f"{key!r}: nothing was told, it is {count}"
            for key, count in self._counts.items()
            if self._is_closed(key) and not self.told[key]
        ]

    def _is_closed(self, key: Key) -> bool:
        start = int.from_bytes(key[-8:])
        return start + PATIENT_SIZE_MS + PATIENT_GRACE_MS <= self._newest

    def _problem(self, key: Key, value: Value) -> str:
        if not self._is_closed(key):
            return f"{_shown(value)} came before the window had closed"
        told = -1 if value is None or len(value) != 8 else serdes.int64.decode(value)
        count = self._counts[key]
        if not self.exactly_once:
            return "" if told >= count or self.told[key] else f"{told} of {count}"
        again = (
            f" was told after {_shown(self.told[key][-1])}" if self.told[key] else ""
        )
        return "" if told == count and not again else f"{told} of {count}{again}"


def _in_order(some: Sequence[Value], of: Sequence[Value]) -> bool:
    """Return whether these are some of the results, in their order."""
    left = iter(of)
    return all(each in left for each in some)


def _has_no_match(value: Value) -> bool:
    return value is not None and value.endswith(b":")


def _record(value: Value) -> bytes:
    return (value or b"").partition(b":")[0]


def _shown(value: Value) -> str:
    if value is not None and len(value) == 8 and value[0] == 0:
        return str(serdes.int64.decode(value))
    return repr(value)
