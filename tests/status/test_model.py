"""The JSON of the status, field by field: readers of other releases rely on it."""

from __future__ import annotations

import msgspec

from coopstreams.query.backend import Peer
from coopstreams.query.reports import unreachable_status
from coopstreams.status.model import InstanceStatus
from coopstreams.tasks.tally import Counts
from coopstreams.tasks.task_figures import CallFigures, Calls, TaskFigures
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.task_id import TaskId

TASK = TaskId(1, 2, KeyRange.split(2)[0])
AT = TopicPartition("in", 2)
FIGURES = TaskFigures(
    TASK,
    7,
    Counts(10, 1, 2, {"out": 9}, {("read", "late"): 3, ("read", "null-key"): 0}),
    ((3, 0.51234),),
    {AT: 8},
    {AT: 5000},
    calls=CallFigures(Calls(1, 0.0, 3, 2, 4), oldest_at=90.0),
)


def test_the_figures_of_a_task_are_these_fields() -> None:
    status = FIGURES.status("running", 2.54, {AT: 12}, {AT: 1.26}, 100.0, 5700)
    assert msgspec.json.decode(msgspec.json.encode(status)) == {
        "id": "1_2[0..127]",
        "subtopology": 1,
        "partition": 2,
        "key_range": "0..127",
        "state": "running",
        "epoch": 7,
        "processed": 10,
        "rate": 2.5,
        "written": {"out": 9},
        "dropped": [{"node": "read", "reason": "late", "records": 3}],
        "dead_letters": 1,
        "calls": {
            "in_flight": 1,
            "oldest_s": 10.0,
            "blocked_keys": 3,
            "retries": 2,
            "waiting": 4,
        },
        "hot": [{"key_group": 3, "share": 0.512}],
        "stream_time": 5000,
        "behind_ms": 700,
        "lag": 4,
        "shared": True,
        "sources": [
            {
                "topic": "in",
                "partition": 2,
                "position": 8,
                "committed": 8,
                "end": 12,
                "lag": 4,
                "stream_time": 5000,
                "silent_s": 1.3,
            }
        ],
        "time": None,
        "restore": [],
        "download": [],
    }


def test_lag_is_not_known_before_the_brokers_have_told_an_end() -> None:
    status = FIGURES.status("running", 0.0, {}, {}, 100.0, 5700)
    assert (status.lag, status.sources[0].lag) == (None, None)


def test_an_instance_that_does_not_answer_is_read_like_any_other() -> None:
    """It lacks the figures: who reads them gets defaults."""
    said = unreachable_status(Peer("a", "http://a", (TASK,)), OSError("refused"))
    told = msgspec.json.encode(said)
    assert msgspec.json.decode(told) == {
        "id": "a",
        "url": "http://a",
        "state": "unreachable",
        "live": False,
        "ready": False,
        "reasons": [{"code": "unreachable", "message": "refused", "task": None}],
        "tasks": [
            {
                "id": "1_2[0..127]",
                "subtopology": 1,
                "partition": 2,
                "key_range": "0..127",
                "state": None,
            }
        ],
    }
    read = msgspec.json.decode(told, type=InstanceStatus)
    assert read.tasks[0].processed == 0
