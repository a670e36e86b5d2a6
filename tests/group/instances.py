"""Instances of an application without tasks: a member of a real group, a control
thread, and a ledger of open ranges.

These tests check Kafka's own coordinator. `tests.simulation.group` is its model, for
tests of whole instances.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from coopstreams.common.host import SYSTEM, Host
from coopstreams.dev.process import wait_until
from coopstreams.group.assignor import assign
from coopstreams.group.coordinator import connector
from coopstreams.group.coordinator_interface import Identity
from coopstreams.group.members import Cluster, MemberInfo
from coopstreams.group.membership import (
    Assigned,
    GroupEvent,
    GroupMember,
    Lost,
    Participant,
    Refused,
    Timings,
)
from coopstreams.log.log import GroupFence
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import AssignmentError
from coopstreams.topology.keys import check_tiling
from coopstreams.topology.task_id import TaskId

PATIENCE_S = 90.0
CALM = Timings(session=60_000, heartbeat=200, patience=10_000)
"""A machine that pauses for some seconds costs no member its membership."""
QUICK = Timings(session=6000, heartbeat=200)
"""Timings of members that are killed: the group notices within six seconds."""


@dataclass
class Ledger:
    """The tasks that each instance has open. `clashes`: key ranges that two instances
    had open at the same time.
    """

    partitions: int
    open: dict[str, set[TaskId]] = field(default_factory=dict)
    clashes: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def opened(self, name: str, task: TaskId) -> None:
        with self.lock:
            self.clashes += [
                f"{name} opened {task} while {other} had {its}"
                for other, tasks in self.open.items()
                for its in tasks
                if other != name and task.conflicts(its)
            ]
            self.open.setdefault(name, set()).add(task)

    def closed(self, name: str, *tasks: TaskId) -> None:
        with self.lock:
            self.open.setdefault(name, set()).difference_update(tasks)

    def died(self, name: str) -> None:
        with self.lock:
            self.open.pop(name, None)

    def complete(self, *names: str) -> bool:
        """Whether exactly these instances have every key of every partition open, once."""
        with self.lock:
            tasks = [task for mine in self.open.values() for task in mine]
            idle = [name for name in names if not self.open.get(name)]
            strangers = [
                name for name, mine in self.open.items() if mine and name not in names
            ]
        try:
            for partition in range(self.partitions):
                check_tiling(
                    [task.key_range for task in tasks if task.partition == partition],
                    str(partition),
                )
        except AssignmentError:
            return False
        return not idle and not strangers


class Instance:
    """A member with a control thread that opens and closes at once; `may_release` lets
    a test hold releases back.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str,
        name: str,
        ledger: Ledger,
        *,
        timings: Timings = CALM,
        identity: Identity | None = None,
        alive: Callable[[], bool] = lambda: True,
        machine: Host = SYSTEM,
        **info: Any,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.events: list[GroupEvent] = []
        self.may_release = threading.Event()
        self.may_release.set()
        self._inbox: queue.SimpleQueue[GroupEvent | None] = queue.SimpleQueue()
        self.member = GroupMember(
            connector({"bootstrap.servers": bootstrap}, machine),
            Participant(
                group,
                [f"{group}-topic"],
                lambda: MemberInfo(name, **info),
                partial(assign, {0: ledger.partitions}),
                self._inbox.put,
                alive,
                sources={0: [f"{group}-topic"]},
                host=machine,
            ),
            identity=identity,
            timings=timings,
            host=machine,
        )
        self._control = threading.Thread(
            target=self._run, name=f"control-{name}", daemon=True
        )
        self._control.start()
        self.member.start()

    def _run(self) -> None:
        while (event := self._inbox.get()) is not None:
            if isinstance(event, Assigned):
                self.may_release.wait()
                self.ledger.closed(self.name, *event.revoked)
                for task in event.added:
                    self.ledger.opened(self.name, task)
                self.events.append(event)
                self.member.released(event.revoked, event.serial)
            else:
                self.ledger.died(self.name)
                self.events.append(event)

    @property
    def assigned(self) -> Assigned | None:
        """The last assignment that was handled."""
        return next(
            (event for event in reversed(self.events) if isinstance(event, Assigned)),
            None,
        )

    @property
    def generation(self) -> int:
        return self.assigned.generation if self.assigned else -1

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return self.assigned.tasks if self.assigned else ()

    @property
    def cluster(self) -> Cluster:
        return self.assigned.cluster if self.assigned else Cluster()

    def heard(self, kind: type[Lost] | type[Refused]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    def close(self) -> None:
        """Close all tasks, leave, and end."""
        self.ledger.died(self.name)
        self.member.close()
        self._end()

    def die(self) -> None:
        """End without leaving the group, as a killed process does."""
        self.member.close(leave=False)
        self.ledger.died(self.name)
        self._end()

    def _end(self) -> None:
        self.may_release.set()
        self._inbox.put(None)
        self._control.join(PATIENCE_S)


@dataclass
class Application:
    """All instances of one group."""

    bootstrap: str
    group: str
    ledger: Ledger
    instances: dict[str, Instance] = field(default_factory=dict)

    def start(self, name: str, **options: Any) -> Instance:
        self.instances[name] = Instance(
            self.bootstrap, self.group, name, self.ledger, **options
        )
        return self.instances[name]

    def complete(self, *names: str) -> None:
        """Wait until these instances own everything."""
        assert wait_until(lambda: self.ledger.complete(*names), PATIENCE_S), (
            {name: sorted(map(str, tasks)) for name, tasks in self.ledger.open.items()},
            {
                name: instance.member.problem
                for name, instance in self.instances.items()
            },
        )


@contextmanager
def application(bootstrap: str, group: str, partitions: int) -> Iterator[Application]:
    """An application that is closed at the end; two owners of one key at any time fail
    the test.
    """
    app = Application(bootstrap, group, Ledger(partitions))
    try:
        yield app
        assert app.ledger.clashes == []
    finally:
        for instance in app.instances.values():
            instance.close()


def eventually(condition: Callable[[], bool], what: str = "") -> None:
    """Wait until a condition holds."""
    assert wait_until(condition, PATIENCE_S, 0.02), what or "it did not happen"


def later(generation: int, *instances: Instance) -> bool:
    return all(instance.generation > generation for instance in instances)


def commit(
    instance: Instance, partition: TopicPartition, offset: int, metadata: str = ""
) -> GroupFence:
    with instance.member.fence(instance.member.epoch) as fence:
        instance.member.commit({partition: (offset, metadata)}, fence)
    return fence
