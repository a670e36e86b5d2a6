"""One life of one process: a real `Instance` with its threads, on a simulated machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopstreams.group.joining import Connector, Hooks, Timings
from coopstreams.instance.components import Components
from coopstreams.instance.instance import Instance
from coopstreams.instance.serving import Serving
from coopstreams.log.kafka.wiring import Wiring
from coopstreams.tasks.lifecycle import Lifecycle
from coopstreams.topology.errors import ConfigError, LogError, StateError
from coopstreams.topology.stores import StoreSpec
from tests.simulation.cluster import MachineClient, MachineLog
from tests.simulation.fibers import Machine
from tests.simulation.group import SimCoordinator

if TYPE_CHECKING:
    from tests.simulation.world import World


class Process:
    """One life of one process."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world = world
        self.number = number
        self.machine = Machine(world.scheduler, f"p{number}.{life}")
        world.hosts.begin(number, self.machine)
        self.topology = world.topologies[world.hosts.newer]
        self.client = MachineClient(world.cluster, self.machine, world.network, world.latency_s, world.killed)
        self.instance: Instance | None = None
        self.components: Components | None = None
        self.serving: Serving | None = None
        """What answers queries, while it runs."""
        self.reads = 0
        """The reads that it does for queries now."""
        self.ended = False
        self.stopping = False
        self.machine.thread(self._run, "main").start()

    def stop(self) -> None:
        """Ask it to drain and end."""
        self.stopping = True
        if self.instance is not None:
            self.instance.stop()

    def add_thread(self) -> None:
        """Have it start one more stream thread."""
        if self.instance is not None:
            self.instance.add_thread()

    def remove_thread(self) -> None:
        """Have it end a stream thread, if it has several."""
        if self.instance is not None:
            self.instance.remove_thread()

    def hold(self) -> None:
        """Have it process nothing."""
        if self.instance is not None:
            self.instance.pause(True)

    def go_on(self) -> None:
        """Have it process again."""
        if self.instance is not None:
            self.instance.pause(False)

    def kill(self) -> None:
        """End it at once; its disk stays."""
        self.machine.kill()
        self.ended = True
        if self.components is not None:
            self.components.directory.close()
        (self.world.folder_of(self.number) / "lock").unlink(missing_ok=True)  # as the system does it

    def _run(self) -> None:
        world = self.world
        wiring = Wiring(self.machine, lambda *_: MachineLog(self.client), self._coordinator)
        try:
            with Components.build(self.topology, world.config(self.number), wiring) as self.components:
                self.instance = Instance(self.components, Lifecycle())
                self.instance.url = f"http://{self.machine.name}"
                self.serving = Serving(self.instance, {})
                try:
                    if not self.stopping:
                        self.instance.run()
                finally:
                    self._serve_no_more(self.serving)
        except LogError as error:
            if not error.retryable or (self.instance is not None and self.instance.begun):
                raise
            world.say(f"{self.machine.name} has not started: {error}")
        except StateError as error:
            if "no space left" not in str(error):
                raise
            world.say(f"{self.machine.name} has ended: {error}")
        except ConfigError as error:
            if "has lost its positions" not in str(error) or not world.restore_positions(self):
                raise
        self.ended = True
        self.machine.kill()  # what still runs, as an opener that waits for brokers, ends with the process

    def specs(self) -> list[StoreSpec]:
        """Return the stores that it can be asked for."""
        assert self.components is not None
        assert self.serving is not None
        known = self.serving.stores()
        return [spec for part in self.components.topology.subtopologies for spec in part.stores if spec.name in known]

    def _serve_no_more(self, serving: Serving) -> None:
        """Let reads end, as a server that stops does; the databases are closed then."""
        self.serving = None
        while self.reads:
            self.machine.sleep(0.01)
        serving.end()

    def _coordinator(self, _: object) -> Connector:
        def make(name: str, _: str | None, timings: Timings, hooks: Hooks, predecessor: str) -> SimCoordinator:
            if predecessor and self.world.group.answers():
                self.world.group.leave(predecessor)
            return SimCoordinator(self.client, self.world.group, name, timings, hooks)

        return make
