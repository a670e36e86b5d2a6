"""Another application whose commits are in the same partition of the commit topic: its
records, and transactions that it leaves open for a while.

Invariant (its oracle): the group under test ends none of its transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from coopstreams.commit.record import (
    PARTITIONS,
    CommitKey,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
    partition_of,
)
from coopstreams.log.memory.writer import MemoryWriter
from coopstreams.topology.errors import FencedError
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.simulation.fibers import Scheduler
from tests.simulation.kafka.cluster import Cluster

EVERY_S = 3.0
"""Mean time between two commits."""
OPEN_S = (0.1, 2.0, 10.0, None)
"""How long a transaction stays open; None: its writer dies, and the coordinator ends it
at its time limit.
"""


class Neighbour:
    """Commits at random times. `opens`: its transactions stay open, up to the time
    limit of the coordinator.
    """

    def __init__(
        self,
        cluster: Cluster,
        application: str,
        scheduler: Scheduler,
        random: Random,
        say: Callable[[str], None],
        *,
        opens: bool,
    ) -> None:
        self._state, self._scheduler, self._random = cluster.state, scheduler, random
        self._say, self._opens = say, opens
        self._number = partition_of(application, PARTITIONS)
        names = (f"neighbour-{number}" for number in count())
        self._group = next(
            name for name in names if partition_of(name, PARTITIONS) == self._number
        )
        self.wrong: list[str] = []
        self._commits = 0
        self._ended = False
        self._wait()

    def end(self) -> None:
        """Begin no further transaction."""
        self._ended = True

    def _wait(self) -> None:
        self._scheduler.at(
            self._scheduler.now + self._random.expovariate(1 / EVERY_S), self._commit
        )

    def _commit(self) -> None:
        if self._ended:
            return
        self._wait()
        if COMMIT_TOPIC not in self._state.topics:
            return
        self._commits += 1
        writer = MemoryWriter(self._state, f"{self._group}-{self._commits}")
        writer.begin()
        self._append(writer)
        open_s = self._random.choice(OPEN_S) if self._opens else 0.0
        if open_s is None:
            self._say(f"{self._group} dies with an open transaction")
            return
        if not open_s:
            writer.commit(0.0)
            return
        self._say(f"{self._group} leaves a transaction open for {open_s:g} s")
        self._scheduler.at(self._scheduler.now + open_s, lambda: self._close(writer))

    def _append(self, writer: MemoryWriter) -> None:
        key = CommitKey(self._group, "in", 0, WHOLE, self._commits, 1)
        value = CommitValue(self._group, (Segment(WHOLE, self._commits),))
        writer.append(
            COMMIT_TOPIC,
            [encode_key(key)],
            [encode_value(value)],
            [0],
            partitions=self._number,
        )

    def _close(self, writer: MemoryWriter) -> None:
        try:
            writer.flush(0.0)
            if self._random.random() < 0.5:
                writer.commit(0.0)
            else:
                writer.abort()
        except FencedError:
            self.wrong.append(f"the open transaction of {self._group} was ended")
