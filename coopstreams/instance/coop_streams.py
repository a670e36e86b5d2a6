"""`CoopStreams`: one running instance of an application, started by `coopstreams run`
or by a user's program.

Invariant: whatever ends the instance is raised once: by `run`, or by the block.
Relies on: `components` (what is built, and closed), `instance` (the threads),
`tasks.lifecycle` (the states), `serving` (what the query server answers).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from coopstreams.common.config import Config
from coopstreams.common.interrupts import Requests, listening
from coopstreams.common.optional_packages import need_http
from coopstreams.instance.components import Components
from coopstreams.instance.instance import Instance
from coopstreams.instance.read_only import ReadOnlyStore
from coopstreams.instance.serving import Serving
from coopstreams.query.access import Access
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.problems import moving, unknown_store
from coopstreams.query.serving.server import QueryServer, url_of
from coopstreams.state.storage import Storage
from coopstreams.tasks.lifecycle import (
    Lifecycle,
    RestoreListener,
    StateListener,
    StreamsState,
    UncaughtExceptionHandler,
)
from coopstreams.topology.errors import ConfigError, CoopStreamsError, SnapshotError
from coopstreams.topology.graph.topology import Topology

if TYPE_CHECKING:
    from coopstreams.query.app import MountedApp, QueryApp

log = logging.getLogger(__name__)

GIVE_UP_S = 5.0
"""How long a block that fails while it is entered waits for the end of the instance:
brokers may not answer.
"""


class CoopStreams:
    """One instance of an application: a process of the group, with its tasks, state and
    query server.

    `run()` blocks until `stop()`, Ctrl-C or SIGTERM. As a context manager the instance
    runs on a thread of its own, which suits notebooks and tests. `async with` does the
    same for asyncio: nothing blocks the event loop, and an error that ends the instance
    cancels the block and is raised by it.

    `on_state(new, old)` is called at each change of `state`, by the thread that changes
    it. `on_error(error)` is called when an error ends a stream thread, and returns a
    `StreamThreadExceptionResponse`; without it this instance ends. The methods of
    `restore_listener` are called while stores are restored, by the threads that restore
    them.

    `from_savepoint`: the name of another application's savepoint at `snapshots.dir`. This
    application begins with its state and positions, unless it has run before.

    An instance runs once: to try again after an error, create another one. Thread-safe.

    Raises (`run`):
        ConfigError, TopologyError: before any connection, or when the topics do not fit
        the topology.
        LogError: Kafka cannot be reached, or refused a request.
        ProcessingError: a record failed and its handler says `fail`.
        RuntimeError: it has run before.
    """

    def __init__(
        self,
        topology: Topology,
        config: Config | Mapping[str, Any],
        *,
        on_state: StateListener | None = None,
        on_error: UncaughtExceptionHandler | None = None,
        restore_listener: RestoreListener | None = None,
        from_savepoint: str | None = None,
    ) -> None:
        self.topology = topology
        self.config = Config.of(config, topology.application_id)
        if from_savepoint is not None and self.config["snapshots.dir"] is None:
            raise ConfigError(
                f"savepoint {from_savepoint}: snapshots.dir is not set: say where it is"
            )
        self._from_savepoint = from_savepoint
        self.url: str | None = None
        """The address of this instance's query server; None before it runs, or without
        a server.
        """
        self.details: dict[str, str | int | float] = {}
        """Further entries of this instance in `/v1/status`."""
        self._instance: Instance | None = None
        self._serving: Serving | None = None
        self._stopped = threading.Event()
        self._started = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._block: _Block | None = None
        self._mounted: MountedApp | None = None
        self._paused = False
        self._pausing = threading.Lock()
        self._lifecycle = Lifecycle(on_state, on_error, restore_listener)

    @property
    def state(self) -> StreamsState:
        """The state of this instance."""
        return self._lifecycle.state

    def run(self) -> None:
        """Run until `stop`, Ctrl-C or SIGTERM; then drain, commit and leave the group."""
        self._check_new()
        before = _on_signals(self.stop)
        try:
            self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self, *, wait_for_calls: bool = True) -> bool:
        """Ask the instance to drain and end, and return at once. It may be called
        before `run`.

        `wait_for_calls`: let calls of asynchronous operators end, for up to
        `max.revoke.delay.ms`. If they are waited for already, False ends that.

        Shape: True if the instance has begun to join the group, so that `run` has to
        drain before it returns.
        """
        self._stopped.set()
        instance = self._instance
        return instance is not None and instance.stop(wait_for_calls=wait_for_calls)

    def pause(self) -> None:
        """Stop processing records and punctuations until `resume`. Any thread may call
        it, even before `run`.

        The instance keeps its tasks. It goes on to commit what it has processed, to
        restore and to answer queries.
        """
        self._pause(True)

    def resume(self) -> None:
        """Process records and punctuations again after `pause`."""
        self._pause(False)

    @property
    def paused(self) -> bool:
        """Whether processing is paused, by `pause` or over HTTP."""
        instance = self._instance
        return self._paused if instance is None else instance.paused

    def add_stream_thread(self) -> str | None:
        """Start one more stream thread; return its name at once.

        The group then cuts the key ranges again; the thread has tasks as soon as they
        have moved. None: the instance does not run (yet, or any more).
        """
        return None if self._instance is None else self._instance.add_thread()

    def remove_stream_thread(self) -> str | None:
        """End a stream thread; return its name at once.

        The thread commits, and its tasks move to the other threads and instances. None:
        the instance does not run, or this is its last thread: `pause` or `stop` the
        instance.
        """
        return None if self._instance is None else self._instance.remove_thread()

    def status(self) -> dict[str, Any] | None:
        """Return the status of this instance, in the form of `/v1/status`; None before
        it runs.
        """
        if self._serving is None:
            return None
        report: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(self._serving.status())
        )
        return report

    def store(self, name: str) -> ReadOnlyStore:
        """Return a store of this instance, to read without HTTP the keys that this
        instance owns.

        Raises:
            QueryError: UNKNOWN_STORE; TASK_MOVING (`retryable`): this instance does not
            run yet.
        """
        if self._serving is None:
            raise moving("this instance does not run yet")
        stores = self._serving.stores()
        if name not in stores:
            raise unknown_store(name, list(stores))
        return ReadOnlyStore(self._serving, stores[name])

    def asgi(self) -> MountedApp:
        """Return the paths of the query server as an ASGI app, for `mount` of Starlette
        or FastAPI.

        The app answers while this instance's `async with` block runs, on the event loop
        of that block; otherwise with 503.

        Raises:
            ConfigError: the extra `http` is missing.
        """
        need_http("asgi()")
        from coopstreams.query.app import MountedApp

        self._mounted = self._mounted or MountedApp()
        return self._mounted

    def _pause(self, paused: bool) -> None:
        """Pause or resume the instance; before it exists, note it for `_run_instance`."""
        with self._pausing:
            self._paused = paused
            if self._instance is not None:
                self._instance.pause(paused)

    async def __aenter__(self) -> Self:
        self._check_new()
        self._block = block = _Block()
        try:
            await asyncio.to_thread(self.__enter__)
            await self._mount(block)
        except BaseException:
            self.stop()
            with suppress(TimeoutError):
                async with asyncio.timeout(GIVE_UP_S):
                    await block.ended.wait()
            raise
        if self._error is not None:  # it failed while this block waited for the loop
            await block.close()
            raise self._error
        block.entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._block is not None
        self._block.entered = False
        self.stop()
        await self._block.ended.wait()
        await self._block.close()
        self._raise_or_tell(
            None if error is not None and self._block.was_cancelled(error) else error
        )

    async def _mount(self, block: _Block) -> None:
        """Answer queries on the event loop of `block`, if the user has taken `asgi()`."""
        if (
            self._mounted is not None
            and self._instance is not None
            and self._serving is not None
        ):
            from coopstreams.query.app import QueryApp

            metrics = self._instance.components.metrics
            access = Access.of(self.config.values)
            if access.names:  # otherwise, names are up to the program's own server
                access = access.known_as(self.url or "")
            await block.serve(
                self._mounted,
                QueryApp(
                    self._serving,
                    metrics,
                    replace(self._limits, cpu_share=None),
                    access,
                ),
            )

    def __enter__(self) -> Self:
        self._check_new()
        self._thread = threading.Thread(
            target=self._run_quietly,
            name=f"coopstreams-{self.config['application.id']}",
            daemon=True,
        )
        try:
            self._thread.start()
            self._started.wait()
        except BaseException:  # Ctrl-C: there is no block whose end would stop it
            self.stop()
            with suppress(RuntimeError):  # the thread had not started
                self._thread.join(GIVE_UP_S)
            raise
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._raise_or_tell(error)

    def _raise_or_tell(self, error: BaseException | None) -> None:
        """Raise the error that has ended the instance, if there is one. If the block
        has an `error` already, add a note to that one.
        """
        if self._error is not None and error is None:
            raise self._error
        if self._error is not None and error is not None:
            error.add_note(
                f"{self._name} had ended by {type(self._error).__name__}: {self._error}"
            )

    @property
    def _name(self) -> str:
        return f'the application "{self.config["application.id"]}"'

    def _check_new(self) -> None:
        """Raise a RuntimeError if this object has run before."""
        if self.state is not StreamsState.CREATED:
            raise RuntimeError(
                f'this instance of "{self.config["application.id"]}" has run before, it is {self.state.value}: make '
                "another CoopStreams"
            )

    def _run_quietly(self) -> None:
        """Run on a thread of its own; keep the error for the block."""
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 raised again by the thread that uses the context manager
            self._error = error
            if self._started.is_set():  # the block may go on for long
                log.error(
                    "%s has ended by %s: %s",
                    self._name,
                    type(error).__name__,
                    error,
                )
        finally:
            self._started.set()
            if self._block is not None:
                self._block.end(failed=self._error is not None)

    def _run(self) -> None:
        """Run the instance, and set the states around that."""
        try:
            self._lifecycle.to(StreamsState.REBALANCING)
            self._run_parts()
        except BaseException:
            self._lifecycle.to(StreamsState.ERROR)
            raise
        self._lifecycle.to(StreamsState.NOT_RUNNING)

    def _run_parts(self) -> None:
        """Run the instance. An error counts as a normal end if `stop` was called before
        it had begun to join.
        """
        try:
            self._run_instance()
        except CoopStreamsError as error:
            if not self._stopped.is_set() or (
                self._instance is not None and self._instance.begun
            ):
                raise
            log.info(
                "it was asked to end while it started, and would have failed: %s",
                error,
            )

    def _run_instance(self) -> None:
        """Build the parts, serve queries, run the instance, and close all in the
        reverse order.
        """
        if self.config["http.listen"]:
            need_http("the query server", ', or turn it off with http.listen=""')
        if self.config["snapshots.dir"]:
            _check_snapshots(self.config["snapshots.dir"])
        with Components.build(self.topology, self.config) as components:
            if self._from_savepoint is not None:
                components.seed(self._from_savepoint)
            instance = Instance(components, self._lifecycle)
            with self._pausing:  # `_pause` meanwhile waits, and finds the instance
                instance.pause(self._paused)
                self._instance = instance
            self._serving = Serving(instance, self.details)
            server = self._serve(instance, self._serving)
            self._started.set()
            try:
                if not self._stopped.is_set():
                    instance.run()
            finally:
                if server is not None:
                    server.stop()
                self._serving.end()
                instance.release()

    def _serve(self, instance: Instance, serving: Serving) -> QueryServer | None:
        """Start the query server and return it; None: `http.listen` is not set, so no
        server was started.

        The server runs from before the group knows this instance until after it has
        left the group.
        """
        config = self.config
        if not config["http.listen"]:
            if config["application.server"]:  # the program answers there, with `asgi()`
                scheme = "https" if config["http.ssl.certificate.location"] else "http"
                self.url = instance.presence.url = url_of(
                    config["application.server"],
                    scheme,
                )
            return None
        server = QueryServer(
            config["http.listen"],
            config["application.server"],
            Access.of(config.values),
        )
        self.url = instance.presence.url = server.url
        server.start(serving, instance.components.metrics, self._limits)
        log.info("queries are answered at %s", server.url)
        return server

    @property
    def _limits(self) -> RequestLimits:
        share = self.config["http.cpu.share"]
        return RequestLimits(
            connections=self.config["http.max.connections"],
            cpu_share=share,
        )


class _Block:
    """The block of an `async with`. It is cancelled if the instance fails meanwhile.
    Used on the event loop.
    """

    def __init__(self) -> None:
        self.entered = False
        self.ended = asyncio.Event()
        self._cancelled = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._serving = AsyncExitStack()

    def end(self, *, failed: bool) -> None:
        """Note that the instance has ended. Any of its threads may call it."""
        with suppress(
            RuntimeError
        ):  # the loop is closed: the block was given up before the instance had drained
            self._loop.call_soon_threadsafe(self._end, failed)

    def was_cancelled(self, error: BaseException) -> bool:
        """Return whether this error ends the block because it was cancelled here, and
        not by other code.
        """
        if not self._cancelled or not isinstance(error, asyncio.CancelledError):
            return False
        assert self._task is not None
        return self._task.uncancel() == 0

    async def serve(self, mounted: MountedApp, app: QueryApp) -> None:
        """Answer queries at `mounted` until `close`."""
        await self._serving.enter_async_context(mounted.serving(app))

    async def close(self) -> None:
        """Stop answering queries."""
        await self._serving.aclose()

    def _end(self, failed: bool) -> None:
        """On the event loop: note the end, and cancel the block if the instance
        `failed`.
        """
        self.ended.set()
        if failed and self.entered and self._task is not None:
            self._cancelled = True
            self._task.cancel()


def _check_snapshots(url: str) -> None:
    """Check that snapshots can be read here, before a restore needs one, without
    contacting the storage.

    Raises:
        ConfigError: they cannot be read; the message says why.
    """
    try:
        absent = Storage(url).absent
    except SnapshotError as error:
        raise ConfigError(f"snapshots.dir: {error}") from error
    if absent:
        log.warning(
            "snapshots.dir = %s: there is no such folder. State that is not here is restored from its changelogs, "
            "unless `coopstreams rebuild` publishes a snapshot there",
            url,
        )


def _on_signals(stop: Any) -> dict[int, Any]:
    """Have Ctrl-C and SIGTERM call `stop`; return the previous handlers.

    Only the main thread can set signal handlers; on other threads they are not changed.
    `coopstreams run` sets its own.
    """
    if threading.current_thread() is not threading.main_thread() or listening():
        return {}

    requests = Requests()

    def handle(number: int, _: FrameType | None) -> None:
        again = requests.again()
        at_once = " at once" if again else ""
        log.info("%s: draining%s", signal.Signals(number).name, at_once)
        stop(wait_for_calls=not again)

    return {
        number: signal.signal(number, handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
