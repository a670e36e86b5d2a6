"""The demo's view of the application from outside: progress and answers over HTTP, ends
of topics from the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coopstreams.log.log import Log
from coopstreams.query.client import QueryClient
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import DevError, QueryError
from examples.demo.answers import Answers, Delay
from examples.demo.progress import HighestPositions, RunningRange, owned

STUCK_S = 90.0
PAGE = 5000

STAGES = {0: "delays by aircraft", 1: "delays by carrier, hour"}
"""The sub-topologies of the example, in the order in which records pass them."""
SOURCES = {0: ("flights", "planes"), 1: ("flights-by-carrier-repartition", "airlines")}
"""The source topics of each; the records of the first one are counted."""


@dataclass(slots=True)
class Run:
    """The known progress of the application. `total`: records to process, by stage."""

    log: Log
    total: dict[int, int]
    parts: dict[str, list[RunningRange]] = field(default_factory=dict)
    """The ranges of each process, by its url."""
    finished: set[int] = field(default_factory=set)
    _positions: HighestPositions = field(default_factory=HighestPositions)
    _moved: tuple[float, float] | None = None

    def look(self, queries: QueryClient, now: float) -> None:
        """Refresh the progress.

        Raises:
            DevError: nothing has moved for 90 s.
        """
        try:
            report = queries.status()
        except QueryError:
            pass  # the application is still starting
        else:
            self._positions.take(report)
            self.parts = owned(report)
            self._finish()
        if self._moved is None or self.fraction != self._moved[0]:
            self._moved = self.fraction, now
        elif now - self._moved[1] > STUCK_S:
            raise DevError(
                f"at {self.fraction:.0%} nothing has moved for {STUCK_S:.0f} s; the logs of the processes say more"
            )

    @property
    def done(self) -> dict[int, float]:
        """Records processed and committed, by stage."""
        return {
            number: self._done(number, total) for number, total in self.total.items()
        }

    @property
    def fraction(self) -> float:
        """The fraction of all the work that is done."""
        return sum(self.done.values()) / sum(self.total.values())

    def _done(self, number: int, total: int) -> float:
        return (
            total
            if number in self.finished
            else min(total, self._positions.records(number, SOURCES[number][0]))
        )

    def _finish(self) -> None:
        """Note the stages that are done.

        The topics of a stage have their final end only when the stage before is done,
        and are asked for it then.
        """
        for number, topics in SOURCES.items():
            if number not in self.finished:
                if not self._positions.done(
                    number,
                    {
                        topic: self.log.end_offset(TopicPartition(topic, 0))
                        for topic in topics
                    },
                ):
                    return
                self.finished.add(number)


def fetch(url: str, carriers: Iterable[str]) -> Answers:
    """Return all answers of the application: all aircraft as one range, the hour
    windows carrier by carrier.
    """
    with QueryClient(url) as queries:
        by_aircraft = {
            entry.key: Delay.of(entry.value)
            for entry in queries.range("delays-by-aircraft", page=PAGE)
        }
        by_hour = {
            (carrier, window.start): Delay.of(window.value)
            for carrier in carriers
            for window in queries.windows("delays-by-carrier", carrier)
        }
    return Answers(by_aircraft, by_hour)
