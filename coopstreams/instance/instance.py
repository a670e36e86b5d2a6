"""An instance: one process, one member of the group, and its control thread.

    reader -> dispatch -> stream threads (tasks, commits)          this file decides which tasks open and close
    group member ----^        ^---- opener (barrier, positions, restore)

The control thread owns the reader and the task registry; all other threads send it
events. It never blocks for longer than one fetch.

Invariant: a task reaches a stream thread only through the opener, and a task is
released to the group only after `Closed`.
Relies on: `task_registry` (which task opens, waits or closes next), `tasks/events.py`,
`group/holdings.py` (epochs), `held_errors` (which errors count).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from coopstreams.common.backoff import BackOff
from coopstreams.common.host import Empty, Inbox
from coopstreams.group.format_level import in_words, level_of
from coopstreams.group.holdings import Assigned, Lost, Refused
from coopstreams.group.members import Cluster
from coopstreams.instance.components import Components
from coopstreams.instance.dispatch import Dispatcher
from coopstreams.instance.presence import Presence
from coopstreams.instance.share_threads import share_members
from coopstreams.instance.state_cleanup import Leftovers
from coopstreams.instance.stream_threads import StreamThreads
from coopstreams.instance.task_registry import (
    Action,
    Do,
    Standing,
    State,
    TaskRegistry,
)
from coopstreams.instance.watcher import Watched
from coopstreams.status.stall_detector import StallDetector
from coopstreams.tasks.events import (
    Aborted,
    Cancelled,
    CaughtUp,
    Closed,
    Drains,
    Event,
    Failed,
    Matched,
    Opened,
    PolicyChanged,
    Stopping,
    ThreadAdded,
    ThreadEnded,
    ThreadRemoved,
)
from coopstreams.tasks.held_errors import Doubts
from coopstreams.tasks.incarnation import Incarnation
from coopstreams.tasks.lifecycle import (
    Lifecycle,
    StreamsState,
    StreamThreadExceptionResponse,
)
from coopstreams.tasks.resolved_topology import ResolvedTopology, at_level
from coopstreams.tasks.stream_thread import StreamThread
from coopstreams.tasks.task import Task
from coopstreams.topology.errors import ApplicationStoppedError, CoopStreamsError
from coopstreams.topology.task_id import TaskId

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""The longest time for which the control thread waits for records. An event in its
inbox ends the wait.
"""
DOUBT_S = 0.05
"""How often the control thread checks whether the group has confirmed this process,
while an error is held.
"""


class Instance:
    """The control thread of a process, from `run` until `stop`.

    Thread-safe: public methods send events to the control thread, and what others read
    (`standing`, `stalls`) is replaced as a whole.
    """

    def __init__(self, components: Components, lifecycle: Lifecycle) -> None:
        self.components = components
        self.lifecycle = lifecycle
        self._host = components.host
        self._inbox: Inbox[Event] = self._host.inbox()
        self.registry = TaskRegistry()
        self._leftovers = Leftovers(components.databases, self._kept)
        self._stood_by: tuple[tuple[TaskId, ...], ...] = ((), ())
        """The standbys that the opener was last asked to keep, and those of them that
        are warm-ups.
        """
        self._tasks: dict[TaskId, Task] = {}
        self._homes: dict[TaskId, StreamThread] = {}
        self._closing = False
        self._late: list[Failed] = []
        """The stream threads that died while the instance closed."""
        self._opened: dict[TaskId, Incarnation] = {}
        self._assigned: Assigned | None = None
        self.standing = Standing()
        """What other threads read of this instance. Replaced as a whole."""
        self._stop = self._host.signal()
        self.begun = False
        """Whether the instance has asked to join the group, or is about to ask. From
        then on, it has to drain when it stops.
        """
        # Whether threads were started, which close what they use.
        self._threaded = False
        self.began = self._host.now()
        self._doubts = Doubts()
        self._back_off = BackOff()
        self._resting: dict[int, tuple[float, str]] = {}
        """The dead stream threads: when the back-off of the successor ends, and the
        error of the dead thread.
        """
        plan = components.plan
        self._dispatcher = Dispatcher(
            components.log.reader(),
            components.timestamp_of,
            components.operator_times_of,
            components.writers_of,
            components.source_times,
            plan.config["max.bytes.key.range.cache"],
            components.metrics,
            self._host,
        )
        self._threads = StreamThreads(plan.config["num.stream.threads"], self._tell)
        announced = components.restrictions.announced
        self.presence = Presence(plan, self._threads, announced, self._host)
        rows = components.row_warmth(
            lambda: self.standing,
            lambda: self.opener.standbys,
        )
        self.member = components.member(self.presence, rows, self._tell)
        self._threads.make(partial(components.thread, self.member, self._tell))
        self.opener = components.opener(
            self.member,
            self._tell,
            self._threads.look,
            lifecycle.restore_listener,
        )
        self.share = share_members(components, self._tell, self._why_none_dealt)
        self._subscription = components.subscription(self._tell)
        stall_detector = StallDetector.of(plan.config)
        watched = Watched(
            lambda: self.standing,
            self._threads.paused,
            self._dispatcher.all_read,
            self._dispatcher.may_not_read,
        )
        self._topic_changes = components.topic_changes(
            watched.standing,
            stall_detector,
            self._tell,
        )
        self.snapshots = components.snapshot_taker(watched.standing)
        self._watcher = components.watcher(
            watched,
            stall_detector,
            self._topic_changes,
            self.member,
            rows,
            self._tell,
        )

    def run(self) -> None:
        """Run as a member of the group until `stop`; then close the tasks, commit and
        leave the group.

        Raises:
            ProcessingError: a record failed and the handler says `fail`.
            CoopStreamsError: an error that repetition does not cure. It names its
            place.
        """
        self.components.globals.load(self._stop.is_set)
        self.begun = True
        # after `begun`: either this thread sees the stop, or `stop` returns that there
        # is something to drain
        if self._stop.is_set():
            return
        self.components.globals.follow(
            lambda error: self._tell(Failed(error, "global tables"))
        )
        self._threaded = True
        self.opener.start()
        self._threads.start()
        self.member.start()
        self._watcher.start()
        if self.snapshots is not None:
            self.snapshots.start()
        self._subscription.start()
        self.share.start()
        failure: Failed | None = None
        response: StreamThreadExceptionResponse | None = None
        try:
            while not self._stop.is_set() and failure is None:
                failure = self._turn()
                if failure is not None:
                    response = self.lifecycle.response(failure)
                    if response is StreamThreadExceptionResponse.REPLACE_THREAD:
                        self._replace(failure)
                        failure = None
            self.lifecycle.to(
                StreamsState.PENDING_SHUTDOWN
                if failure is None
                else StreamsState.PENDING_ERROR
            )
            if (
                failure is not None
                and response is StreamThreadExceptionResponse.SHUTDOWN_APPLICATION
            ):
                self._end_application(failure.error)
        finally:
            self._close(clean=failure is None)
        failure = failure or self._failed_at_last()
        if failure is not None:
            raise failure.raised

    def stop(self, *, wait_for_calls: bool = True) -> bool:
        """Ask the instance to end; return whether it has to drain. Signal handlers may
        call it.

        `wait_for_calls`: let calls under way end, for up to `max.revoke.delay.ms`. If
        they are waited for already, False ends that.
        """
        self._stop.set()
        if not wait_for_calls:
            self._threads.hurry()
            self.share.hurry()
        self._tell(Stopping())
        return self.begun

    def release(self) -> None:
        """Close the clients of threads that were never started, because `run` was not
        called or failed early.
        """
        if not self._threaded:
            for close in (
                self._threads.release,
                self.opener.release,
                self._dispatcher.close_reader,
            ):
                close()

    def pause(self, paused: bool) -> None:
        """Pause or resume the processing of records.

        A paused instance stays a member of the group with its tasks. It goes on to
        restore them, to commit and to answer queries.
        """
        if paused is not self.paused:
            log.info("processing is paused" if paused else "processing goes on")
        self._threads.pause(paused)

    @property
    def paused(self) -> bool:
        """Whether processing is paused."""
        return self._threads.paused()

    @property
    def busy(self) -> bool:
        """Whether records wait to be processed or fetched. Fetching counts because it
        takes the interpreter as well.
        """
        return not self.paused and (
            any(thread.backlog for thread in self._threads) or self._dispatcher.behind
        )

    def add_thread(self) -> str | None:
        """Ask for one more stream thread; return its name. None: the instance does not
        run (yet, or any more).
        """
        return self._threads.add() if self._runs else None

    def remove_thread(self) -> str | None:
        """Ask a stream thread to end; return its name. None: the instance does not run,
        or it is the last thread.
        """
        return self._threads.remove() if self._runs else None

    @property
    def _runs(self) -> bool:
        return self.begun and not self._stop.is_set()

    @property
    def stalls(self) -> StallDetector:
        """The stalled tasks that the watcher has found."""
        return self._watcher.stalls

    @property
    def reader(self) -> Dispatcher:
        """The dispatcher, which knows the reader's positions."""
        return self._dispatcher

    def _why_none_dealt(self) -> str:
        """Return why share threads may take no records now; empty: they may."""
        if self.paused:
            return "processing is paused"
        standing = self.standing
        return (
            "the group has not taken this process in yet"
            if standing.assigned is None
            else standing.waits
        )

    def _publish(self) -> None:
        """Replace `standing`, which other threads read."""
        self.standing = Standing(
            self._assigned,
            dict(self.registry.states),
            dict(self._tasks),
            dict(self._homes),
            tuple(
                f"{held.failure.where}: {held.failure.error}"
                for held in self._doubts.held
            ),
            dict(self._resting),
        )

    def _turn(self) -> Failed | None:
        """Handle the events, then fetch once, unless an error is held. Return an error
        that ends the instance; None: go on.
        """
        failure = self._handle_events()
        if failure is not None:
            return failure
        self._leftovers.look(self._host.now())
        if self._doubts.held:
            return self._settle_doubts()
        return self._fetch()

    def _handle_events(self) -> Failed | None:
        """Handle the events that have come, or wait for one if nothing can be fetched.
        Return an error that ends the instance; None: all are handled, and errors that
        may be void are held.
        """
        wait_s = 0.0
        if self._doubts.held:
            wait_s = DOUBT_S
        elif not self._dispatcher:
            wait_s = WAIT_S
        with suppress(Empty):
            while True:
                event = (
                    self._inbox.get(timeout=wait_s)
                    if wait_s
                    else self._inbox.get_nowait()
                )
                wait_s = 0.0
                failure = self._handle(event)
                doubtful = failure is not None and self._doubtful(failure)
                self._publish()
                if failure is not None and not doubtful:
                    return failure
                self._note_state()
        return None

    def _note_state(self) -> None:
        """Tell the listeners whether all tasks are open. If so, spread the tasks over
        the threads after a thread was added.
        """
        settled = self._settled()
        self.lifecycle.to(StreamsState.RUNNING if settled else StreamsState.REBALANCING)
        self._leftovers.note(self._takes_tasks(), self._host.now())
        if settled and (moving := self._threads.to_move(self._homes)):
            self._do(self.registry.reopen(moving))

    def _fetch(self) -> Failed | None:
        """Fetch once, and hand the records to the stream threads. Return an error that
        ends the instance; None: go on.
        """
        try:
            if self._dispatcher:
                self._dispatcher.move(WAIT_S)
        except CoopStreamsError as error:
            if self._subscription.may_cure(error):
                self._host.sleep(DOUBT_S)
            else:
                self._doubtful(Failed(error, "reader"))
        except SystemExit as error:
            # The reader runs functions of the program, too: see `operator_time`.
            return Failed(error, "reader")
        return None

    def _tell(self, event: Event) -> None:
        """Put an event into the control thread's inbox, and end its wait. Any thread
        and signal handlers may call it.
        """
        self._inbox.put(event)
        self._dispatcher.wake()

    def _doubtful(self, failure: Failed) -> bool:
        """Hold an error that a lost membership may explain, and ask the group; return
        whether the error is held.
        """
        if not failure.doubtful:
            return False
        self._doubts.hold(failure, self.member.ask())
        log.warning(
            "%s: %s; the group is asked whether this process still is a member before that counts",
            failure.where,
            str(failure.error).removesuffix("."),
        )
        return True

    def _settle_doubts(self) -> Failed | None:
        """Return the first held error that counts, because the group has confirmed this
        member, or the cause of that error. None: no held error counts yet.

        Void errors are dropped; the stream threads that died of them are replaced.
        """
        counts, void = self._doubts.settle(self.member.confirmed)
        self._publish()
        for failure in void:
            log.warning(
                "%s: ignored, because the tasks of this error belong to another process by now",
                failure.where,
            )
            if failure.thread is not None:
                self._replace(failure)
        return None if counts is None else self._topic_changes.explained(counts)

    def _failed_at_last(self) -> Failed | None:
        """Return the error of a stream thread that failed while the instance closed;
        None if none failed.
        """
        if doubtful := next(
            (
                held.failure
                for held in self._doubts.held
                if held.failure.thread is not None
            ),
            None,
        ):
            return doubtful
        if self._late:
            return self._late[0]
        with suppress(Empty):
            while True:
                event = self._inbox.get_nowait()
                if isinstance(event, Failed) and event.thread is not None:
                    return event
        return None

    def _handle(self, event: Event) -> Failed | None:
        """Handle one event. Return the error that it reports, or that handling it
        raised; None: it was handled.
        """
        match event:
            case Failed(thread=thread):
                if thread is not None:
                    self.components.metrics.thread_failed(thread)
                return event
            case Assigned():
                return self._take_assignment(event)
            case Refused(error):
                return Failed(error, "group")
            case Lost(epoch):
                self._doubts.epoch = epoch
                log.warning(
                    "the group has removed this process; uncommitted records are processed again"
                )
                self.registry.standbys = ()
                self._do(self.registry.lost())
            case CaughtUp():
                self._say_what_is_ready()
            case Matched(resolved):
                self._read_topics(resolved)
            case PolicyChanged(announced, reopened):
                if announced:
                    self.member.rejoin()
                self._do(self.registry.reopen(self.registry.of(reopened)))
            case ThreadAdded() | ThreadRemoved() | ThreadEnded():
                self._change_threads(event)
            case Opened() | Closed() | Drains() | Aborted() | Cancelled():
                return self._change_task(event)
        return None

    def _take_assignment(self, event: Assigned) -> Failed | None:
        """Open and close tasks as an assignment says. Return the error with which
        another process stops all instances; None: there is none.
        """
        self._say_why(event.waits)
        self._assigned = event
        self._doubts.epoch = event.epoch
        for member in event.cluster.members:
            if member.info.ending:
                info = member.info
                why = f"{info.process} on {info.host} has all instances stop: {info.ending}"
                return Failed(ApplicationStoppedError(why), "group")
        for message in self.components.twins(event.cluster):
            log.error("%s", message)
        self._change_level(event.cluster)
        self.components.metrics.rebalanced(event.generation)
        self.components.directory.note_member(self.member.id)
        self._threads.known(self.presence.known_threads(event.cluster))
        # A static member takes its predecessor's tasks in a generation that may have
        # been told of other ids. It has asked for the next one.
        self.registry.unheard = not self._threads.take_tasks
        self.opener.follow_generation(event)
        self.registry.standbys = event.standbys
        self._do(self.registry.assigned(event.added, event.revoked))
        self._say_what_is_ready()  # what got so since this process joined
        if not all(self.components.sources(task) for task in event.added):
            self._subscription.hurry()
        return None

    def _say_what_is_ready(self) -> None:
        """Have tasks move here whose warm-ups are ready."""
        standbys = self.opener.standbys
        self.member.caught_up([task for task, each in standbys.items() if each.ready])

    def _read_topics(self, resolved: ResolvedTopology) -> None:
        """Replace the plan by one with the topics that match the patterns now. Tasks
        with other topics are opened again.
        """
        before = self.components.plan
        resolved = at_level(resolved, before.config, before.resolved.level)
        plan = self.components.plan = replace(before, resolved=resolved)
        self.member.subscribe(plan.subscribed, plan.source_topics)
        changed = resolved.changed(before.resolved)
        self._do(self.registry.reopen(self.registry.of(changed)))

    def _change_level(self, cluster: Cluster) -> None:
        """Have all tasks write other formats, if the members of a new generation can
        write newer ones, or one cannot write those of now. The tasks are opened again.
        """
        plan = self.components.plan
        level = level_of(cluster, self.components.deployed.level)
        if level == plan.resolved.level:
            return
        before = self.components.restrictions.announced()
        resolved = at_level(plan.resolved, plan.config, level)
        self.components.plan = replace(plan, resolved=resolved)
        log.warning(
            "from now on the group writes the formats of release %s",
            in_words(level, cluster),
        )
        self.opener.take_over_again()
        self._do(self.registry.reopen(self.registry.of(plan.programs)))
        if self.components.restrictions.announced() != before:
            self.member.rejoin()

    def _change_task(
        self,
        event: Opened | Closed | Drains | Aborted | Cancelled,
    ) -> Failed | None:
        """Apply an event about tasks; return the error of a task that could not begin,
        else None. Events of an earlier opening of a task are ignored.
        """
        match event:
            case Opened(incarnation):
                self._opened[incarnation.id] = incarnation
                try:
                    self._do(self.registry.opened(incarnation.id))
                except CoopStreamsError as error:
                    # An operator reads rows when it begins, as `suppress` does.
                    return Failed(error, f"task {incarnation.id}")
            case Closed(task) if self._tasks.get(task.id) is task:
                self._do(self.registry.closed(task.id))
                # Last: what has moved away is deleted while the database is open.
                self._forget([task])
            case Drains(task) if self._tasks.get(task.id) is task:
                self._let_others_go(task)
            case Aborted(tasks, held=held):
                if held is not None:
                    self.opener.hold(held)
                mine = [task for task in tasks if self._tasks.get(task.id) is task]
                self._forget(mine)
                self._subscription.hurry()
                self._do(self.registry.aborted([task.id for task in mine]))
            case Cancelled(task_id):
                self.components.metrics.task_closed(task_id)
                self._do(self.registry.closed(task_id))
        return None

    def _change_threads(self, event: ThreadAdded | ThreadRemoved | ThreadEnded) -> None:
        """Start a stream thread, ask one to end, or forget one that has ended. The
        group learns the number of threads.
        """
        match event:
            case ThreadAdded(number):
                self._threads.added(number)
                self.member.rejoin()
            case ThreadRemoved(number):
                # The thread closes its tasks before it ends, because that message comes
                # first; other threads open them.
                if (leaves := self._threads.leaves(number)) is not None:
                    homes = self._homes.items()
                    moving = [task for task, home in homes if home is leaves]
                    self._do(self.registry.reopen(moving))
                    leaves.retire()
                self.member.rejoin()
            case ThreadEnded(number):
                self._threads.ended(number)

    def _let_others_go(self, slow: Task) -> None:
        """Have the group take other tasks that are given up without waiting for one that
        waits for its calls. If this process ends, it takes all of them.

        A static member keeps its tasks while it restarts.
        """
        self.member.drains([slow.id])
        if self._closing and not self._is_static and not self.presence.leaving:
            log.info("%s waits for calls; others take the other tasks meanwhile", slow)
            self.presence.leave()
            self.member.rejoin()

    def _say_why(self, waits: str) -> None:
        """Log when the group stops giving this process tasks, with the reason, and when
        it starts again.
        """
        waited = self.standing.waits
        if waits and not waited:
            log.warning(
                "this process gets no tasks: %s. If it is no new version of the same program, give it an "
                "application.id of its own",
                waits,
            )
        elif waited and not waits:
            log.info("the group runs the version of this process now")

    def _settled(self) -> bool:
        """Return whether the group gives this process tasks, and all of them are open
        (restored, so that they process records).
        """
        return self._takes_tasks() and all(
            state is State.RUNNING for state in self.registry.states.values()
        )

    def _takes_tasks(self) -> bool:
        """Return whether this process is a member of the group, which does not refuse
        it tasks.
        """
        return (
            self._assigned is not None
            and self._assigned.epoch == self._doubts.epoch
            and not self._assigned.waits
        )

    def _replace(self, failure: Failed) -> None:
        """Start the successor of a dead stream thread. The thread's tasks are opened
        again from the log.
        """
        assert failure.thread is not None
        now = self._host.now()
        rests_s = self._back_off.died(now)
        self._resting[failure.thread] = (
            now + rests_s,
            f"{type(failure.error).__name__}: {failure.error}",
        )
        log.error(
            "%s has died; another takes its place in %g s",
            failure.where,
            rests_s,
            exc_info=failure.error,
        )
        dead = self._threads.replace(failure.thread, rests_s)
        tasks = [task for id_, task in self._tasks.items() if self._homes[id_] is dead]
        for task in tasks:
            # the dead thread has not discarded a task that had not reached it
            task.discard()
        self._forget(tasks)
        self._do(self.registry.aborted([task.id for task in tasks]))

    def _end_application(self, error: BaseException) -> None:
        """Stop all instances: the member info of this one carries the error, and all
        members get it with the next assignment.

        Returns when the others have left, at the latest after a session: if this
        process left first, a member that was slow to fetch its assignment would never
        see it. It would get the tasks, and fail of the same record.
        """
        self.presence.end(error)
        session_s = self.components.plan.config["session.timeout.ms"] / 1000
        give_up = self._host.now() + session_s
        self.member.rejoin()
        told = False
        while (left := give_up - self._host.now()) > 0:
            try:
                event = self._inbox.get(timeout=left)
            except Empty:
                break
            if isinstance(event, Assigned):
                ending = [bool(m.info.ending) for m in event.cluster.members]
                if all(ending):
                    return
                told = told or any(ending)
        if not told:
            log.error("the other instances could not be told to stop; they go on")

    def _do(self, actions: Iterable[Action]) -> None:
        """Carry out what the registry has decided."""
        closing: dict[StreamThread, list[Task]] = {}
        dirty = False
        released: list[TaskId] = []
        # First: a query must not take a task for open that is about to be closed.
        self._publish()
        for action in actions:
            id_ = action.task
            match action.do:
                case Do.OPEN:
                    assert self._assigned is not None
                    self.opener.open(id_, self._assigned.epoch)
                case Do.CANCEL:
                    self.opener.cancel(id_)
                case Do.RUN:
                    self._start(self._opened.pop(id_))
                case Do.DROP:
                    self._drop(self._opened.pop(id_))
                case Do.CLOSE | Do.CLOSE_DIRTY:
                    dirty = action.do is Do.CLOSE_DIRTY
                    self._dispatcher.close(self._tasks[id_])
                    closing.setdefault(self._homes[id_], []).append(self._tasks[id_])
                case Do.RELEASE:
                    if not self._closing:  # else it may be back soon
                        self.opener.moved_away(id_, self._kept())
                    released.append(id_)
        for thread, tasks in closing.items():
            thread.close(tuple(tasks), clean=not dirty)
        self._stand_by()
        if released:
            assert self._assigned is not None
            self.member.released(released, self._assigned.serial)

    def _stand_by(self) -> None:
        """Tell the opener which standbys to keep. Last: a task that is opened takes the
        database over from its standby.
        """
        standbys = self.registry.stands_by
        warming = tuple(
            standby
            for standby in standbys
            if self._assigned is not None
            and any(standby.conflicts(task) for task in self._assigned.warming)
        )
        if (standbys, warming) != self._stood_by:
            assert self._assigned is not None
            self._stood_by = (standbys, warming)
            self.opener.stand_by(standbys, warming, self._assigned.epoch)

    def _kept(self) -> set[TaskId]:
        """Return the tasks whose rows stay on this disk; those of a standby until it
        writes no more.
        """
        return self.registry.here | set(self.opener.standbys)

    def _drop(self, opened: Incarnation) -> None:
        """Close what was opened for a task that is no longer wanted."""
        if opened.sink is not None:
            opened.sink.close()
        self.components.databases.leave(opened.id)
        self.components.metrics.task_closed(opened.id)

    def _start(self, incarnation: Incarnation) -> None:
        """Make the task of what the opener has opened, and give it to a thread."""
        home = self._threads.home(incarnation.id, self._homes)
        task = self.components.task(incarnation, home.committer)
        self._tasks[task.id] = task
        self._homes[task.id] = home
        home.open(task)  # first: its thread must know it when records come
        self._dispatcher.open(task, home)
        log.info("task %s runs on thread %d", task.id, home.number)

    def _forget(self, tasks: Iterable[Task]) -> None:
        """Stop reading for tasks that no thread has any more, and give up their state."""
        for task in tasks:
            self._dispatcher.close(task)
            del self._tasks[task.id], self._homes[task.id]
            # First: a view must not be opened in a database that is about to be closed.
            self._publish()
            self.opener.closed(task.id)
            self.components.closed(task)

    def _close(self, *, clean: bool) -> None:
        """Close all parts in order: stop reading, commit, leave the group, close the
        reader. A part that fails does not stop the others.

        A static member that ends cleanly stays in the group: if it is back within its
        session, no task moves.
        """
        deadline = self._host.now() + self.components.plan.ends_s
        with ExitStack() as closing:  # calls the last one first
            for end in (
                self._dispatcher.close_reader,
                partial(self.member.close, leave=not (clean and self._is_static)),
                self.opener.stop,
                self._watcher.stop,
            ):
                closing.callback(end)
            closing.callback(self._subscription.stop)
            if self.snapshots is not None:
                closing.callback(self.snapshots.stop)
            closing.callback(self.share.stop, deadline)
            closing.callback(self._end_threads, deadline, clean=clean)
            if clean:
                self._give_tasks_up(deadline)

    def _give_tasks_up(self, deadline: float) -> None:
        """Close all tasks. While some wait for calls, release the others, which were
        closed meanwhile, to the group.
        """
        self._closing = True
        self.share.ask_to_stop()
        self._do(self.registry.stop())
        while self._waits_for_calls() and (left := deadline - self._host.now()) > 0:
            try:
                event = self._inbox.get(timeout=min(WAIT_S, left))
            except Empty:
                continue
            match event:
                case Failed(thread=thread) if thread is not None:
                    self._late.append(event)
                    return
                case (
                    Assigned()
                    | Lost()
                    | Opened()
                    | Closed()
                    | Drains()
                    | Aborted()
                    | Cancelled()
                ):
                    self._handle(event)
                    self._publish()

    def _waits_for_calls(self) -> bool:
        """Return whether a stream thread may still wait for the calls of a task."""
        return any(
            task.calls is not None and self._homes[id_].alive
            for id_, task in self._tasks.items()
        )

    def _end_threads(self, deadline: float, *, clean: bool) -> None:
        """End the stream threads, which commit. If nothing is under way then, say so to
        the next process on this state folder.
        """
        in_time = self._threads.stop(lambda: max(0.1, deadline - self._host.now()))
        if clean and in_time:
            self.components.directory.note_end()

    @property
    def _is_static(self) -> bool:
        return self.components.plan.instance_id is not None
