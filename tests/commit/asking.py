"""A task that asks for its positions, as the opener keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coopstreams.commit.record import Committed
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.task_id import TaskId


@dataclass
class Asking:
    id: TaskId
    plain: dict[TopicPartition, Committed | None] = field(default_factory=dict)
    barrier: int | None = 0
    doubted_at: float | None = None
