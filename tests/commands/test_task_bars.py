"""The progress of a backfill's tasks: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from coopstreams.commands.terminal.task_bars import TaskBars
from coopstreams.spark.plan import Stage
from coopstreams.spark.workers.stage_progress import TaskProgress

STAGE = Stage(0, 1, 2, 0, ("orders",), (), ("counts",))
READ = TaskProgress("history", "orders-0", 1200, 1200, 1200, done=True)
FIRST = TaskProgress("task", "0_0[0..127]", 800, 1200, 1200, done=True)
SECOND = TaskProgress("task", "0_0[128..255]", 310, 700, 1200)


def test_elsewhere_each_task_that_is_done_is_a_line_and_only_one() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with TaskBars(console) as bars:
        bars.show(STAGE, [SECOND])
        bars.show(STAGE, [READ, FIRST, SECOND])
        bars.show(STAGE, [READ, FIRST, SECOND])
    assert isinstance(console.file, io.StringIO)
    assert (
        console.file.getvalue()
        == "reading orders-0: 1,200 records\ntask 0_0[0..127]: 800 records\n"
    )


def test_on_a_terminal_what_runs_has_a_bar_and_what_is_done_is_counted() -> None:
    console = Console(
        file=io.StringIO(), force_terminal=True, width=100, color_system=None
    )
    with TaskBars(console) as bars:
        bars.show(STAGE, [READ, SECOND])
        bars.show(STAGE, [READ, FIRST, SECOND])
        assert [
            (bar.description, bar.completed, bar.total) for bar in bars._bars.tasks
        ] == [
            ("sub-topology 0", 1, 2),
            (r"task 0_0\[128..255]", 700, 1200),
        ]
        bars._bars.refresh()
        assert isinstance(console.file, io.StringIO)
        shown = console.file.getvalue()
        assert "1 of 2 tasks" in shown
        assert "task 0_0[128..255]" in shown
        assert "310 records" in shown
