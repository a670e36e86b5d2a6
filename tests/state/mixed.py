"""Stores in three engines, and commits to them. A child that is killed imports them:
without pytest, sooner.
"""

from __future__ import annotations

from collections.abc import Sequence

from coopstreams.state.database import Database
from coopstreams.state.task_state import TaskState
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash
from coopstreams.topology.serdes import int64, text
from coopstreams.topology.stores import StoreSpec
from tests.state.bounds import TOPIC_ID, now_ms
from tests.state.sqlite_engine import NAME

DISK = StoreSpec("disk", "key_value", text, int64, store_type="rocksDB")
HEAP = StoreSpec("heap", "key_value", text, int64, store_type="in_memory")
OWN = StoreSpec("own", "key_value", text, int64, store_type=NAME)
ALL = [DISK, HEAP, OWN]
BYTES = 1 << 30


def commit(
    database: Database,
    number: int,
    key_range: KeyRange = WHOLE,
    keys: int = 200,
    specs: Sequence[StoreSpec] = ALL,
) -> None:
    """Write the number of the commit to all keys of a range, in all stores."""
    state = TaskState(database, specs, key_range, BYTES)
    for table in state.stores.values():
        for key in (b"%d" % each for each in range(keys)):
            if key_hash(key) in key_range:
                entry = table.load(key)
                entry.value, entry.timestamp = number, number
                table.touch(key, entry)
    state.changes()
    state.topic_ids = {spec.name: TOPIC_ID for spec in specs}
    state.commit({spec.name: number for spec in specs}, true_ms=now_ms())
