"""What is simulated: small topologies, what is written for them, and what must come out whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from coopstreams import StreamsBuilder, Topology, serdes

APPLICATION = "sim"
KEYS = [f"{letter}{number}" for letter in "abcd" for number in range(4)]
Rows = Sequence[tuple[bytes | None, bytes | None]]
"""Keys and values of a topic, those of one partition in order."""


@dataclass(frozen=True, slots=True)
class Program:
    """A topology with one source and one sink, and what it makes of keys written."""

    build: Callable[[], Topology]
    key_of: Callable[[str], str]
    """The key under which a record that was written is counted."""


def _counted() -> Topology:
    builder = StreamsBuilder(APPLICATION)
    builder.stream("in", key=serdes.text, value=serdes.raw).group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()


def _recounted() -> Topology:
    builder = StreamsBuilder(APPLICATION)
    stream = builder.stream("in", key=serdes.text, value=serdes.raw)
    grouped = stream.group_by(lambda key, value: key[:1] + "x", name="by-prefix", key=serdes.text, value=serdes.raw)
    grouped.count(store="counts").to_stream().to("out")
    return builder.build()


PROGRAMS = {
    "a count": Program(_counted, lambda key: key),
    "a count behind a repartition": Program(_recounted, lambda key: key[:1] + "x"),
}


def written(random: Random, number: int) -> tuple[bytes, bytes]:
    """Return a record."""
    return random.choice(KEYS).encode(), b"%d" % number


@dataclass
class Counts:
    """What was written, and what was told of it, as far as it was looked at."""

    program: Program
    exactly_once: bool
    written: Counter[bytes] = field(default_factory=Counter)
    last: dict[bytes, int] = field(default_factory=dict)
    """The last count of each key."""

    def write(self, keys: Iterable[bytes]) -> None:
        """Take note of records that were written."""
        self.written.update(self.program.key_of(key.decode()).encode() for key in keys)

    def tell(self, rows: Rows) -> list[str]:
        """Take note of results; return what is wrong with them."""
        wrong = []
        for key, value in rows:
            assert key is not None
            assert value is not None
            count, before = serdes.int64.decode(value), self.last.get(key, 0)
            if self.exactly_once and count != before + 1:
                wrong.append(f"{key!r} was counted {count} after {before}")
            if self.exactly_once and count > self.written[key]:
                wrong.append(f"{key!r} was counted {count} times, written {self.written[key]} times")
            self.last[key] = count
        return wrong

    def lacking(self) -> list[str]:
        """Return what was written and is not counted."""
        return [
            f"{key!r} was written {count} times, and counted {self.last.get(key, 0)}"
            for key, count in self.written.items()
            if self.last.get(key, 0) < count
        ]

    def wrong_states(self, states: Iterable[tuple[str, bytes, int]], *, whole: bool) -> list[str]:
        """Return what is wrong with counts in databases (whose, key, count): a database never has what does not count.

        `whole`: they are those of tasks that run, and nothing is left to do.
        """
        return [
            f"the database of {where} has {key!r} {count} times, told were {self.last.get(key, 0)}"
            for where, key, count in states
            if count > self.last.get(key, 0) or (whole and count < self.last.get(key, 0))
        ]
