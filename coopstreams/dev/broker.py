"""A real Kafka node in a folder, alone or one of several: start, reuse, stop, and for
tests kill, pause and restart.

The broker outlives the process that started it, so `coopstreams dev` can leave it
running, and a later call finds it by the record in the folder (`process.py`). A context
manager stops it at the end.

Invariant: the bootstrap address of a folder stays the same over restarts, as long as
the port is free. Turned down: librdkafka's mock cluster (no isolation of transactions,
no compaction), containers (not every user may run them).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console

from coopstreams.common.java import Java, find_java
from coopstreams.dev.cache import locked
from coopstreams.dev.jars import KAFKA, kafka_jars
from coopstreams.dev.process import (
    BrokerProcess,
    answers,
    free_port,
    paused,
    port_is_free,
    record,
    recorded,
    running,
    wait_until,
)
from coopstreams.topology.errors import DevError

if TYPE_CHECKING:
    from coopstreams.dev.broker_security import Secured

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0

_JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
)
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients=warn",
)
_SECURITY = "security"
_IN_USE = "Address already in use"
_OF_A_NEWER = "errors.UnsupportedVersionException"


class KafkaBroker:
    """One Kafka broker whose data, log and address live in a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        controller_port: int | None = None,
        cluster: str | None = None,
        settings: Mapping[str, str] | None = None,
        console: Console | None = None,
        version: str = KAFKA,
        secure: bool = False,
    ) -> None:
        """Describe a broker; `start` starts it. For one node of several, pass
        `controller_port`, `cluster` (an id, see `cluster_id`) and `settings`.

        The settings must have `node.id` and `controller.quorum.voters`. `secure`: TLS,
        users and ACLs, see `Secured`.

        Raises:
            DevError: a secured broker needs cryptography.
        """
        self.folder = folder.expanduser().resolve()
        self.log_file = self.folder / "kafka.log"
        self._port = port
        self._controller_port = controller_port
        self._cluster = cluster
        self._settings = dict(settings or {})
        self._console = console or Console(stderr=True)
        self._version = version
        self.secured = (
            _secured(self.folder)
            if secure or (self.folder / _SECURITY).exists()
            else None
        )
        """Keys, certificates and the super user, if the broker is secured."""
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> BrokerProcess | None:
        """The broker process on this folder, whichever process started it; None if
        there is none.
        """
        ended = (
            self._process is not None and self._process.poll() is not None
        )  # poll reaps a dead child
        if self._starting and not ended:
            return recorded(
                self.folder
            )  # a child that was just forked does not have its command line yet
        return running(self.folder)

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`. Once the broker was started, the address
        is known even while it is down.

        Raises:
            DevError: no broker was ever started on this folder.
        """
        last = recorded(self.folder)
        if last is None:
            raise DevError(
                f"no broker was started in {self.folder} yet. Call start(), or run: coopstreams dev"
            )
        return f"127.0.0.1:{last.port}"

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the broker answers requests, and takes part in its cluster."""
        last = recorded(self.folder)
        if last is None:
            return False
        if self.secured is None:
            return answers(last.port, timeout_s)
        return answers(last.inner_port, timeout_s, self.secured.context())

    def start(self) -> bool:
        """Start a broker, or use the broker that runs on the folder; return whether a
        new process was started.

        Blocks until the broker answers.

        Raises:
            DevError: no Java, no jars, the port is taken, or Kafka ended at once; the
            message has the reason and the cure.
        """
        with locked(self.folder / "lock"):
            if (broker := self.running) is not None:
                if self._port not in (None, broker.port):
                    raise DevError(
                        f"a broker already runs on {self.folder} at port {broker.port}, not {self._port}. Stop it "
                        "first (coopstreams dev stop), or use another folder."
                    )
                self._await_answer(broker)
                return False
            java = find_java()
            classpath = f"{kafka_jars(self._console, version=self._version)}/*"
            for _ in range(3):
                if self._launch(java, classpath):
                    return True
            raise DevError(
                f"three times in a row, a free port was taken before Kafka could listen on it. See {self.log_file}"
            )

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop the broker (SIGTERM, then SIGKILL after the time-out); return whether
        one was running.
        """
        with locked(self.folder / "lock"):
            if not self._signal(signal.SIGTERM):
                return False
            self._signal(signal.SIGCONT)  # a paused process handles no other signal
            if not wait_until(lambda: self.running is None, timeout_s):
                self._end()
            return True

    def kill(self) -> None:
        """End the process without warning (SIGKILL), as a power failure would; return
        when it has ended.
        """
        self._end()

    def pause(self) -> None:
        """Pause the process (SIGSTOP); return when it has stopped. Connections stay
        open, and requests time out.
        """
        self._signal(signal.SIGSTOP)
        wait_until(
            lambda: (broker := self.running) is None or paused(broker.pid),
            STOP_TIMEOUT_S,
            every_s=0.001,
        )

    def resume(self) -> None:
        """Let a paused process continue (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop the broker and start it again, on the same data and port."""
        self.stop()
        self.start()

    def _signal(self, number: signal.Signals) -> bool:
        broker = self.running
        if broker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker.pid, number)
        return broker is not None

    def _end(self) -> None:
        if self._signal(signal.SIGKILL) and not wait_until(
            lambda: self.running is None,
            STOP_TIMEOUT_S,
        ):
            raise DevError(
                f"the broker process on {self.folder} does not end, even when killed"
            )

    def _launch(self, java: Java, classpath: str) -> bool:
        """Start a process on the folder; return False if another program took the
        chosen free port meanwhile.
        """
        port, controller_port = self._ports()
        inner_port = 0
        settings = self._settings
        if self.secured is not None:
            self._check_kept(self.secured)
            self.secured.make()
            inner_port = self._inner_port()
            settings = (
                self.secured.broker_settings(port, inner_port, controller_port)
                | settings
            )
        config = self.folder / "server.properties"
        self._check_ours(config)
        config.write_text(
            properties_text(
                broker_settings(self.folder, port, controller_port, settings)
            )
        )
        if not (self.folder / "log" / "meta.properties").exists():
            self._format(java, classpath, config)
        beginning = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                java.command(
                    *_JVM,
                    *_LOGGING,
                    *self._java_options(),
                    "-cp",
                    classpath,
                    "kafka.Kafka",
                    str(config),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                # Ctrl-C in the terminal ends the caller, not the broker
                start_new_session=True,
            )
        broker = BrokerProcess(self._process.pid, port, controller_port, inner_port)
        record(self.folder, broker)
        self._starting = True
        try:
            self._await_answer(broker, beginning)
        except DevError:
            if self._port is None and _IN_USE in self._said_since(beginning):
                return False
            raise
        finally:
            self._starting = False
        return True

    def _ports(self) -> tuple[int, int]:
        """Return the ports to listen on: the given ones, else the last ones if they are
        free, else free ones.
        """
        if self._port is not None and not port_is_free(self._port):
            raise DevError(
                f"port {self._port} is in use by another program. Give another one (--port), or none to get a free one."
            )
        last = recorded(self.folder)
        wanted = self._port or (
            last.port if last and port_is_free(last.port) else free_port()
        )
        controller = (
            last.controller_port
            if last and port_is_free(last.controller_port)
            else free_port()
        )
        return wanted, self._controller_port or controller

    def _inner_port(self) -> int:
        last = recorded(self.folder)
        return (
            last.inner_port
            if last and last.inner_port and port_is_free(last.inner_port)
            else free_port()
        )

    def _java_options(self) -> tuple[str, ...]:
        return self.secured.java_options if self.secured is not None else ()

    def _check_ours(self, config: Path) -> None:
        """Check that the settings in this file are from an earlier start, not from
        another broker.
        """
        if (
            recorded(self.folder) is None
            and config.exists()
            and str(self.folder / "log") not in config.read_text()
        ):
            raise DevError(
                f"{config} is not of coopstreams dev, and would be written over. Use another folder (--data)."
            )

    def _check_kept(self, secured: Secured) -> None:
        """Check that the folder has no data of a broker without security, which has no
        super user.
        """
        if not secured.made and (self.folder / "log" / "meta.properties").exists():
            raise DevError(
                f"{self.folder} has the data of a broker without security, which has no users. Use another folder "
                "(--data), or delete it."
            )

    def _format(
        self,
        java: Java,
        classpath: str,
        config: Path,
    ) -> None:
        cluster = self._cluster or cluster_id(uuid.uuid4())
        done = subprocess.run(
            java.command(
                *_JVM,
                "-cp",
                classpath,
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                cluster,
                "--config",
                str(config),
                *(self.secured.format_arguments() if self.secured is not None else ()),
            ),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DevError(
                f"Kafka {self._version} cannot use the folder {self.folder}: {(done.stderr or done.stdout).strip()}"
            )

    def _await_answer(self, broker: BrokerProcess, log_beginning: int = 0) -> None:
        with self._console.status(
            f"waiting for Kafka {self._version} at 127.0.0.1:{broker.port}"
        ):
            answered = wait_until(
                lambda: self.running is None or self.answers(),
                START_TIMEOUT_S,
            )
        if self.running is None:
            said = self._said_since(log_beginning)
            newer = (
                f". A newer Kafka wrote {self.folder}: delete it, or use another folder"
                if _OF_A_NEWER in said
                else ""
            )
            raise DevError(
                f"Kafka {self._version} ended while it started: {_reason(said)}{newer}. Its log: {self.log_file}"
            )
        if not answered:
            raise DevError(
                f"Kafka {self._version} (process {broker.pid}) does not answer at 127.0.0.1:{broker.port} after "
                f"{START_TIMEOUT_S:.0f} s. Its log: {self.log_file}"
            )

    def _said_since(self, position: int) -> str:
        with self.log_file.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")


def _secured(folder: Path) -> Secured:
    from coopstreams.dev.broker_security import (
        Secured,
    )  # only a secured broker needs cryptography

    return Secured(folder / _SECURITY)


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if "Caused by:" in line or "Exception:" in line or line.startswith("Error")
    ]
    return (telling or lines or ["it said nothing"])[-1].removeprefix("Caused by: ")


def cluster_id(random: uuid.UUID) -> str:
    """Return an id in Kafka's form. It does not begin with a dash, because the storage
    tool would take it for an option.
    """
    return urlsafe_b64encode(random.bytes).rstrip(b"=").decode().replace("-", "_")


def broker_settings(
    folder: Path,
    port: int,
    controller_port: int,
    changes: Mapping[str, str],
) -> dict[str, str]:
    """Return the server properties of a node that keeps its data in `folder`. `changes`
    override them.

    Each node is broker and controller. A single node keeps one replica where Kafka's
    default is three; thread pools are sized for two cores.
    """
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(folder / "log"),
        # Topics are created explicitly: a misspelt name must be an error.
        "auto.create.topics.enable": "false",
        # Records have the time of their events: with a retention, flights of 2013 would
        # be deleted at once.
        "log.retention.ms": "-1",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # A member of a share group gets its assignment with a heartbeat: 5 s after it
        # joined, by default.
        "group.share.min.heartbeat.interval.ms": "500",
        "group.share.heartbeat.interval.ms": "500",
        # Tests of lost members use shorter session time-outs than Kafka's minimum of
        # six seconds.
        "group.min.session.timeout.ms": "1000",
        # After a kill, the controller accepts the broker again when its old session has
        # expired.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "16777216",
    } | dict(changes)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(
        f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items()
    )
