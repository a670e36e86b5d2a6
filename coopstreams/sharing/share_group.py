"""Starts and stops the share threads of an instance, and reports their state.

One share group distributes the records of all sub-topologies with `order="none"`. A
topic belongs to one sub-topology, so a thread finds the program of a record by its
topic. The group's name does not change when sub-topologies get other numbers, so the
broker keeps the acknowledgements.

Relies on: `share_thread` (does the work), `instance.share_threads` (makes the threads).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from coopstreams.common.host import Host
from coopstreams.sharing.share_thread import ShareFigures, ShareThread, WorkFigures
from coopstreams.tasks.task_figures import Drop, drops
from coopstreams.topology.graph.nodes import Node

log = logging.getLogger(__name__)


def share_group(application: str) -> str:
    """Return the name of an application's share group."""
    return f"{application}-share"


class ShareStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sub-topology that reads by the share group, on one instance."""

    subtopology: int
    group: str
    topics: tuple[str, ...]
    threads: int
    waits: Annotated[
        str, Meta(description="Why no thread takes records; empty: they do.")
    ]
    acquired: Annotated[
        int, Meta(description="Records that are here and not acknowledged.")
    ] = 0
    processed: int = 0
    redelivered: Annotated[
        int, Meta(description="Records that had been delivered before.")
    ] = 0
    written: Mapping[str, int] = {}
    dropped: tuple[Drop, ...] = ()
    dead_letters: int = 0


class ShareMembers:
    """The share threads of an instance; none if no sub-topology has `order="none"`."""

    def __init__(
        self,
        group: str,
        threads: Sequence[ShareThread],
        host: Host,
    ) -> None:
        self._group = group
        self._threads = threads
        self._host = host

    def start(self) -> None:
        """Start all share threads."""
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Ask the threads to end: to wait for calls under way, and to release all other
        records.
        """
        for thread in self._threads:
            thread.ask_to_stop()

    def hurry(self) -> None:
        """Have no thread wait for calls. Signal handlers may call it."""
        for thread in self._threads:
            thread.hurry()

    def stop(self, give_up: float) -> None:
        """End the threads, and wait for it until `give_up` (a `Host.now`)."""
        self.ask_to_stop()
        for thread in self._threads:
            if not thread.join(max(0.1, give_up - self._host.now())):
                log.error(
                    "share thread %d did not stop in time; its records are delivered again when their locks end",
                    thread.number,
                )

    def figures(self) -> tuple[ShareFigures, ...]:
        """Return the published figures of each thread."""
        return tuple(thread.figures for thread in self._threads)

    @property
    def nodes(self) -> list[Node]:
        """The nodes of all sub-topologies that the threads process."""
        works = [work for thread in self._threads for work in thread.every]
        return [node for work in works for node in work.nodes]

    def status(self) -> tuple[ShareStatus, ...]:
        """Return the state of each sub-topology on this instance."""
        figures = self.figures()
        works = [work for thread in figures for work in thread.works]
        waits = [thread.waits for thread in figures]
        held = sum((Counter(thread.held) for thread in figures), Counter[str]())
        return tuple(
            _status(
                self._group,
                [work for work in works if work.subtopology == number],
                waits[0] if all(waits) else "",
                held,
            )
            for number in sorted({work.subtopology for work in works})
        )


def _status(
    group: str,
    works: Sequence[WorkFigures],
    waits: str,
    held: Mapping[str, int],
) -> ShareStatus:
    """Return the state of a sub-topology, summed over the threads that work on it.

    `waits`: why no thread takes records, or empty. `held`: the number of acquired
    records by topic.
    """
    topics = works[0].topics
    counts = [work.counts for work in works]
    written = Counter[str]()
    dropped = Counter[tuple[str, str]]()
    for each in counts:
        written.update(each.written)
        dropped.update(each.dropped)
    return ShareStatus(
        subtopology=works[0].subtopology,
        group=group,
        topics=topics,
        threads=len(works),
        waits=waits,
        acquired=sum(held.get(topic, 0) for topic in topics),
        processed=sum(each.processed for each in counts),
        redelivered=sum(work.redelivered for work in works),
        written=dict(written),
        dropped=drops(dropped),
        dead_letters=sum(each.dead_letters for each in counts),
    )
