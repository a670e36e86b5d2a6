"""The progress of tasks, from their files to the watcher; without Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from coopstreams.spark.workers import stage_progress
from coopstreams.spark.workers.stage_progress import (
    ProgressWatcher,
    Reporter,
    TaskProgress,
)


def test_who_watches_sees_a_task_begin_go_on_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_progress, "EVERY_S", 0.01)
    seen: list[TaskProgress] = []
    came = threading.Condition()

    def tell(reports: Sequence[TaskProgress]) -> None:
        with came:
            seen.extend(reports)
            came.notify_all()

    def told(position: int, *, done: bool) -> bool:
        return came.wait_for(
            lambda: any(
                (each.position, each.done) == (position, done) for each in seen
            ),
            60,
        )

    with ProgressWatcher(str(tmp_path), tell), came:
        task = Reporter(
            str(tmp_path), "task", "3", "0_1[0..127]", [(100, 200), (0, 50)]
        )
        assert told(0, done=False)
        task._said_at = 0  # long ago
        task.took(0, 20, 141)
        assert told(41, done=False)
        task._said_at = 0
        task.took(1, 5, 50)
        assert told(91, done=False)
        task.end()
    assert seen[-1] == TaskProgress("task", "0_1[0..127]", 25, 150, 150, done=True), (
        "the last look comes when the block ends"
    )


def test_where_no_end_is_known_there_is_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        stage_progress, "EVERY_S", 3600.0
    )  # only the first and the last report
    seen: list[TaskProgress] = []
    with ProgressWatcher(str(tmp_path), seen.extend):
        Reporter(str(tmp_path), "history", "orders-0", "orders-0", [None]).took(0, 7, 7)
        task = Reporter(str(tmp_path), "task", "0", "0_0", [(0, 9), None])
        task.took(1, 4, 4)
        task.end()
    assert [(each.name, each.records, each.target, each.done) for each in seen] == [
        ("orders-0", 0, None, False),
        ("0_0", 4, None, True),
    ]


def test_what_the_listener_raises_ends_the_block_and_a_failure_within_it_comes_first(
    tmp_path: Path,
) -> None:
    def tell(_: object) -> None:
        raise RuntimeError("the listener")

    with (
        pytest.raises(RuntimeError, match="the listener"),
        ProgressWatcher(str(tmp_path), tell),
    ):
        pass
    with (
        pytest.raises(ValueError, match="the block"),
        ProgressWatcher(str(tmp_path), tell),
    ):
        raise ValueError("the block")


def test_a_report_that_cannot_be_written_is_a_warning_and_the_task_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        task = Reporter(str(tmp_path / "file"), "task", "0", "0_0", [None])
        task.took(0, 1, 1)
        task.end()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "0_0 continues, but cannot report its progress"
    ]


def test_a_report_that_is_read_while_it_is_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A storage may show a part of a name, as HDFS does."""
    seen: list[TaskProgress] = []
    Reporter(str(tmp_path), "task", "1", "0_1", [(0, 9)]).end()
    (tmp_path / "task-2").write_bytes((tmp_path / "task-1").read_bytes()[:-5])
    with caplog.at_level(logging.WARNING), ProgressWatcher(str(tmp_path), seen.extend):
        pass
    assert "how far the tasks are cannot be told" in caplog.text
