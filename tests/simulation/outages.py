"""Faults of brokers: they end, pause, resume with outdated leaderships, and give up
leaderships.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.fibers import Scheduler
from tests.simulation.group import Group
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.plan import Where


class Outages:
    """Causes faults at random, of one broker at a time.

    `name`: the group's. `stir`: moves tasks; called when a broker is back, because its
    outdated view matters only to opening tasks.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: Group,
        name: str,
        scheduler: Scheduler,
        random: Random,
        say: Callable[[str], None],
        stir: Callable[[], None],
    ) -> None:
        self._cluster, self._group, self._name = cluster, group, name
        self._scheduler, self._random, self._say, self._stir = (
            scheduler,
            random,
            say,
            stir,
        )
        self._troubled: int | None = None
        """The broker with a fault."""
        self._stopped = False
        """Whether the broker was stopped: when it returns, it has to load its groups
        and transactional ids.
        """
        self._number = 0

    def happen(self) -> None:
        """Cause a fault of a broker or of leaderships."""
        brokers, random = self._cluster.brokers, self._random
        if self._troubled is not None or random.random() < 0.3:
            led = [
                where
                for broker in range(brokers.count)
                for where in brokers.led_by(broker)
                if broker not in brokers.away
            ]
            trusted = [
                broker for broker in range(brokers.count) if broker != self._troubled
            ]
            if led:
                where, broker = random.choice(led), random.choice(trusted)
                self._change(
                    "moves",
                    lambda: self._cluster.do("move", where, broker),
                    f"{where} to broker {broker}",
                    lambda: [where],
                )
            return
        broker = self._troubled = random.randrange(brokers.count)
        self._stopped = random.random() < 0.4
        self._change(
            "ends" if self._stopped else "stands still",
            lambda: self._cluster.do("stop" if self._stopped else "pause", broker),
            f"broker {broker}",
        )
        after = random.choice((0.05, 0.5, 6.0))
        if random.random() < 0.8:
            led_here = lambda: brokers.led_by(broker)  # noqa: E731
            self._later(
                after,
                "is replaced",
                lambda: self._cluster.do("fail_over", broker),
                f"broker {broker}",
                led_here,
            )
        after += random.choice((0.05, 2.0, 12.0))
        self._later(after, "is back", self._back, f"broker {broker}")
        if random.random() < 0.5:
            self._later(
                after, "is asked by whoever opens tasks", self._stir, f"broker {broker}"
            )
        self._later(
            after + random.choice((0.0, 1.0, 10.0)),
            "knows who leads",
            self._learnt,
            f"broker {broker}",
        )

    def end(self) -> None:
        """Make all brokers answer, with current views."""
        self._number += 1
        if self._troubled is not None:
            self._back()
            self._learnt()

    def _back(self) -> None:
        assert self._troubled is not None
        self._cluster.do("start", self._troubled)
        if (
            self._stopped
            and self._cluster.brokers.leader(self._name).broker == self._troubled
        ):
            self._group.load()

    def _learnt(self) -> None:
        assert self._troubled is not None
        self._cluster.do("learn", self._troubled)
        self._troubled = None

    def _later(
        self,
        seconds: float,
        what: str,
        how: Callable[[], object],
        whom: str,
        moved: Callable[[], list[Where]] = list,
    ) -> None:
        number = self._number

        def then() -> None:
            if self._number == number:
                self._change(what, how, whom, moved)

        self._scheduler.at(self._scheduler.now + seconds, then)

    def _change(
        self,
        what: str,
        how: Callable[[], object],
        whom: str,
        moved: Callable[[], list[Where]] = list,
    ) -> None:
        group_moves = self._name in moved()
        self._say(f"{whom} {what}")
        how()
        if group_moves:
            self._group.load()
