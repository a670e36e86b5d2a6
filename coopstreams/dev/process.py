"""The record of a broker process, kept beside its data, and the check that this process
still runs.

A process id alone is no proof: after a crash or a reboot another process may have it.
So the command line of the process must also contain the broker's folder.
"""

import contextlib
import secrets
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

_FILE = "broker.json"
_PORTS = range(15_000, 32_768)


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """The process id and the ports of a broker that was started."""

    pid: int
    port: int
    controller_port: int
    inner_port: int = 0
    """The port of a secured broker's listener SSL; 0 if the broker is not secured."""


def recorded(folder: Path) -> BrokerProcess | None:
    """Return the broker that was last started on the folder, alive or not; None if
    there is none.
    """
    try:
        return BrokerProcess(**orjson.loads((folder / _FILE).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def running(folder: Path) -> BrokerProcess | None:
    """Return the broker that runs on the folder now; None if the recorded process has
    ended.
    """
    last = recorded(folder)
    return (
        last
        if last is not None
        and str(folder / "server.properties") in command_line(last.pid)
        else None
    )


def record(folder: Path, broker: BrokerProcess) -> None:
    """Record that this broker was started on the folder."""
    partial = folder / f"{_FILE}.partial"
    partial.write_bytes(orjson.dumps(broker))
    partial.rename(folder / _FILE)


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process; empty if there is none, or if it is a zombie."""
    if Path("/proc/self/cmdline").exists():
        try:
            return (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .decode(errors="replace")
                .rstrip("\0")
                .split("\0")
            )
        except (FileNotFoundError, ProcessLookupError):
            return []
    said = subprocess.run(
        ["ps", "-p", str(pid), "-o", "command="],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return said.split()


def paused(pid: int) -> bool:
    """Return whether all threads of a process have stopped after a SIGSTOP. This takes
    a moment on a busy machine.
    """
    if Path("/proc/self/task").exists():
        try:
            threads = [
                thread.read_text().rpartition(") ")[2]
                for thread in Path(f"/proc/{pid}/task").glob("*/stat")
            ]
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended in between
            return False
    else:
        threads = subprocess.run(
            ["ps", "-p", str(pid), "-o", "state="],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
    return bool(threads) and all(state.startswith("T") for state in threads)


def memory_mb(pid: int) -> int | None:
    """Return the resident memory of a process; None if the process is gone or the
    system does not report it. Units: MiB.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS:")),
        None,
    )


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float,
    every_s: float = 0.05,
) -> bool:
    """Return whether the condition became true in time."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True


def port_is_free(port: int) -> bool:
    """Return whether a process could listen on this local port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port on which no process listens.

    It is below the ephemeral range, so the system assigns it to no connection, and a
    stopped broker keeps its port.
    """
    while not port_is_free(port := secrets.choice(_PORTS)):
        pass
    return port


def answers(
    port: int,
    timeout_s: float = 2.0,
    context: ssl.SSLContext | None = None,
) -> bool:
    """Return whether a Kafka broker answers requests on the port, and takes part in its
    cluster. `context`: for a TLS connection.

    A broker that has just started answers before its controller has unfenced it; until
    then no topic can be created on it.

    Shape: a Metadata request, version 1, without topics; its answer begins with the
    number of live brokers.
    """
    client = b"coopstreams-dev"
    request = struct.pack(">hhih", 3, 1, 1, len(client)) + client + struct.pack(">i", 0)
    try:
        with contextlib.ExitStack() as closing:
            connection = closing.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
            )
            if context is not None:
                connection = closing.enter_context(
                    context.wrap_socket(connection, server_hostname="127.0.0.1")
                )
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = b""
            while len(answer) < 12:
                part = connection.recv(4096)
                if not part:
                    return False
                answer += part
    except OSError:
        return False
    correlation, alive = struct.unpack_from(">ii", answer, 4)
    return bool(correlation == 1 and alive > 0)
