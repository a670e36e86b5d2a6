"""Records with times of their own: the input of the cases whose windows turn over.

10,000 users, a record each two milliseconds. So a window of a minute has 30,000
records, three of each user in it, and a third of the records make an output, however
long a commit takes: also one of 100,000 records sees three windows come and go.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.running import write_timed

KEYS = 10_000
EACH_MS = 2
BEGIN_MS = 1_700_000_000_000

Event = tuple[bytes, bytes, int]
"""Key, value and timestamp: about 48 bytes of JSON, as in `running.inputs`."""


def events(records: int) -> Iterator[Event]:
    """Yield the records; the times ascend."""
    generator = random.Random(7)
    for number in range(records):
        user = generator.randrange(KEYS)
        yield (
            b"u%d" % user,
            b'{"user":"u%d","amount":%d,"n":%d}'
            % (user, generator.randrange(100), number),
            BEGIN_MS + number * EACH_MS,
        )


def sided(records: int) -> Iterator[tuple[bool, Event]]:
    """Yield the same records, each with whether it is one of the left stream of a join:
    half of them are, at random.
    """
    generator = random.Random(11)
    for event in events(records):
        yield generator.random() < 0.5, event


def fill_events(bootstrap: str, topic: str, records: int) -> None:
    """Write the records into a topic."""
    write_timed(bootstrap, ((topic, *event) for event in events(records)))


def fill_sides(bootstrap: str, left: str, right: str, records: int) -> None:
    """Write the records into the two topics of a join."""
    write_timed(
        bootstrap,
        ((left if is_left else right, *event) for is_left, event in sided(records)),
    )
