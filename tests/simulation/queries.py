"""Queries by key in a history: any running process is asked, finds the owner as its
query server would, and reads there or asks the owner.

Real are the backend of an instance (`Serving`), the router, the check of a forwarded
request, and the reader, which checks after the read that the range was owned all the
time. HTTP is not: requests between processes take time, and a process that has ended,
or is paused or suspended, does not answer.

Invariant (the oracle): no answer has an older row than an answer that had come before
its query began. Another error than `TASK_MOVING` is wrong, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty
from random import Random
from typing import Any

from coopstreams.instance.serving import Serving
from coopstreams.query.backend import StoreInfo
from coopstreams.query.local_reads import Views, instance_to_ask
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.peers import APPLICATION, GENERATION, TARGET, check_hop
from coopstreams.query.problems import moving
from coopstreams.query.router import Asked, KeyLocation, locate
from coopstreams.topology.errors import QueryError
from coopstreams.topology.stores import StoreSpec
from tests.simulation.fibers import Scheduler
from tests.simulation.oracles import Changelogs, Told
from tests.simulation.process import Process

EVERY_S = 2.0
"""Mean time between two queries."""
READ_S = 0.02
"""Mean time of a read in threads, before and after the look-up."""


class Queries:
    """Queries at random times. `living`: the processes that have not ended."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        latency_s: float,
        application: str,
        changelogs: Changelogs,
        living: Callable[[], Sequence[Process]],
    ) -> None:
        self._scheduler, self._random, self._latency_s = scheduler, random, latency_s
        self._application, self._changelogs, self._living = (
            application,
            changelogs,
            living,
        )
        self.wrong: list[str] = []
        self.answered = self.refused = 0
        self._wait()

    def _wait(self) -> None:
        self._scheduler.at(
            self._scheduler.now + self._random.expovariate(1 / EVERY_S), self._ask
        )

    def _ask(self) -> None:
        self._wait()
        serving = [
            one
            for one in self._living()
            if one.serving is not None and not one.machine.paused
        ]
        if not serving:
            return
        process = self._random.choice(serving)
        if (
            wanted := self._changelogs.some_key(process.specs(), self._random)
        ) is not None:
            process.machine.thread(
                lambda: self._query(process, *wanted), "query"
            ).start()

    def _query(
        self, process: Process, spec: StoreSpec, plain: bytes, stored: bytes
    ) -> None:
        """Query a row, and check the answer."""
        if process.serving is None:
            return
        store = process.serving.stores()[spec.name]
        at = locate(store, plain)
        floor = self._changelogs.floor(spec, at.partition, stored)
        try:
            row = self._by_key(process, store, at, stored, "any")
        except QueryError as error:
            if error.code != "TASK_MOVING":
                self.wrong.append(
                    f"{process.machine.name} is asked for {plain!r}: {error}"
                )
            self.refused += 1
            return
        self.answered += 1
        self.wrong += self._changelogs.wrong_answer(
            process.machine.name, spec, at.partition, stored, row, floor
        )

    def _by_key(
        self,
        process: Process,
        store: StoreInfo,
        at: KeyLocation,
        stored: bytes,
        asked: Asked,
    ) -> Told | None:
        """Return a row as `QueryService` does: read here, or by the owner.

        Raises:
            QueryError: no instance can answer now.
        """
        placement = _serving(process).placement()
        peer = instance_to_ask(placement, store, at, asked)
        if peer is None:
            return self._read(process, store, at, stored)
        owner, inbox = peer.id, process.machine.inbox()
        headers = {
            APPLICATION: self._application,
            TARGET: owner,
            GENERATION: str(placement.generation),
        }
        self._later(partial(self._arrive, owner, headers, store, at, stored, inbox.put))
        try:
            told = inbox.get(timeout=RequestLimits().forward_s)
        except Empty:
            raise moving(f"instance {owner} does not answer") from None
        if isinstance(told, QueryError):
            raise told
        return told  # type: ignore[no-any-return]

    def _read(
        self, process: Process, store: StoreInfo, at: KeyLocation, stored: bytes
    ) -> Told | None:
        process.reads += 1
        try:
            with Views(_serving(process)) as views:
                view, _ = views.of(store, at)
                process.machine.sleep(self._random.expovariate(1 / READ_S))
                row = view.store.get(stored)
                process.machine.sleep(self._random.expovariate(1 / READ_S))
            return row
        finally:
            process.reads -= 1

    def _arrive(self, owner: str, headers: Mapping[str, str], *asked: Any) -> None:
        """Have the owner answer a forwarded request, if its process runs."""
        for process in self._living():
            if (
                process.serving is not None
                and process.serving.placement().here == owner
            ):
                process.machine.thread(
                    partial(self._answer, process, headers, *asked), "query"
                ).start()
                return

    def _answer(
        self,
        process: Process,
        headers: Mapping[str, str],
        store: StoreInfo,
        at: KeyLocation,
        stored: bytes,
        tell: Callable[[object], None],
    ) -> None:
        try:
            check_hop(headers, _serving(process).placement(), self._application)
            mine = _serving(process).stores()[store.name]
            told: object = self._by_key(process, mine, at, stored, "forwarded")
        except QueryError as error:
            told = error
        self._later(partial(tell, told))

    def _later(self, then: Callable[[], None]) -> None:
        self._scheduler.at(
            self._scheduler.now + self._random.expovariate(1 / self._latency_s), then
        )


def _serving(process: Process) -> Serving:
    """Return the query backend of a process.

    Raises:
        QueryError: it stops.
    """
    if process.serving is None:
        raise moving(f"{process.machine.name} answers no more")
    return process.serving
