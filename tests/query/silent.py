"""A server that accepts connections, reads, and never answers: a schema registry that
hangs.
"""

from __future__ import annotations

import socket
import threading
from typing import Self

from coopstreams.log.kafka.schema_registry import RegistryClient


class SilentServer:
    """Accepts and reads until the end of the block, which closes all connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.asked = threading.Semaphore(0)
        """Released once for each connection by which something was asked."""
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def registry(self) -> RegistryClient:
        """Return the client of a schema registry that hangs."""
        return RegistryClient(self.url, (("url", self.url),), registers=True)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections: who has asked is told that there is no answer."""
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._open.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        if connection.recv(65536):
            self.asked.release()
