"""The security of a development broker, as in production: TLS on every listener, users
who log in, and ACLs.

    SASL_SSL     SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, for clients
    SSL          mutual TLS: clients with a certificate of the broker's authority, and the broker's own requests
    CONTROLLER   mutual TLS

Keys, certificates and the super user's password are made once, in the folder `security`
beside the data.

Invariant: no listener takes a request of an unknown user.
Turned down: plain listeners for the broker's own requests (every program on this
machine would be a super user).
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path

from coopstreams.topology.errors import DevError

try:
    from coopstreams.dev import broker_certificates, token_issuer
except ImportError as error:
    raise DevError(
        "a secured broker needs cryptography: pip install 'coopstreams[dev]'"
    ) from error

ADMIN = "admin"
"""The name of the super user."""
_BROKER = "broker"
_HOSTS = ("localhost", "127.0.0.1", "::1")
_SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS = 4096
_MODULES = "org.apache.kafka.common.security"


class Secured:
    """The keys, certificates and users of one broker."""

    def __init__(self, folder: Path) -> None:
        """Describe the files in `folder`; `make` makes them."""
        self.folder = folder
        self.authority = folder / "ca.pem"
        """The file of the certificate that clients have to trust."""

    @property
    def made(self) -> bool:
        """Whether the files exist in the folder."""
        return (self.folder / f"{ADMIN}.toml").exists()

    def make(self) -> None:
        """Make the files, unless they exist."""
        if self.made:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = broker_certificates.authority()
        self._write("ca.pem", authority.certificate)
        self._write("ca.key", authority.key)
        self.certificate(_BROKER)
        self.certificate(ADMIN)
        self._write("tokens.key", key := token_issuer.new_key())
        self._write("jwks.json", token_issuer.key_set(key))
        self._write(f"{ADMIN}.password", secrets.token_urlsafe(24).encode())
        self._write(
            f"{ADMIN}.toml",
            self._admin_settings().encode(),
        )  # last: `made` checks for this file

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Make a certificate for the user `name`; return the files of the certificate
        and of its key.
        """
        authority = broker_certificates.Issued(
            self.authority.read_bytes(),
            (self.folder / "ca.key").read_bytes(),
        )
        hosts = _HOSTS if name == _BROKER else ()
        issued = broker_certificates.issue(authority, name, hosts)
        # in one file, as Kafka's PEM key stores require
        self._write(f"{name}.both.pem", issued.key + issued.certificate)
        return self._write(f"{name}.pem", issued.certificate), self._write(
            f"{name}.key",
            issued.key,
        )

    def token(self, user: str, lifetime_s: float = 3600) -> str:
        """Return a token for OAUTHBEARER with which a client logs in as `user`."""
        return token_issuer.signed(
            (self.folder / "tokens.key").read_bytes(),
            user,
            lifetime_s,
        )

    def admin(self) -> dict[str, str]:
        """Return the settings with which a client logs in as the super user, in
        librdkafka's names, without `bootstrap.servers`.
        """
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": ADMIN,
            "sasl.password": (self.folder / f"{ADMIN}.password").read_text(),
        }

    def context(self) -> ssl.SSLContext:
        """Return a TLS context for connections to the listener SSL that act as the
        broker itself.
        """
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(
            self.folder / f"{_BROKER}.pem",
            self.folder / f"{_BROKER}.key",
        )
        return context

    def broker_settings(
        self,
        port: int,
        inner_port: int,
        controller_port: int,
    ) -> dict[str, str]:
        """Return the server properties for listeners on these ports: SASL_SSL, SSL and
        CONTROLLER.
        """
        store = self.folder / f"{_BROKER}.both.pem"
        listeners = f"SASL_SSL://127.0.0.1:{port},SSL://127.0.0.1:{inner_port}"
        outer = "listener.name.sasl_ssl"
        return {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+)$/$1/,DEFAULT",
            "sasl.enabled.mechanisms": ",".join((*_SCRAM, "OAUTHBEARER")),
            **{
                f"{outer}.{mechanism.lower()}.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;"
                for mechanism in _SCRAM
            },
            f"{outer}.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
            f"{outer}.oauthbearer.sasl.server.callback.handler.class": (
                f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            f"{outer}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self._keys,
            f"{outer}.oauthbearer.sasl.oauthbearer.expected.audience": token_issuer.AUDIENCE,
            f"{outer}.oauthbearer.sasl.oauthbearer.expected.issuer": token_issuer.ISSUER,
            # A login counts for an hour, or as long as its token: clients have to log
            # in again (KIP-368).
            f"{outer}.connections.max.reauth.ms": "3600000",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{_BROKER};User:{ADMIN}",
        }

    @property
    def java_options(self) -> tuple[str, ...]:
        """Options for the broker's Java: it may read the keys of tokens only from the
        folder's file.
        """
        return (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys}",)

    def format_arguments(self) -> list[str]:
        """Return the arguments with which the storage tool makes the super user.

        Lists of processes show these arguments. So they have no password, but the
        salted hash of it that the broker stores (RFC 5802).
        """
        password = (self.folder / f"{ADMIN}.password").read_bytes()
        arguments = []
        for mechanism, digest in _SCRAM.items():
            salt = os.urandom(16)
            salted = base64.b64encode(
                hashlib.pbkdf2_hmac(digest, password, salt, _ITERATIONS)
            ).decode()
            shaken = base64.b64encode(salt).decode()
            text = f'name={ADMIN},iterations={_ITERATIONS},salt="{shaken}",saltedpassword="{salted}"'
            arguments += ["--add-scram", f"{mechanism}=[{text}]"]
        return arguments

    @property
    def _keys(self) -> str:
        return (self.folder / "jwks.json").as_uri()

    def _admin_settings(self) -> str:
        """Return the text of a settings file for the super user. It refers to the file
        with the password.
        """
        told: Mapping[str, str] = self.admin() | {
            "sasl.password": f"${{file:{self.folder / f'{ADMIN}.password'}}}"
        }
        return "".join(f'{name} = "{value}"\n' for name, value in told.items())

    def _write(self, name: str, data: bytes) -> Path:
        """Write a file that only this user can read."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(data)
        return path
