"""Is an instance well? A task that has records to process and does not move has a reason, and the reason has a name.

Slow is not dead, and dead is never silent: after some seconds `/health` says what a task waits for, and after half a minute it turns red.

Invariant: `Watch` decides from numbers it is given (positions, ends, a clock); the instance collects them.
Turned down: a time-out that restarts things by itself (it hides the reason, and a slow call looks like a dead one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.task_id import TaskId

STALLED_S = 30.0
"""A task with records waiting that has not moved for so long is reported, unless it may rest for longer: until a commit, for another source."""
SLOW_S = 3.0
"""A task that waits for so long says what for. It is not ill for that: brokers that move leaders take longer."""


@dataclass(slots=True)
class Sight:
    """What was seen of a task when it was last looked at."""

    committed: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    processed: int
    at: float
    rate: float = 0.0
    """Records/s, smoothed over the last looks."""
    moved_at: float = 0.0

    @property
    def lag(self) -> int:
        """Records between what is committed and the ends of the sources."""
        return sum(max(0, self.ends.get(source, position) - position) for source, position in self.committed.items())


@dataclass(slots=True)
class Watch:
    """What is known of each running task over time."""

    stalled_s: float = STALLED_S
    slow_s: float = SLOW_S
    sights: dict[TaskId, Sight] = field(default_factory=dict)
    unanswered: dict[TopicPartition, float] = field(default_factory=dict)
    """Sources whose leader does not say where they end, and since when it does not."""
    made_anew: dict[TaskId, str] = field(default_factory=dict)
    """Running tasks whose changelog is another topic now than the one that their state came from, in words."""

    def look(self, task: TaskId, now: float, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], processed: int) -> Sight:
        """Take in what a task has done; return what that means."""
        sight = Sight(dict(committed), dict(ends), processed, now, moved_at=now)
        before = self.sights.get(task)
        if before is not None and now > before.at:
            fresh = (processed - before.processed) / (now - before.at)
            sight.rate = 0.5 * before.rate + 0.5 * max(0.0, fresh)
            if before.committed == sight.committed and before.lag > 0:
                sight.moved_at = before.moved_at
        self.sights[task] = sight
        return sight

    def keep(self, tasks: set[TaskId]) -> None:
        """Forget the tasks that are not here any more."""
        for task in self.sights.keys() - tasks:
            del self.sights[task]

    def stalled(self, now: float) -> dict[TaskId, str]:
        """Return the tasks that have records waiting and do not move, each with the place where it stands."""
        return {task: _where(sight, now) for task, sight in self.sights.items() if sight.lag > 0 and now - sight.moved_at > self.stalled_s}

    def slow(self, now: float) -> dict[TaskId, str]:
        """Return the tasks that have not committed for longer than they should, or cannot be read, each with what is known of why."""
        said = {}
        for task, sight in list(self.sights.items()):
            since = {source: at for source in sight.committed if (at := self.unanswered.get(source, now)) < now - SLOW_S}
            waited = now - sight.moved_at
            if since:
                said[task] = ", ".join(f"the leader of {source} has not answered for {now - at:.0f} s" for source, at in since.items())
            elif sight.lag > 0 and self.slow_s < waited <= self.stalled_s:
                said[task] = f"no commit for {waited:.0f} s with {sight.lag} records waiting"
        return said


def _where(sight: Sight, now: float) -> str:
    places = [f"{source} at offset {at} of {sight.ends[source]}" for source, at in sight.committed.items() if sight.ends.get(source, at) > at]
    return f"no progress for {now - sight.moved_at:.0f} s with {sight.lag} records waiting: {', '.join(places)}"
