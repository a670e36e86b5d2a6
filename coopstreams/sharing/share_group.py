"""The share threads of an instance: their state, and the reasons why they do not
progress.

One share group deals the records of all sub-topologies with `order="none"`: a topic
belongs to one sub-topology, so a thread finds the program of a record by its topic. The
group's name does not change when sub-topologies get other numbers, so the broker keeps
what is done.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from coopstreams.common.host import Host
from coopstreams.sharing.share_thread import ShareThread
from coopstreams.sharing.work import SharedWork
from coopstreams.status.model import ShareStatus, drops
from coopstreams.status.reasons import HealthCode, Reason
from coopstreams.tasks.running_functions import running_function
from coopstreams.tasks.tally import dropped

log = logging.getLogger(__name__)

SLOW_S = 3.0
"""A thread that has records and has finished none for this long reports it."""
STALLED_S = 30.0
"""After this long the instance is not live."""


def share_group(application: str) -> str:
    """Return the name of an application's share group."""
    return f"{application}-share"


class ShareMembers:
    """The share threads of an instance; empty without sub-topologies for them."""

    def __init__(
        self, group: str, threads: Sequence[ShareThread], limit_s: float, host: Host
    ) -> None:
        """`limit_s`: how long a function may take for a record before the instance is
        not live.
        """
        self._group = group
        self._threads = threads
        self._limit_s = limit_s
        self._host = host

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, give_up: float) -> None:
        """End the threads: wait for calls under way until `give_up` (a `Host.now`), and
        release all other records.
        """
        for thread in self._threads:
            thread.ask_to_stop()
        for thread in self._threads:
            if not thread.join(max(0.1, give_up - self._host.now())):
                log.error(
                    "share thread %d did not stop in time; its records are delivered again when their locks end",
                    thread.number,
                )

    def reasons(self) -> tuple[list[Reason], list[Reason]]:
        """Return why threads do not take records, or take long; first what makes the
        instance not live.
        """
        stalled: list[Reason] = []
        others: list[Reason] = []
        now = self._host.now()
        for thread in self._threads:
            name = f"share thread {thread.number}"
            if thread.waits:
                others.append(
                    Reason("share-group", f"{name} takes no records: {thread.waits}")
                )
            elif thread.pauses:
                others.append(Reason("calls-pause", f"{name}: {thread.pauses}"))
            elif thread.held and (seconds := now - thread.moved_at) > SLOW_S:
                message = f"{name} has {len(thread.held)} records and has finished none for {seconds:.0f} s"
                if thread.retrying:
                    others.append(
                        Reason(
                            "slow",
                            f"{message}: its failure handler has it try again later",
                        )
                    )
                elif thread.flushing:
                    others.append(
                        Reason(
                            "slow",
                            f"{message}: it waits for the brokers to take its results",
                        )
                    )
                elif function := self._function_of(thread):
                    code: HealthCode = (
                        "slow-function" if seconds > STALLED_S else "slow"
                    )
                    message += f"; it has run {function}"
                    past = seconds > self._limit_s
                    (stalled if past else others).append(
                        Reason("no-progress" if past else code, message)
                    )
                elif seconds > STALLED_S:
                    stalled.append(Reason("no-progress", message))
                else:
                    others.append(Reason("slow", message))
        return stalled, others

    def _function_of(self, thread: ShareThread) -> str:
        nodes = [node for work in thread.every for node in work.nodes]
        return running_function(thread.ident, nodes)

    @property
    def waiting(self) -> bool:
        """Whether a thread takes no records."""
        return any(thread.waits for thread in self._threads)

    def status(self) -> tuple[ShareStatus, ...]:
        """Return the state of each sub-topology."""
        of_each: dict[int, list[tuple[ShareThread, SharedWork]]] = {}
        for thread in self._threads:
            for work in thread.every:
                of_each.setdefault(work.id.subtopology, []).append((thread, work))
        return tuple(
            self._status(number, those) for number, those in sorted(of_each.items())
        )

    def _status(
        self, number: int, those: Sequence[tuple[ShareThread, SharedWork]]
    ) -> ShareStatus:
        works = [work for _, work in those]
        topics = works[0].topics
        held = [delivery for thread, _ in those for delivery in list(thread.held)]
        waits = [thread.waits for thread, _ in those]
        written: Counter[str] = Counter()
        left_out: Counter[tuple[str, str]] = Counter()
        for work in works:
            written.update(work.tally.written)
            left_out.update(dropped(work))
        return ShareStatus(
            subtopology=number,
            group=self._group,
            topics=topics,
            threads=len(those),
            waits=waits[0] if all(waits) else "",
            acquired=sum(topic in topics for topic, _, _ in held),
            processed=sum(work.processed for work in works),
            redelivered=sum(work.redelivered for work in works),
            written=dict(written),
            dropped=drops(left_out),
            dead_letters=sum(work.tally.dead_letters for work in works),
        )
