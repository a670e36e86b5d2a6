"""Why a task that stands still is no reason to restart its process: no restart would
move it.

`Serving.health` asks for each stalled task. An instance that is not live is restarted
by its supervisor. That heals a stuck thread; while brokers are away it costs all
instances their open state, at the worst time.

Invariant: without evidence there is no excuse. Evidence is a leader or a group that
does not answer, an error of the brokers that is not old, a request that waits no longer
than the client lets it, a source without any other committed record, a call whose
time-out is not over, a sibling that does move, or that the task is on no thread, being
opened again. A thread that is stuck elsewhere (in a sink, in a lock of ours) has none,
whatever brokers do. One that runs a function of the program is asked for first
(`tasks.running_functions`), and has `max.poll.interval.ms`.
"""

from __future__ import annotations

from collections.abc import Mapping

from coopstreams.instance.watcher import StallDetector
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.task import Task
from coopstreams.topology.task_id import TaskId


def excuse(
    task: TaskId,
    running: Task | None,
    homes: Mapping[TaskId, StreamThread],
    group_answers: bool,
    detector: StallDetector,
    now: float,
) -> str:
    """Return why a restart would not move this stalled task, in words; empty: it may.

    `running`: the task, if it is open. `homes`: the thread of each task of the
    instance. `group_answers`: whether this surely is a member of the group.
    """
    home = homes.get(task)
    if home is None:  # the watcher, which asks brokers, has not looked since
        return "it is opened again"
    asking = home.committer.asking
    asked_at = asking.asked_at
    trouble = asking.trouble
    if asked_at is None and now - home.moved_at > detector.stalled_s:
        return ""
    if why := detector.away(task, now):
        return why
    if trouble is not None and now - trouble[1] <= asking.answer_s:
        return (
            f"the brokers failed its commit {now - trouble[1]:.0f} s ago: {trouble[0]}"
        )
    if asked_at is not None:
        if now - asked_at <= asking.answer_s:
            return "the brokers have not answered yet"
        if (
            detector.away_at > asked_at
            and (ago := now - detector.away_at) <= asking.answer_s
        ):
            return (
                detector.any_away(now)
                or f"brokers did not answer until {ago:.0f} s ago"
            )
        return "" if group_answers else "the group does not answer"
    if why := detector.kept_back(task):
        return why
    if running is not None and _is_called(running, now - detector.stalled_s):
        return (
            "the time-out of a call is not over, and a new process would begin it anew"
        )
    busy = detector.busy(
        [other for other, thread in homes.items() if thread is home and other != task],
        now,
    )
    return "" if busy is None else f"its thread is busy with task {busy}"


def _is_called(task: Task, since: float) -> bool:
    """Return whether the first record of a task has waited since then, for calls that
    are within their time-outs.
    """
    calls = task.calls
    return (
        calls is not None
        and (began := calls.oldest) is not None
        and began < since
        and calls.within_limits
    )


def wait_of(home: StreamThread | None, task: Task | None, now: float) -> str:
    """Return why a task waits, or its thread, as the end of a sentence; empty: it does
    not.
    """
    if home is not None and (waiting := home.committer.asking.waiting) is not None:
        return f"; its thread has waited {now - waiting.since:.0f} s for {waiting.what}"
    since = None if task is None or task.calls is None else task.calls.oldest
    return (
        ""
        if since is None
        else f"; its first record has waited {now - since:.0f} s for a call"
    )
