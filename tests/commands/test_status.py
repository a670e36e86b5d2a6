"""The table of `coopstreams status`: states, waits and figures of tasks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.console import Console

from coopstreams.commands.status import (
    done_lines,
    planes_line,
    status_table,
    trouble,
)
from coopstreams.commands.terminal.bars import Letters
from coopstreams.commands.terminal.figures import (
    plain_console,
    snapshot_lines,
    standing_times,
)
from coopstreams.commands.top import picture
from coopstreams.sharing.share_group import ShareStatus
from coopstreams.status.model import InstanceStatus, SnapshotStatus, StandbyStatus
from coopstreams.status.reasons import Reason
from coopstreams.tasks.task_figures import (
    AwaitedTime,
    Calls,
    DownloadStatus,
    RestoreStatus,
    SourceStatus,
    TaskStatus,
    TimeStatus,
    drops,
)
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId


def instance_status(
    *tasks: TaskStatus, id_: str = "a", state: str = "running", **others: Any
) -> dict[str, Any]:
    """Return the status of an instance as a client reads it."""
    told = {"url": None, "live": True, "ready": True, "reasons": ()} | others
    status = InstanceStatus(id=id_, state=state, tasks=tasks, **told)
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return read


def test_a_task_that_opens_says_how_many_bytes_and_records_are_to_come() -> None:
    opening = TaskStatus.of(
        TaskId(0, 3, WHOLE),
        "restoring",
        restore=(RestoreStatus("totals", 50, 12_000, 25.0, 480.0),),
        download=(DownloadStatus("counts", 12_340_000, 2_000_000_000, 1e6, 1988.0),),
    )
    report = {
        "application": "app",
        "generation": 1,
        "instances": [instance_status(opening, state="rebalancing")],
    }
    console = Console(width=200)
    with console.capture() as shown:
        console.print(status_table(report))
    assert "restoring (totals 12,000 to go, counts 12.3 of 2,000.0 MB)" in shown.get()


def running(
    task: TaskId,
    written: dict[str, int],
    dropped: dict[tuple[str, str], int],
    letters: int = 0,
    behind_ms: int | None = None,
) -> TaskStatus:
    source = SourceStatus.of(TopicPartition("in", task.partition), 100, 100, 120, 5)
    return TaskStatus.of(
        task,
        "running",
        (source,),
        epoch=1,
        processed=1000,
        rate=12.5,
        written=written,
        dropped=drops(dropped),
        dead_letters=letters,
        behind_ms=behind_ms,
    )


def test_what_tasks_wrote_and_left_out_and_how_far_their_time_is_behind_is_shown() -> (
    None
):
    """The status of a program with key and value swapped: it runs without any output."""
    whole, half = TaskId(0, 0, WHOLE), TaskId(0, 1, KeyRange.split(2)[0])
    instance = instance_status(
        running(whole, {}, {("join", "null-key"): 1000}, behind_ms=7_300_000),
        running(
            half,
            {"out": 900, "app-again-repartition": 50},
            {("read", "deserialization"): 7, ("join", "null-key"): 1},
            7,
        ),
    )
    report = {
        "application": "app",
        "generation": 1,
        "instances": [instance],
    }
    console = Console(width=200)
    with console.capture() as shown:
        console.print(status_table(report))
    rows = [line.split() for line in shown.get().splitlines() if "0_" in line]
    assert rows[0][-6:] == ["12", "0", "1,000", "20", "2", "h"]
    assert rows[1][-5:] == ["12", "950", "8", "≤20", "-"]
    assert done_lines(report) == [
        "out: app-again-repartition 50, out 900",
        "dropped: deserialization at read 7, null-key at join 1,001; dead letters 7",
        "lag ≤: of a shared partition; what waits may be of other key ranges",
    ]


def test_calls_under_way_and_what_a_share_group_deals_have_lines_of_their_own() -> None:
    calls = msgspec.structs.replace(
        running(TaskId(1, 0, WHOLE), {}, {}),
        calls=Calls(in_flight=12, waiting=30, oldest_s=3.2, blocked_keys=2, retries=1),
    )
    share = ShareStatus(
        subtopology=0,
        group="app-share",
        topics=("in",),
        threads=2,
        waits="",
        acquired=40,
        processed=1000,
        redelivered=5,
        written={"out": 990},
        dropped=drops({("read", "deserialization"): 10}),
    )
    instance = instance_status(calls, shares=(share,))
    report = {"application": "app", "generation": 1, "instances": [instance]}
    console = Console(width=200)
    with console.capture() as shown:
        console.print(status_table(report))
    assert "0_*" in shown.get()
    assert "shared (40 acquired)" in shown.get()
    assert done_lines(report) == [
        "out: out 990",
        "dropped: deserialization at read 10",
        "calls: 12 under way, 30 wait, the oldest 3.2 s; 2 keys wait; 1 made again",
        "0_*: share group app-share deals in; kafka-share-groups --describe --group app-share shows its lag",
        "delivered again: 5",
    ]


def test_a_table_in_a_pipe_is_folded_only_where_a_width_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that looks for a task takes a row for a line."""
    task = running(
        TaskId(12, 345, KeyRange.split(256)[-1]),
        {"out": 10**12},
        {("join", "null-key"): 10**9},
    )
    instance = instance_status(
        task, id_="host-1.example:8080/a", url="http://host-1.example:8080"
    )
    report = {"application": "app", "generation": 1, "instances": [instance]}
    rows = {}
    for columns in ("60", None):
        monkeypatch.delenv("COLUMNS") if columns is None else monkeypatch.setenv(
            "COLUMNS", columns
        )
        plain_console().print(status_table(report))
        rows[columns] = [
            line
            for line in capsys.readouterr().out.splitlines()
            if "1,000,000,000,000" in line
        ]
    assert "host-1.example:8080/a" not in "".join(rows["60"])
    assert "host-1.example:8080/a" in rows[None][0]


def test_an_error_is_shown_as_it_is_whatever_it_quotes() -> None:
    quoted = "ValueError: no path [/tmp/x] in [a, b] of :key:"
    instance = instance_status(
        url="http://[fd00::1]:8080",
        reasons=(Reason("resting", quoted),),
        details={"restarts": 2, "last_end": quoted},
    )
    assert list(trouble([instance])) == [
        (instance["id"], f"started again 2 times; last it {quoted}"),
        (instance["id"], f"resting: {quoted}"),
    ]
    console = plain_console()
    with console.capture() as shown:
        console.print(
            status_table(
                {"application": "app", "generation": 1, "instances": [instance]}
            )
        )
    assert "http://[fd00::1]:8080" in shown.get()


def test_a_terminal_does_not_obey_what_an_error_quotes() -> None:
    instance = instance_status(
        reasons=(Reason("resting", "ValueError: \x1b[2J\nof two lines"),),
        details={"restarts": 2, "last_end": "ended: \x1b[2J"},
    )
    assert [said for _, said in trouble([instance])] == [
        r"started again 2 times; last it ended: \x1b[2J",
        "resting: ValueError: \\x1b[2J\nof two lines",
    ]


def test_time_that_stands_has_a_line_for_all_tasks_that_wait_for_the_same() -> None:
    def waiting(partition: int, since_s: float, owner: str | None) -> TaskStatus:
        awaited = AwaitedTime(0, 2, "0..127", 5, owner, since_s)
        return msgspec.structs.replace(
            TaskStatus.of(TaskId(1, partition, WHOLE), "running"),
            time=TimeStatus(5, awaited),
        )

    one = instance_status(waiting(0, 12.0, "b"), waiting(1, 14.0, "b"))
    assert standing_times([*one["tasks"], {"id": "of an earlier release"}]) == [
        "time of 1_* stands for 14 s: 0_2, key groups 0..127, of b has told none"
    ]
    alone = instance_status(waiting(0, 12.0, None), waiting(1, 1.0, "b"))
    assert standing_times(alone["tasks"]) == [
        "time of 1_* stands for 12 s: 0_2, key groups 0..127, of no instance has told none"
    ]
    assert standing_times(instance_status(waiting(1, 1.0, "b"))["tasks"]) == []


def test_the_newest_snapshot_that_an_instance_has_seen_has_a_line() -> None:
    seen = [
        SnapshotStatus("run-1", 1_000, 150.0, 5_000_000),
        SnapshotStatus("run-2", 90_000, 61.0, 12_345_678),
        None,
    ]
    instances = [instance_status(snapshot=each) for each in seen]
    assert snapshot_lines([*instances, {"id": "of an earlier release"}]) == [
        "snapshot run-2: 61 s old, 12.3 MB"
    ]
    assert snapshot_lines(instances[2:]) == []


def test_a_reason_that_several_instances_have_is_told_once_and_what_holds_for_all_last() -> (
    None
):
    whole, alike = (
        Reason("not-shared", "it is not allowed"),
        Reason("resting", "the same error"),
    )
    stuck, restoring = (
        Reason("no-progress", "task 0_1 stands at 7"),
        Reason("restoring", "0_2 waits"),
    )
    reasons = [(whole,), (whole, alike), (stuck, whole, restoring, restoring, alike)]
    instances = [
        instance_status(id_=id_, reasons=told)
        for id_, told in zip("abc", reasons, strict=True)
    ]
    assert list(trouble(instances)) == [
        ("b, c", "resting: the same error"),
        ("c", "no-progress: task 0_1 stands at 7"),
        ("c", "restoring: 0_2 waits"),
        ("all instances", "not-shared: it is not allowed"),
    ]


def test_standbys_are_counted_and_a_warm_up_says_how_long_it_takes() -> None:
    def standby(partition: int, **said: Any) -> StandbyStatus:
        return StandbyStatus.of(TaskId(0, partition, WHOLE), **said)

    instances = [
        instance_status(
            standbys=(
                standby(0, lag=0),
                standby(1, lag=1200),
                standby(2, lag=None),
                standby(3, lag=48_000, warming=True, eta_s=12.4),
                standby(4, lag=None, warming=True),
            )
        ),
        instance_status(id_="b"),
    ]
    report = {"application": "app", "generation": 1, "instances": instances}
    assert done_lines(report)[-1] == (
        "a: 3 standbys, the furthest 1,200 records behind; "
        "0_3[0..255] is warmed up to move here, 48,000 records behind, 12 s to go; "
        "0_4[0..255] is warmed up to move here"
    )
    shown = said_by_top(report)
    assert any(line.startswith("A 3 standbys, the furthest") for line in shown)


def said_by_top(report: dict[str, Any]) -> list[str]:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(picture(report, Letters()))
    return shown.get().splitlines()


def test_the_data_plane_is_told_once_for_all_or_counted() -> None:
    native = instance_status(data_plane="native")
    python = instance_status(
        data_plane="pure Python: coopstreams-native is not installed"
    )
    assert planes_line([native, native]) == "data plane: native"
    assert planes_line([python, native, native]) == (
        "data planes: native (2), pure Python: coopstreams-native is not installed (1)"
    )
    assert planes_line([instance_status()]) == "data plane: unknown"


def test_formats_of_an_earlier_release_are_told_while_a_member_needs_them() -> None:
    waits = "0.1, until these members run a newer release: 1f2e-old on host-1"
    instances = [
        instance_status(id_="a", details={"formats": waits}),
        instance_status(id_="b", details={"formats": "0.2"}),
    ]
    assert list(trouble(instances)) == [("a", f"writes formats of release {waits}")]
