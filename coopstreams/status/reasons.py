"""The reasons why an instance, or a task of it, is not well: their codes, their
meanings, and the checks that find them.

    what the threads have published (`Seen`) -> each check of `CHECKS` -> reasons -> health

A new reason is a code, its row in `KINDS`, which is also its row of the table in
`docs/reference/health.md`, and a check that gives its sentence.

Invariant: the code alone decides whether an instance with that reason is live and
ready.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Literal, TypeAlias, get_args

import msgspec

from coopstreams.sharing.share_thread import ShareFigures
from coopstreams.status.stall_detector import (
    SLOW_S,
    STALLED_S,
    StallDetector,
    excuse,
    wait_of,
)
from coopstreams.tasks.running_functions import running_function
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.task_figures import CallFigures, TimeStatus
from coopstreams.topology.graph.nodes import Node
from coopstreams.topology.task_id import TaskId

HealthCode: TypeAlias = Literal[
    "no-progress",
    "slow",
    "slow-function",
    "calls-pause",
    "share-group",
    "paused",
    "not-a-member",
    "unreadable-commit",
    "another-version",
    "same-process-id",
    "not-shared",
    "partitioner",
    "records-dropped",
    "waits-for-time",
    "waiting",
    "restoring",
    "closing",
    "draining",
    "changelog-made-anew",
    "more-partitions",
    "asking-the-group",
    "resting",
    "unreachable",
]
"""The code of a reason. The type check refuses any other."""


TIME_STANDS_S = 60.0
"""How long a clock may stay the same, although later records have come, before this is
a reason. Replacing a process takes as long.
"""


class Effect(Enum):
    """The effect of a reason on whether its instance is live and ready."""

    UNWELL = "not live"
    NOT_READY = "live, not ready"
    READY = "live and ready"


UNWELL = Effect.UNWELL
NOT_READY = Effect.NOT_READY
READY = Effect.READY
KINDS: Mapping[HealthCode, tuple[Effect, str]] = {
    "no-progress": (
        UNWELL,
        "a task has records waiting and has committed nothing for 30 s (or three times "
        "`commit.interval.ms` and `max.task.idle.ms`), not even behind a record that waits for a "
        "[call](../guide/asynchronous.md), and nothing is known that a restart could not heal; the "
        "message says at which offset",
    ),
    "slow": (
        READY,
        "a task has records waiting and has not committed the first of them for 3 s (or three times the "
        "intervals above), or a broker that leads a source, or has an in-sync replica of it, does not "
        "answer (new records cannot be read then); the message says which, and what its thread waits for."
        " However long it lasts, it [stays `slow`](../operating/observe.md#what-no-restart-heals) while "
        "brokers are away, or while the thread works on another task. The process is ready all the same",
    ),
    "slow-function": (
        READY,
        "a function of the program has run on one record for as long as `no-progress` allows; the message"
        " says of which operator, at which line, and for how long. Raise `max.poll.interval.ms` above "
        "what it may take, or make it [asynchronous](../guide/asynchronous.md). After that time it is "
        "`no-progress`, the process leaves the group, and others go on. It is ready all the same",
    ),
    "calls-pause": (
        READY,
        "the [circuit breaker](../guide/asynchronous.md) of an asynchronous operator is open; the message"
        " says of which, which error the last call had, and when the next is tried. The process is ready "
        "all the same, and has no `slow` or `no-progress` for this task: a new process could not call "
        "either",
    ),
    "share-group": (
        NOT_READY,
        "a share thread takes no records; the message says why: it has not joined yet, the brokers do not"
        " answer or are too old, [the policy](../operating/deploy.md#restrictions) forbids it, or the "
        "process is of another version. Not ready meanwhile",
    ),
    "paused": (
        READY,
        "processing is [paused](../guide/running.md#changing-it-while-it-runs). The process is ready all "
        "the same",
    ),
    "not-a-member": (
        NOT_READY,
        "not yet in the group (global tables are read first: the message says how far), or it has not "
        "answered within the session time-out",
    ),
    "unreadable-commit": (
        NOT_READY,
        "the group's progress has a record that this process cannot read: see the "
        "[runbook](../operating/runbook.md#health). Its tasks run on, and it opens none",
    ),
    "another-version": (
        NOT_READY,
        "the process runs another topology than the group, and gets no tasks; the message says what "
        "differs and when it takes over: see [Upgrade](../operating/upgrade.md#rolling-out-a-new-version)",
    ),
    "same-process-id": (
        NOT_READY,
        "another member of the group has the same process id, because a [state "
        "folder](../operating/recover.md#state-folder) was copied: each ends the transactions of the "
        "other. The message says which member, and the cure",
    ),
    "not-shared": (
        READY,
        "[a setting](../operating/deploy.md#restrictions) keeps partitions from being split where there "
        "are more threads than partitions; the message says which. The process is ready all the same, "
        "also one that has no partition",
    ),
    "partitioner": (
        READY,
        "a topic has records in other partitions than murmur2 gives their keys, so queries by key ask the"
        " wrong one; the message says which topic: [Traps](../operating/deploy.md#traps). Seen since the "
        "process started. It is ready all the same",
    ),
    "records-dropped": (
        READY,
        "of the records that a sub-topology has processed in the last ten minutes it left out more than 3"
        " %, and at least 100, at one operator for one reason, such as `late`; the message says how many,"
        " where, why, and what to do. It is logged as a warning, too, every ten minutes. Results are "
        "missing; the process is ready all the same",
    ),
    "waits-for-time": (
        READY,
        "behind a repartition topic the [clock](../operating/observe.md#time-behind-repartition-topics) by which "
        "windows close has stood for 60 s, although later records have come; or a partition is not read, because "
        "it is further ahead of the slowest than `max.time.skew.ms`. The message says which source partition and "
        "key groups are waited for, and which process has them. Nothing is lost meanwhile: windows close late. The "
        "process is ready all the same",
    ),
    "waiting": (
        NOT_READY,
        "a task waits for another one here to close",
    ),
    "restoring": (
        NOT_READY,
        "a task waits for the barrier, for its state, or for the pause after which a failed [record is "
        "processed again](../guide/errors.md#a-handler-of-your-own); the message says which",
    ),
    "closing": (
        NOT_READY,
        "a task is being given up",
    ),
    "draining": (
        READY,
        "a task is being given up and [waits for its calls](../guide/asynchronous.md#when-a-task-moves); the message "
        "says for how many, and how long at the longest. The process is ready all the same; one that ends says "
        "`closing`",
    ),
    "changelog-made-anew": (
        NOT_READY,
        "a changelog was deleted while its task runs, and perhaps made again: the task continues with its"
        " local state until it writes to a topic that is gone; what was in it can no longer be restored: "
        "[runbook](../operating/runbook.md#topics)",
    ),
    "more-partitions": (
        NOT_READY,
        "a source or repartition topic has got partitions, and nothing reads their records: "
        "[Topics](../operating/deploy.md#topics)",
    ),
    "asking-the-group": (
        NOT_READY,
        "an error, named in the message, is held until the group confirms that this process still is a "
        "member: after a stop, others may own its tasks by now",
    ),
    "resting": (
        NOT_READY,
        "a stream thread has died of the error in the message, and its successor waits before it starts, "
        "longer after each further death",
    ),
    "unreachable": (
        UNWELL,
        "in `/v1/status` only: an instance that does not answer",
    ),
}
"""The effect of each reason, and its meaning, as in `docs/reference/health.md`."""
HEALTH_CODES: tuple[HealthCode, ...] = tuple(
    code for code in get_args(HealthCode) if code != "unreachable"
)
"""The codes that an instance gives itself. Each is a series of the metrics."""


class Reason(msgspec.Struct, frozen=True):
    """Why an instance, or a task of it, is not well."""

    code: HealthCode
    message: str
    task: str | None = None


class Health(msgspec.Struct, frozen=True):
    """Whether an instance is live and ready.

    `live`: it makes progress, or waits for a known reason. `ready`: it is a member of
    the group, with all its tasks open.
    """

    live: bool
    ready: bool
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the threads of an instance have published at one moment, `now` (`Host.now`)."""

    now: float
    paused: bool = False
    states: Mapping[TaskId, str] = field(default_factory=dict)
    opening: Mapping[TaskId, str] = field(default_factory=dict)
    """By task that is being opened: why it is not open yet."""
    draining: Mapping[TaskId, str] = field(default_factory=dict)
    """By task that is being closed and waits for its calls: for how many, and how long."""
    ends: bool = False
    """Whether the instance ends."""
    calls: Mapping[TaskId, CallFigures] = field(default_factory=dict)
    """The calls of each task with asynchronous operators."""
    homes: Mapping[TaskId, StreamThread] = field(default_factory=dict)
    stalls: StallDetector = field(default_factory=StallDetector)
    nodes: Iterable[Node] = ()
    limit_s: float = 300.0
    """How long a function may run for one record: `max.poll.interval.ms`."""
    reader_s: float = 0.0
    """How long the reader has run functions of the program on one record; 0: it runs
    none.
    """
    reader: str = ""
    """The record on which the reader runs functions, in words."""
    shares: tuple[ShareFigures, ...] = ()
    sure: bool = True
    """Whether the group has recently answered this member."""
    member: bool = True
    """Whether the group has ever assigned tasks to this instance."""
    silence: str = ""
    """Why the instance is not a member, in words."""
    doubts: tuple[str, ...] = ()
    """Errors that are not reported before the group has confirmed this member."""
    twins: tuple[str, ...] = ()
    """The other processes that run with this process's id, in words."""
    version: str = ""
    """Why the group gives the instance no tasks, because of its version; empty: it
    does.
    """
    resting: tuple[str, ...] = ()
    """The stream threads that have died and whose successors wait to start, in words.
    """
    unreadable: str = ""
    """The record of the group's progress that cannot be read, in words; empty: there is
    none.
    """
    misplaced: tuple[str, ...] = ()
    """The topics with records outside the partitions that murmur2 gives their keys, in
    words.
    """
    times: Mapping[TaskId, TimeStatus] = field(default_factory=dict)
    """The time status of the tasks that have a clock, or are held back."""
    lost: tuple[str, ...] = ()
    """The operators that drop many records, in words."""
    not_shared: tuple[str, ...] = ()
    """The settings that keep partitions from being divided although threads are left,
    in words.
    """

    @property
    def paused_calls(self) -> dict[TaskId, str]:
        """Why tasks begin no calls, by task. A new process could not make these calls
        either.
        """
        return {task: each.pauses for task, each in self.calls.items() if each.pauses}

    def waiting_for(self, task: TaskId) -> str:
        """Return what a task or its thread waits for, as the end of a sentence; empty:
        nothing.
        """
        if self.reader:
            return f"; {self.reader}"
        home = self.homes.get(task)
        if home is not None and (running := self._running(home)):
            return running
        return wait_of(home, self.calls.get(task), self.now)

    def function_of(self, task: TaskId) -> str:
        """Return which function the thread of a task, or the reader, runs within its
        limit, as the end of a sentence; empty: none.
        """
        if self.reader:
            return self.waiting_for(task) if self.reader_s < self.limit_s else ""
        home = self.homes.get(task)
        if home is None or self.now - home.moved_at > self.limit_s:
            return ""
        running = self._running(home)
        return running and f"{running}; max.poll.interval.ms allows {self.limit_s:g} s"

    def excuse(self, task: TaskId) -> str:
        """Return why a restart would not help a stalled task; empty: it may help."""
        if self.reader:
            return ""
        calls = self.calls.get(task)
        return excuse(task, calls, self.homes, self.sure, self.stalls, self.now)

    def _running(self, home: StreamThread) -> str:
        """Return which function a thread runs, and for how long, as the end of a
        sentence; empty: it runs none.
        """
        seconds = self.now - home.moved_at
        if home.committer.asking.asked_at is not None or seconds < SLOW_S:
            return ""
        function = running_function(home.ident, self.nodes)
        return function and f"; its thread has run {function} for {seconds:.0f} s"


def health(seen: Seen) -> Health:
    """Return whether an instance is live and ready, with its reasons: first those why
    it is not live, then those why it is not ready.
    """
    found = [reason for check in CHECKS for reason in check(seen)]
    effects = [KINDS[reason.code][0] for reason in found]
    order = list(Effect)
    # Share threads of a paused instance take no records, as it is meant.
    hold = [
        effect is not READY and not (seen.paused and reason.code == "share-group")
        for reason, effect in zip(found, effects, strict=True)
    ]
    return Health(
        live=UNWELL not in effects,
        ready=not any(hold),
        reasons=tuple(sorted(found, key=lambda one: order.index(KINDS[one.code][0]))),
    )


def by_code(reasons: Iterable[Reason]) -> dict[str, int]:
    """Return how many reasons have each code, with 0 for a code that no reason has."""
    codes = [reason.code for reason in reasons]
    return {code: codes.count(code) for code in HEALTH_CODES}


def _still(seen: Seen) -> Iterator[Reason]:
    """Yield a reason for each task that has records waiting and commits nothing."""
    now = seen.now
    said = seen.paused_calls.keys()
    excused = set(said)
    for task, message in seen.stalls.stalled(now).items():
        if task in said:
            continue
        if function := seen.function_of(task):
            excused.add(task)
            yield Reason("slow-function", message + function, str(task))
            continue
        message += seen.waiting_for(task)
        if why := seen.excuse(task):
            excused.add(task)
            yield Reason("slow", f"{message}; {why}", str(task))
        else:
            yield Reason("no-progress", message, str(task))
    for task, message in seen.stalls.slow(now).items():
        if task not in excused:
            yield Reason("slow", message + seen.waiting_for(task), str(task))


def _shares(seen: Seen) -> Iterator[Reason]:
    """Yield a reason for each share thread that takes no records, or finishes none for
    long.
    """
    for thread in seen.shares:
        name = f"share thread {thread.number}"
        held = sum(thread.held.values())
        if thread.waits:
            yield Reason("share-group", f"{name} takes no records: {thread.waits}")
        elif thread.pauses:
            yield Reason("calls-pause", f"{name}: {thread.pauses}")
        elif held and (seconds := seen.now - thread.moved_at) > SLOW_S:
            message = (
                f"{name} has {held} records and has finished none for {seconds:.0f} s"
            )
            yield _slow_share(seen, thread, message, seconds)


def _slow_share(
    seen: Seen,
    thread: ShareFigures,
    message: str,
    seconds: float,
) -> Reason:
    """Return the reason for a share thread that has finished no record for `seconds`."""
    if thread.retrying:
        message += ": its failure handler has it try again later"
        return Reason("slow", message)
    if thread.flushing:
        message += ": it waits for the brokers to take its results"
        return Reason("slow", message)
    if function := running_function(thread.ident, seen.nodes):
        message += f"; it has run {function}"
        if seconds > seen.limit_s:
            return Reason("no-progress", message)
        return Reason("slow-function" if seconds > STALLED_S else "slow", message)
    return Reason("no-progress" if seconds > STALLED_S else "slow", message)


def _calls(seen: Seen) -> Iterator[Reason]:
    for task, why in seen.paused_calls.items():
        yield Reason("calls-pause", f"task {task}: {why}", str(task))


def _times(seen: Seen) -> Iterator[Reason]:
    """Yield a reason for each clock that does not advance: one for all tasks that wait
    for the same partition.
    """
    if seen.paused:
        return
    longest: dict[tuple[int, bool, int, int], TimeStatus] = {}
    for task, status in seen.times.items():
        awaited = status.waits_for
        if awaited is None or awaited.since_s < TIME_STANDS_S:
            continue
        whom = awaited.subtopology, awaited.partition
        at = task.subtopology, status.held_back, *whom
        before = longest.get(at)
        if before is None or waited_s(before) < awaited.since_s:
            longest[at] = status
    for (subtopology, *_), status in longest.items():
        yield Reason("waits-for-time", wait_for_time(subtopology, status))


def waited_s(status: TimeStatus) -> float:
    """Return for how many seconds a task's time has stayed the same."""
    return 0.0 if status.waits_for is None else status.waits_for.since_s


def wait_for_time(subtopology: int, status: TimeStatus) -> str:
    """Return which partition the time of a sub-topology waits for, as a sentence."""
    awaited = status.waits_for
    assert awaited is not None
    owner = (
        "no process has them" if awaited.owner is None else f"{awaited.owner} has them"
    )
    told = "no time" if awaited.time is None else f"no time after {utc(awaited.time)}"
    what = (
        f"sub-topology {subtopology} reads no further than {utc(status.time)} (max.time.skew.ms)"
        if status.held_back
        else f"the clock of sub-topology {subtopology} stands at {utc(status.time)}"
    )
    if awaited.topic is not None:
        return (
            f'{what}: "{awaited.topic}" partition {awaited.partition}, which it reads beside repartition topics, has '
            f"{told} for {awaited.since_s:.0f} s, and is not read to its end: a transaction may be open there"
        )
    return (
        f"{what}: sub-topology {awaited.subtopology}, partition {awaited.partition}, key groups {awaited.key_groups} "
        f"have told {told} for {awaited.since_s:.0f} s; {owner}"
    )


def utc(ms: int | None) -> str:
    """Return a time in ms as text for people."""
    if ms is None:
        return "no time"
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):  # the year 10000, or later
        return f"{ms} ms"


def _paused(seen: Seen) -> Iterator[Reason]:
    if seen.paused:
        yield Reason(
            "paused",
            "processing is paused until it is resumed; tasks are kept, queries answered",
        )


def _member(seen: Seen) -> Iterator[Reason]:
    if not seen.member or not seen.sure:
        yield Reason("not-a-member", seen.silence)


def _version(seen: Seen) -> Iterator[Reason]:
    if seen.version:
        yield Reason("another-version", seen.version)


def _unreadable(seen: Seen) -> Iterator[Reason]:
    if seen.unreadable:
        yield Reason("unreadable-commit", seen.unreadable)


def _made_anew(seen: Seen) -> Iterator[Reason]:
    for task, message in seen.stalls.made_anew.items():
        yield Reason("changelog-made-anew", message, str(task))


def _not_open(seen: Seen) -> Iterator[Reason]:
    """Yield a reason for each task that does not run, by its state."""
    codes: Mapping[str, HealthCode] = {
        "waiting": "waiting",
        "restoring": "restoring",
        "closing": "closing",
    }
    for task, state in seen.states.items():
        if state in codes:
            drains = seen.draining.get(task)
            why = drains or seen.opening.get(task)
            message = f"task {task} is {state}" if why is None else why
            code = codes[state] if drains is None or seen.ends else "draining"
            yield Reason(code, message, str(task))


def _said(
    code: HealthCode,
    messages: Callable[[Seen], Iterable[str]],
) -> Callable[[Seen], Iterator[Reason]]:
    """Return a check that gives each of `messages(seen)` as a reason with this code."""

    def check(seen: Seen) -> Iterator[Reason]:
        for message in messages(seen):
            yield Reason(code, message)

    return check


CHECKS: tuple[Callable[[Seen], Iterator[Reason]], ...] = (
    _still,
    _shares,
    _calls,
    _said("partitioner", lambda seen: seen.misplaced),
    _said("records-dropped", lambda seen: seen.lost),
    _times,
    _paused,
    _member,
    _said("asking-the-group", lambda seen: seen.doubts),
    _said("same-process-id", lambda seen: seen.twins),
    _version,
    _made_anew,
    _said("more-partitions", lambda seen: seen.stalls.grown.values()),
    _said("resting", lambda seen: seen.resting),
    _unreadable,
    _not_open,
    _said("not-shared", lambda seen: seen.not_shared),
)
"""The checks, in the order in which their reasons are listed."""
