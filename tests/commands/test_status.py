"""The table of `coopstreams status`: what a task that does not run yet waits for."""

from __future__ import annotations

from rich.console import Console

from coopstreams.commands.status import status_table
from coopstreams.query import reports
from coopstreams.query.backend import Health, PickUpStatus, Placement, RestoreStatus, Status, TaskStatus
from coopstreams.topology.keys import WHOLE
from coopstreams.topology.task_id import TaskId


def test_a_task_that_opens_says_how_many_bytes_and_records_are_to_come() -> None:
    opening = TaskStatus(
        TaskId(0, 3, WHOLE),
        "restoring",
        -1,
        restore=(RestoreStatus("totals", 50, 12_000, 25.0, 480.0),),
        pick_up=(PickUpStatus("counts", 12_340_000, 2_000_000_000, 1e6, 1988.0),),
    )
    status = Status("app", "rebalancing", Health(True, True), (opening,))
    report = {"application": "app", "generation": 1, "instances": [reports.instance_status(Placement(1, "a", ()), None, status)]}
    console = Console(width=200)
    with console.capture() as shown:
        console.print(status_table(report))
    assert "restoring (totals 12,000 to go, counts 12.3 of 2,000.0 MB)" in shown.get()
