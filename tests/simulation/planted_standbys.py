"""Planted bugs of standbys: see `planted`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from coopstreams.common.config import Config
from coopstreams.group import assignor
from coopstreams.group.warmups import Warmups, staying, warm_up
from coopstreams.log.log import Log
from coopstreams.opening.restores import Restores
from coopstreams.opening.standbys import Standbys
from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.layout import groups_of
from coopstreams.topology.task_id import TaskId
from tests.simulation.world import World

_config = World.config


def _with_standbys(self: World, number: int) -> Config:
    config = _config(self, number)
    return Config(
        {**config.values, "num.standby.replicas": 1},
        config.client,
    )


@contextmanager
def _standbys_always() -> Iterator[None]:
    """Every history has standbys; processes die and start often."""
    events = ("produce", "produce", "produce", "start", "kill", "rest")
    with (
        patch.object(World, "events_that_happen", events),
        patch.object(World, "config", _with_standbys),
    ):
        yield


def _with_warmups(self: World, number: int) -> Config:
    config = _config(self, number)
    return Config(
        {**config.values, "acceptable.recovery.lag": 0},
        config.client,
    )


@contextmanager
def _warmups_always() -> Iterator[None]:
    """In every history what has rows moves by a warm-up; processes come and go often."""
    events = ("produce", "produce", "start", "start", "kill", "rest", "rest")
    with (
        patch.object(World, "events_that_happen", events),
        patch.object(World, "config", _with_warmups),
    ):
        yield


@contextmanager
def early_moves() -> Iterator[None]:
    """A task moves before its warm-up has caught up."""

    def no_waits(*given: Any) -> Warmups:
        return replace(warm_up(*given), waiting=frozenset())

    with _warmups_always(), patch.object(assignor, "warm_up", no_waits):
        yield


@contextmanager
def moves_of_the_dead() -> Iterator[None]:
    """A move is held although the owner has died."""
    kept: dict[str, list[TaskId]] = {}

    def remembered(members: Any, *given: Any) -> dict[str, list[TaskId]]:
        kept.update(staying(members, *given))
        return dict(kept)

    with _warmups_always(), patch.object(assignor, "staying", remembered):
        yield


@contextmanager
def uncommitted_rows() -> Iterator[None]:
    """A standby takes rows before they are committed."""
    begin = Standbys.__init__

    def begin_early(self: Standbys, connect: Any, restores: Any, *given: Any) -> None:
        def made(cluster: Log) -> Restores:
            early: Restores = restores(cluster)
            early._reader = cluster.reader(committed_only=False)
            return early

        begin(self, connect, made, *given)

    with _standbys_always(), patch.object(Standbys, "__init__", begin_early):
        yield


@contextmanager
def checkpoint_of_the_end() -> Iterator[None]:
    """A standby claims the end of its changelog before it has read it."""
    look = Standbys._look

    def claim(self: Standbys) -> None:
        for task, standby in self._standbys.items():
            if standby.renewed_at is None:
                bounds = self._restores._changelogs.all_bounds(
                    {at: {} for at in standby.changelogs}
                )
                for at, spec in standby.changelogs.items():
                    checkpoint = Checkpoint(
                        *groups_of(task.key_range),
                        bounds[at].target,
                        true_ms=bounds[at].asked_ms,
                        topic_id=bounds[at].topic_id,
                    )
                    standby.database.write([], {spec.name: [checkpoint]})
        look(self)

    with _standbys_always(), patch.object(Standbys, "_look", claim):
        yield
