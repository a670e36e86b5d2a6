"""What is simulated: small topologies, what is written for them, and what must come out whatever happens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


def counts_told(rows: Rows) -> Mapping[bytes, list[int]]:
    """Return the counts that were told of each key, in order."""
    told: defaultdict[bytes, list[int]] = defaultdict(list)
    for key, value in rows:
        assert key is not None
        assert value is not None
        told[key].append(serdes.int64.decode(value))
    return told


def wrong_counts(program: Program, written: Sequence[bytes], rows: Rows, *, exactly_once: bool, whole: bool) -> list[str]:
    """Return what is wrong with the counts told so far, in words. `whole`: everything that was written should be counted by now."""
    should = Counter(program.key_of(key.decode()).encode() for key in written)
    told = counts_told(rows)
    wrong = []
    for key, numbers in told.items():
        if exactly_once and numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"{key!r} was counted {numbers}")
        if exactly_once and len(numbers) > should[key]:
            wrong.append(f"{key!r} was counted {len(numbers)} times, written {should[key]} times")
    for key, count in should.items() if whole else ():
        last = told[key][-1] if told.get(key) else 0
        if last < count:
            wrong.append(f"{key!r} was written {count} times, and counted {last}")
    return wrong


def wrong_states(rows: Rows, states: Iterable[tuple[str, bytes, int]], *, whole: bool) -> list[str]:
    """Return what is wrong with counts in databases (whose, key, count), given what was told: a database never has what does not count.

    `whole`: they are those of tasks that run, and nothing is left to do.
    """
    told = {key: len(numbers) for key, numbers in counts_told(rows).items()}
    return [
        f"the database of {where} has {key!r} {count} times, told were {told.get(key, 0)}"
        for where, key, count in states
        if count > told.get(key, 0) or (whole and count < told.get(key, 0))
    ]
