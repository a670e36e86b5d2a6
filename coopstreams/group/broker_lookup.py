"""DNS look-up of broker names for kafka-python, on threads of its own.

kafka-python looks a name up on its I/O thread, which also sends the heartbeats. If a
name server does not answer, that takes 5 to 30 s a name. This is as long as a session,
although the coordinator is connected.

Invariant: the I/O thread waits `PATIENCE_S` at most. A name that takes longer counts as
unknown for this attempt to connect. kafka-python soon makes another attempt, which uses
the answer if it has come.
Turned down: keeping answers (a broker that is replaced may have another address).
Source: kafka-python 3.0 `KafkaNetSocket`, which chooses a subclass by the scheme of the
setting `proxy_url`.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from typing import Any

from kafka.net.inet import KafkaNetSocket

SCHEME = "names"
PATIENCE_S = 0.2
"""How long the I/O thread waits for a look-up. Most name servers answer in a tenth of
that, and heartbeats may be this late.
"""

_Addresses = list[tuple[Any, ...]]

_lock = threading.Lock()
_lookups: dict[tuple[str, int], Future[_Addresses]] = {}
"""The look-ups whose answers were not used yet, by host and port."""


class Names(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """A socket without a proxy, whose host name is looked up on another thread."""

    SCHEMES = (SCHEME,)

    def dns_lookup(
        self,
        host: str,
        port: int,
        raise_error: bool = False,  # noqa: ARG002
    ) -> _Addresses:
        """Return the addresses of a host, as `socket.getaddrinfo`; none if they are not
        known yet.
        """
        with _lock:
            if (lookup := _lookups.get((host, port))) is None:
                lookup = _lookups[host, port] = Future()
                threading.Thread(
                    target=_look_up,
                    args=(lookup, host, port),
                    name="names",
                    daemon=True,
                ).start()
        try:
            found = lookup.result(PATIENCE_S)
        except TimeoutError:
            return []
        with _lock:  # another caller may have used it, and a third begun the next one
            if _lookups.get((host, port)) is lookup:
                del _lookups[host, port]
        return found


def _look_up(
    lookup: Future[_Addresses],
    host: str,
    port: int,
) -> None:
    """Look up a host, however long that takes, for all who wait for `lookup`."""
    try:
        found: _Addresses = list(
            socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
        )
    except OSError:
        found = []
    lookup.set_result(found)
