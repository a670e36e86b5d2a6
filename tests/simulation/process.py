"""One life of one process: a real `Instance` with its threads, on a simulated machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopstreams.instance.components import Components
from coopstreams.instance.instance import Instance
from coopstreams.instance.serving import Serving
from coopstreams.tasks.lifecycle import Lifecycle
from coopstreams.topology.errors import (
    ConfigError,
    LogError,
    StateError,
    UnknownTopicError,
)
from coopstreams.topology.stores import StoreSpec
from tests.simulation.stage import Life

if TYPE_CHECKING:
    from tests.simulation.world import World

LOST_POSITIONS = "has lost its positions"
LOST_ROW = "compaction may have removed the row"
"""The reason to refuse a table whose topic was compacted ahead of the group: nothing
has the row any more.
"""


AFTER_A_RESET = (
    "deleted and made anew",
    # the woken process has written into the new changelog, in a transaction that never
    # counts
    "has records, and coopstreams has not written them",
)
"""Errors with which a process may end when an application was reset while another one
was suspended: their starts are repeated.
"""


class Process(Life):
    """One life of one process."""

    def __init__(self, world: World, number: int, life: int) -> None:
        super().__init__(world, number, life)
        self.world = world
        world.hosts.begin(number, self.machine)
        self.topology = world.topologies[world.hosts.newer]
        self.instance: Instance | None = None
        self.components: Components | None = None
        self.serving: Serving | None = None
        """Answers queries while the process runs."""
        self.reads = 0
        """The number of reads for queries that run now."""
        self.stopping = False
        self.outlasts_reset = False
        """Whether the application was reset while this process was suspended."""

    def stop(self) -> None:
        """Ask the process to drain and end."""
        self.stopping = True
        if self.instance is not None:
            self.instance.stop()

    def add_thread(self) -> None:
        """Have the process start one more stream thread."""
        if self.instance is not None:
            self.instance.add_thread()

    def remove_thread(self) -> None:
        """Have the process end a stream thread, if it has several."""
        if self.instance is not None:
            self.instance.remove_thread()

    def hold(self) -> None:
        """Pause its processing."""
        if self.instance is not None:
            self.instance.pause(True)

    def go_on(self) -> None:
        """Resume its processing."""
        if self.instance is not None:
            self.instance.pause(False)

    def kill(self) -> None:
        """Kill the process; its disk stays."""
        super().kill()
        if self.components is not None:
            self.components.directory.close()
        (self.world.folder_of(self.number) / "lock").unlink(
            missing_ok=True
        )  # as the operating system does

    def run(self) -> None:
        world = self.world
        try:
            with Components.build(
                self.topology, world.config(self.number), self.wiring()
            ) as self.components:
                self.instance = Instance(self.components, Lifecycle())
                self.instance.presence.url = f"http://{self.machine.name}"
                self.serving = Serving(self.instance, {})
                try:
                    if not self.stopping:
                        self.instance.run()
                finally:
                    self._serve_no_more(self.serving)
        except LogError as error:
            # a start that was suspended over a reset may find a topic gone between two
            # requests
            gone = world.is_reset and isinstance(error, UnknownTopicError)
            if not (error.retryable or gone) or (
                self.instance is not None and self.instance.begun
            ):
                raise
            world.say(f"{self.machine.name} has not started: {error}")
        except StateError as error:
            if "no space left" not in str(error):
                raise
            world.say(f"{self.machine.name} has ended: {error}")
        except ConfigError as error:
            if LOST_ROW in str(error) and world.compacts_ahead:
                world.say(f"{self.machine.name} is refused: {LOST_ROW}")
                world.lost_row = True
            elif world.is_reset and any(why in str(error) for why in AFTER_A_RESET):
                world.say(f"{self.machine.name} has ended: {error}")
            elif self.outlasts_reset and LOST_POSITIONS in str(error):
                # it opens tasks by commits that it read before
                world.say(f"{self.machine.name} has ended: {error}")
            elif LOST_POSITIONS not in str(error) or not world.restore_positions(self):
                raise
        self.ended = True
        # other threads, such as an opener that waits for brokers, end with the process
        self.machine.kill()

    def specs(self) -> list[StoreSpec]:
        """Return the process's stores that can be queried."""
        assert self.components is not None
        assert self.serving is not None
        known = self.serving.stores()
        return [
            spec
            for part in self.components.plan.topology.subtopologies
            for spec in part.stores
            if spec.name in known
        ]

    def _serve_no_more(self, serving: Serving) -> None:
        """Let reads end, as a server that stops does; then the databases are closed."""
        self.serving = None
        while self.reads:
            self.machine.sleep(0.01)
        serving.end()
