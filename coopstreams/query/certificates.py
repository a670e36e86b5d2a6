"""The TLS contexts of the query server and of its requests to other instances. The PEM
files behind them may be renewed while they are in use.

An instance shows the same certificate as a server and, if other instances demand one
(mutual TLS), as a client.

Invariant: files that cannot be used never replace those that are in use.
Invariant: an authority that is no longer in its file is no longer trusted.
Turned down: reading the files into the context that is in use (OpenSSL adds authorities
to it, and removes none).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coopstreams.topology.errors import ConfigError

CHECK_EVERY_S = 30.0
"""The time between two checks whether the files have changed."""


@dataclass(frozen=True, slots=True)
class Files:
    """The paths of PEM files: a certificate with its chain, its key, and the
    authorities that check the other side's certificate.

    Shape: `certificate` None: no certificate; `key` None: it is in the certificate's
    file; `password`: that of the key, None: the key is not encrypted; `authorities`
    None: those of the system.
    """

    certificate: str | None
    key: str | None
    password: str | None
    authorities: str | None

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Files:
        """Return the files that the settings `http.ssl.*` name."""
        names = ("certificate.location", "key.location", "key.password", "ca.location")
        return Files(*(settings[f"http.ssl.{name}"] for name in names))

    def into(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Load the files into a context; return the context.

        Raises:
            ConfigError: a file is missing, is no PEM, or key and certificate do not
                belong together.
        """
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.certificate is not None:
                # Without a password, OpenSSL would ask for one on the terminal.
                context.load_cert_chain(self.certificate, self.key, self.password or "")
            if self.authorities is not None:
                context.load_verify_locations(cafile=self.authorities)
            elif context.verify_mode == ssl.CERT_REQUIRED:
                context.load_default_certs()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"http.ssl.certificate.location = {self.certificate}, http.ssl.key.location = {self.key}, "
                f"http.ssl.ca.location = {self.authorities}: these cannot be used: {error}. PEM files are needed: the "
                "certificate with its chain, its key, the authorities that sign the other side's certificates"
            ) from error
        return context

    def client(self) -> ssl.SSLContext:
        """Return the context of a client: it checks the server's certificate and name,
        and shows the certificate of these files, if any.

        Raises:
            ConfigError: as `into`.
        """
        return self.into(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def server(self, *, clients_show: bool) -> ssl.SSLContext:
        """Return the context of a server. With `clients_show`, clients need a
        certificate signed by the authorities.

        Raises:
            ConfigError: as `into`.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if clients_show:
            context.verify_mode = ssl.CERT_REQUIRED
        return self.into(context)

    def stamps(self) -> list[tuple[int, int] | None]:
        """Return the modification time (ns) and the inode of each file; None for a
        missing file.
        """
        stamps: list[tuple[int, int] | None] = []
        for name in filter(None, (self.certificate, self.key, self.authorities)):
            try:
                stat = Path(name).stat()
                stamps.append((stat.st_mtime_ns, stat.st_ino))
            except OSError:
                stamps.append(None)
        return stamps


def trusting_the_system() -> ssl.SSLContext:
    """Return the context of a client that trusts the system's authorities, and shows no
    certificate.
    """
    return Files(None, None, None, None).client()


class Certificates:
    """The TLS contexts of an instance: `server` for its query server, and `client` for
    its requests to other instances.
    """

    def __init__(self, files: Files, *, clients_show: bool) -> None:
        """Load the files. With `clients_show`, clients need a certificate signed by the
        authorities (mutual TLS).

        Raises:
            ConfigError: a file cannot be used.
        """
        self.clients_show = clients_show
        self._files = files
        self._stamps = files.stamps()
        self.client = _Latest(ssl.PROTOCOL_TLS_CLIENT)
        self.server = _Latest(ssl.PROTOCOL_TLS_SERVER)
        self._read()

    def renew(self) -> bool:
        """Load the files if they have changed, for new connections; return whether they
        have changed.

        Raises:
            ConfigError: they cannot be used (perhaps only half of them are written);
                the old contexts stay in use.
        """
        stamps = self._files.stamps()
        if stamps == self._stamps:
            return False
        self._read()
        # last: files that could not be read are read again, though they may never
        # change
        self._stamps = stamps
        return True

    def _read(self) -> None:
        client = self._files.client()
        server = self._files.server(clients_show=self.clients_show)
        self.client.latest = client
        self.server.latest = server


class _Latest(ssl.SSLContext):
    """A context that a server or a client keeps for good. It makes each connection by
    the context `latest`.
    """

    latest: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Return a new connection, made by the context `latest`."""
        return self.latest.wrap_bio(*args, **kwargs)
