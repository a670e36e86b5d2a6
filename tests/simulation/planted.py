"""Bugs that are put in on purpose: an oracle that does not find them is worth nothing.

Each puts a function in the place of one of ours, so it has to be one that is still called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from coopstreams.commit.barrier import Barrier
from coopstreams.commit.follower import Follower
from coopstreams.commit.positions import Positions
from coopstreams.commit.progress import Progress
from coopstreams.group import leadership
from coopstreams.group.holdings import Holdings
from coopstreams.group.leadership import BrokerView, Choice
from coopstreams.group.membership import GroupMember
from coopstreams.instance.instance import Instance
from coopstreams.instance.serving import Serving
from coopstreams.log.log import GroupFence
from coopstreams.opening.changelogs import Changelogs
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.committer import Committer
from coopstreams.tasks.events import Cancelled


def _no_barrier() -> AbstractContextManager[Any]:
    """Tasks open with whatever of the group's commits is known by chance."""
    return patch.object(Barrier, "passed", lambda _, waiting: list(waiting))


def _stale_barrier() -> AbstractContextManager[Any]:
    """The end of the commit topic is what a broker that stood still believes."""
    return patch.object(Follower, "barrier", lambda self: self.tail)


def _leader_of_before() -> AbstractContextManager[Any]:
    """Whoever says that it leads a partition is believed."""

    def first(answers: Mapping[int, BrokerView | None], _: int) -> Choice | None:
        leaders = [view for broker, view in answers.items() if view is not None and view.leader == broker]
        return min((Choice(view.leader, view.epoch) for view in leaders), key=lambda choice: choice.epoch, default=None)

    return patch.object(leadership, "choose", first)


@contextmanager
def _current_identity(self: GroupMember, epoch: int) -> Iterator[GroupFence]:
    generation, member = self._coordinator.identity()
    yield GroupFence(self.group, generation, member, None)


def _any_epoch() -> AbstractContextManager[Any]:
    """Work of an earlier membership is committed under the identity of the present one."""
    return patch.object(GroupMember, "fence", _current_identity)


def _short_restore() -> AbstractContextManager[Any]:
    """A restore ends before the last rows of its changelog."""
    whole = Changelogs.all_bounds

    def short(self: Changelogs, changelogs: Any) -> Any:
        found = whole(self, changelogs)
        return {at: replace(bounds, target=max(bounds.log_start, bounds.target - 3)) for at, bounds in found.items()}

    return patch.object(Changelogs, "all_bounds", short)


def _done_again() -> AbstractContextManager[Any]:
    """A task does not leave out what an earlier owner of part of its range has done."""
    return patch.object(Progress, "unseen", lambda _, __, columns: columns)


@contextmanager
def _given_away() -> Iterator[None]:
    """A task that is revoked is given to another member at once, before it is closed here."""
    asked = property(lambda self: self._asked > self._sent or bool(self.closing))
    with (
        patch.object(Holdings, "held", property(lambda self: self.tasks)),
        patch.object(Holdings, "wants_rebalance", asked),
    ):
        yield


def _own_time() -> AbstractContextManager[Any]:
    """Who takes over from several counts only the time of what it processes itself, and not of what they had done."""
    return patch.object(Progress, "parted", property(lambda _: False))


def _early_database() -> AbstractContextManager[Any]:
    """The database has what was processed before it is durable in the log."""
    write = Committer._write

    def early(self: Committer, tasks: Any) -> Any:
        written = write(self, tasks)
        for task in tasks:
            TaskState.commit(task.state, {}, {}, 0)
        return written

    return patch.object(Committer, "_write", early)


def _silent_opener() -> AbstractContextManager[Any]:
    """Openings that were told to be given up are forgotten, and nobody hears of it."""
    handle = Instance._handle
    return patch.object(
        Instance, "_handle", lambda self, event: None if isinstance(event, Cancelled) else handle(self, event)
    )


def _hasty() -> AbstractContextManager[Any]:
    """An error of old tasks counts before the group has said whether this process still is a member."""
    return patch.object(GroupMember, "confirmed", lambda *_: True)


def _one_question() -> AbstractContextManager[Any]:
    """The offsets of all who wait are asked for in one question, the commit topic's row too, and one that is not
    certain fails all.
    """
    learn = Positions._learn

    def all_or_none(self: Positions, asking: Any) -> None:
        sources = {source for one in asking for source in self.sources(one.id)}
        if not self._coordinator.fetch_offsets([*sources, *self._follower.rows()]).unstable:
            learn(self, asking)

    return patch.object(Positions, "_learn", all_or_none)


def _always_sure() -> AbstractContextManager[Any]:
    """A process that was stopped, and wakes, answers queries before the group has answered it."""
    return patch.object(Serving, "owns", lambda self, task: self._instance.tasks.get(task.id) is task)


PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no barrier": _no_barrier,
    "a stale barrier": _stale_barrier,
    "a leader of before": _leader_of_before,
    "any epoch commits": _any_epoch,
    "a restore that ends early": _short_restore,
    "what was done is done again": _done_again,
    "time of its own": _own_time,
    "revoked is released": _given_away,
    "the database before the log": _early_database,
    "a cancel that nobody hears": _silent_opener,
    "whoever wakes is sure": _always_sure,
    "an error of before counts": _hasty,
    "one question for all offsets": _one_question,
}
"""By name: what puts the bug in."""
