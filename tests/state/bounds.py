"""The bounds of a changelog and the position of the state in it, for tests that restore
from lists of records.
"""

from __future__ import annotations

import time

from coopstreams.state.checkpoints import Checkpoint
from coopstreams.state.restore import Bounds
from coopstreams.topology.keys import WHOLE, KeyRange

TOPIC_ID = "id-1"


def now_ms() -> int:
    """Return the current time."""
    return int(time.time() * 1000)


def bounds(
    target: int,
    *,
    log_start: int = 0,
    now_s: float | None = None,
    topic_id: str = TOPIC_ID,
) -> Bounds:
    """Return a changelog that ends at the target, as of now."""
    return Bounds(
        log_start, target, topic_id, now_ms() if now_s is None else int(now_s * 1000)
    )


def stands(
    offset: int, key_range: KeyRange = WHOLE, topic_id: str = TOPIC_ID
) -> Checkpoint:
    """Return the checkpoint of state that is true now."""
    return Checkpoint(*key_range.groups, offset, true_ms=now_ms(), topic_id=topic_id)
