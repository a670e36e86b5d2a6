"""The host names by which an instance may be asked if anybody may read its state: a
defence against DNS rebinding.

The owner of a web page can make the name of its site point at 127.0.0.1, or at an
address in the network of the person who looks at the page. The browser then takes the
query server for a part of that site, and the page can read rows. But its requests have
the name of the site in their header `Host`. So only names are accepted that nobody else
can have:

    an IP address, a name without a dot (`localhost`; a service in Docker or Kubernetes)
    below `.localhost` and `.internal`, which public DNS does not have
    the names of this machine, and of the URL that the instance announces
    a service in the Kubernetes namespace of this pod: orders.shop, orders.shop.svc, …
    those of `http.allowed.hosts`

An instance with a token or a certificate checks no names: a web page has neither.

Invariant: a name that anybody can register is accepted only if it was configured.
Turned down: looking at the address of a name (the attacker chooses it); listing public
top-level domains (there is a new one every month).
Source: RFC 6761 section 6.3 (`localhost`); the domain `internal` is reserved by ICANN.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_PRIVATE = (".localhost", ".internal")
_RESOLVER = Path("/etc/resolv.conf")
_OF_SERVICES = ".svc."
"""What separates the namespace from the domain of the cluster in the first search
domain of a Kubernetes pod.
"""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The host names that an instance accepts. Shape: lower case; a suffix begins with
    a dot.
    """

    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = _PRIVATE

    @staticmethod
    def of(url: str, allowed: Sequence[str]) -> Hosts | None:
        """Return the host names that an instance on this machine accepts if it
        announces the URL; None: any name.

        `allowed`: the setting `http.allowed.hosts`.
        """
        machine = socket.gethostname()
        return named(urlsplit(url).hostname or "", allowed, machine, _search_domains())

    def accepts(self, host: str | None) -> bool:
        """Return whether a request with this header `Host`, or without one (None), is
        accepted.
        """
        if host is None:
            return True
        name = _name_in(host)
        return (
            "." not in name
            or name in self.names
            or name.endswith(self.suffixes)
            or _is_address(name)
        )


def named(
    announced: str,
    allowed: Iterable[str],
    machine: str,
    search: Sequence[str],
) -> Hosts | None:
    """Return the host names that an instance accepts; None: any name.

    `announced`: the name in its URL; `allowed`: the setting `http.allowed.hosts`;
    `machine`, `search`: the name and the search domains of its machine.
    """
    if "*" in allowed:
        return None
    names = {announced, machine, *(f"{machine}.{domain}" for domain in search)}
    suffixes = [*_PRIVATE]
    for domain in search:
        namespace, services, cluster = domain.partition(_OF_SERVICES)
        if services:
            suffixes += [f".{namespace}", f".{namespace}.svc"]
            suffixes += [f".{namespace}.svc.{cluster}"]
    for name in allowed:
        if name.startswith("*."):
            suffixes.append(name.removeprefix("*"))
        else:
            names.add(name)
    return Hosts(frozenset(map(str.lower, names)), tuple(map(str.lower, suffixes)))


def _name_in(host: str) -> str:
    """Return the name or the address in a header `Host`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _search_domains() -> list[str]:
    """Return the domains in which this machine looks up short names; empty if
    /etc/resolv.conf names none.
    """
    domains: list[str] = []
    with suppress(OSError):
        for line in _RESOLVER.read_text(encoding="utf-8", errors="replace").split("\n"):
            word, *rest = line.split() or [""]
            if word in ("search", "domain"):
                domains += rest
    return domains
