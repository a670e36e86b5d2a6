"""Planted bugs of memberships and held tasks: see `planted`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from coopstreams.commit.barrier import END_MS, Barrier
from coopstreams.common.config import Config
from coopstreams.group.holdings import Assigned, Holdings
from coopstreams.group.membership import GroupMember
from coopstreams.instance.task_registry import TaskRegistry
from coopstreams.log.log import GroupFence
from coopstreams.state.directory import StateDirectory
from coopstreams.topology.errors import GroupError, LogError
from tests.simulation import stage
from tests.simulation.kafka.plan import Late, Slow
from tests.simulation.process import Process
from tests.simulation.world import World


def _tasks_move_often() -> AbstractContextManager[Any]:
    """The only events are records, and processes that start and end."""
    return patch.object(
        World,
        "events_that_happen",
        ("produce", "produce", "produce", "start", "start", "stop", "rest"),
    )


_config = World.config
_run = Process.run


def _with_a_twin(self: World, number: int) -> Config:
    """Return a configuration whose static member every second process is, too."""
    config = _config(self, number)
    return Config(
        {**config.values, "group.instance.id": f"p{number % 2}"},
        config.client,
    )


def _until_replaced(self: Process) -> None:
    """Run, and end without an error when a twin has taken the place."""
    try:
        _run(self)
    except GroupError as error:
        if "has the place of" not in str(error):
            raise
        self.kill()


@contextmanager
def _twins() -> Iterator[None]:
    """All members are static, and two processes have one id: who begins takes the place
    of the other, which may stand still and go on. A request to join comes once: a late
    one would take the place of its own sender.
    """
    events = "produce", "produce", "produce", "pause", "resume", "start", "start"
    with (
        patch.object(World, "events_that_happen", events),
        patch.object(World, "config", _with_a_twin),
        patch.object(Process, "run", _until_replaced),
        patch.dict(stage.RATES, {"join": []}),
    ):
        yield


@contextmanager
def no_wait_for_the_removal() -> Iterator[None]:
    """Under at-least-once a static member takes the place of one that may still write
    rows.
    """
    clean = property(lambda _: True, lambda *_: None)
    with _twins(), patch.object(StateDirectory, "ended", clean, create=True):
        yield


_fence = GroupMember.fence


@contextmanager
def _current_identity(self: GroupMember, epoch: int) -> Iterator[GroupFence]:
    self._await_coordinator(epoch)  # the membership may end meanwhile
    with _fence(self, self.epoch) as fence:
        yield fence


@contextmanager
def any_epoch() -> Iterator[None]:
    """Work of an earlier membership is committed under the present identity. Members
    are suspended and wake often.
    """
    suspended = patch.object(
        World,
        "events_that_happen",
        ("produce", "produce", "produce", "pause", "resume", "start", "rest", "rest"),
    )
    with suspended, patch.object(GroupMember, "fence", _current_identity):
        yield


@contextmanager
def given_away() -> Iterator[None]:
    """A revoked task is given to another member at once, before it is closed here."""
    asked = property(lambda self: self._asked > self._sent or bool(self.closing))
    with (
        patch.object(Holdings, "held", property(lambda self: self.tasks)),
        patch.object(Holdings, "wants_rebalance", asked),
    ):
        yield


@contextmanager
def kept_without_answer() -> Iterator[None]:
    """A member keeps its tasks when a generation has begun with its old request and
    without an answer. Requests to join are often late.
    """
    late = patch.dict(stage.RATES, {"join": [(0.2, Late(2.0)), (0.1, Late(7.0))]})
    with late, patch.object(Holdings, "answered", lambda *_: None):
        yield


@contextmanager
def rows_of_who_closes() -> Iterator[None]:
    """A promised task that is given up deletes rows of one that still closes. One in a
    hundred cases is found, so tasks move often.
    """
    with (
        _tasks_move_often(),
        patch.object(TaskRegistry, "here", property(lambda self: self.wanted)),
    ):
        yield


def hasty() -> AbstractContextManager[Any]:
    """An error of old tasks counts before the group has confirmed the membership."""
    return patch.object(GroupMember, "confirmed", lambda *_: True)


@contextmanager
def hunt_of_before() -> Iterator[None]:
    """Transactions of non-members are ended by a member list from before the
    transactions were listed. Lists are slow and tasks move often, so that a member
    joins and begins a transaction meanwhile.
    """

    def hunt(self: Barrier) -> None:
        if (
            self._member is None
            or self._hunt_at is None
            or self._host.now() < self._hunt_at
            or not self._living
        ):
            return
        if not self._member.sure(self.epoch, self.generation):
            return
        self._hunt_at = None
        for name in sorted(
            filter(self._ours, self._member.open_transactions() - self._living)
        ):
            with suppress(LogError):
                self._member.end_transaction(name, END_MS)
        self._end_hanging()

    slow = patch.dict(
        stage.RATES, {"list transactions": [(0.3, Slow(3.0)), (0.3, Slow(12.0))]}
    )
    with _tasks_move_often(), slow, patch.object(Barrier, "hunt", hunt):
        yield


def hunt_of_all() -> AbstractContextManager[Any]:
    """With each generation, transactions of members are ended, too."""
    follow = Barrier.follow_generation

    def forget_members(self: Barrier, assigned: Assigned) -> None:
        follow(self, assigned)
        self._living = frozenset({"nobody"})

    return patch.object(Barrier, "follow_generation", forget_members)
