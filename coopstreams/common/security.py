"""Security settings, checked, and translated for each client library: how a process
logs in and connects.

Settings are given once, in librdkafka's names, and hold for every client: librdkafka's,
the group's (kafka-python) and Spark's Java connector.

    TLS             the trusted authorities, and a certificate of one's own for mutual TLS
    SASL            PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI; and AWS_MSK_IAM, which is OAUTHBEARER with
                    tokens that are signed with the credentials of AWS
    OAUTHBEARER     tokens from `oauth_cb`, or by OpenID Connect (`sasl.oauthbearer.method=oidc`): there librdkafka
                    fetches its own, and `tokens.oidc` does it for the group

Invariant: all clients log in as the same user in the same way, or nothing starts.
Turned down: settings for a single client (`producer.sasl.username`): the group's client
is none of them.
Source: librdkafka's CONFIGURATION.md; kafka-python
`KafkaConnectionManager.DEFAULT_CONFIG`; Kafka's `SaslConfigs`.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coopstreams.common.acl_errors import Login
from coopstreams.common.name_suggestions import did_you_mean
from coopstreams.common.references import is_secret, resolved
from coopstreams.common.tokens import (
    Fetch,
    callback,
    msk_iam,
    oidc,
)
from coopstreams.topology.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER = "OAUTHBEARER"
MSK_IAM = "AWS_MSK_IAM"
KERBEROS = "GSSAPI"
MECHANISMS = (*PASSWORDS, OAUTHBEARER, MSK_IAM, KERBEROS)

_PREFIXES = (
    "security.",
    "sasl.",
    "ssl.",
    "ssl_",
    "enable.ssl.",
    "enable.sasl.",
    "https.",
    "oauth_cb",
)
_CLIENTS = ("consumer.", "producer.", "admin.")
_TLS = {
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "enable.ssl.certificate.verification",
    "ssl.endpoint.identification.algorithm",
}
_OIDC = {
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "https.ca.location",
}
_KNOWN = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.kerberos.service.name",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.oauthbearer.config",
    "oauth_cb",
}
_TRUE = {"true", "t", "1", "yes", "on"}
_FALSE = {"false", "f", "0", "no", "off"}
_FILES = "Write it to a file and name that with {}."
_KINIT = (
    "Have a ticket before the start (kinit, or the environment variable KRB5_CLIENT_KTNAME=<keytab>) and remove this "
    "setting."
)
_PKCS12 = "Convert it (openssl pkcs12) to PEM files for ssl.certificate.location, ssl.key.location and ssl.ca.location."
_OTHER_GRANT = (
    "coopstreams gets tokens by OpenID Connect with a client id and a client secret. For anything else give the "
    "setting oauth_cb a function that returns (token, expiry)."
)
_CURES: Mapping[str, str] = {
    "ssl.certificate.pem": _FILES.format("ssl.certificate.location"),
    "ssl.key.pem": _FILES.format("ssl.key.location"),
    "ssl.keystore.location": _PKCS12,
    "ssl.keystore.password": _PKCS12,
    "sasl.kerberos.keytab": _KINIT,
    "sasl.kerberos.principal": _KINIT,
    "sasl.kerberos.kinit.cmd": _KINIT,
}
_JAVA_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class Security:
    """Checked security settings: how a process logs in and connects.

    Shape: `mechanism` is empty without SASL. `given` has librdkafka's names; references
    are resolved.
    """

    protocol: str
    mechanism: str
    given: Mapping[str, Any]
    servers: str = ""

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Security:
        """Return the security settings among these settings, which have librdkafka's
        names. The files of TLS are read now.

        Raises:
            ConfigError: a setting that not all clients have, a value that cannot work,
                or a missing setting; with the cure.
        """
        given = resolved(
            {name: value for name, value in settings.items() if is_security(name)}
        )
        for name in sorted(given):
            _check_name(name)
        protocol = _one_of(
            "security.protocol",
            given.get("security.protocol", "PLAINTEXT"),
            PROTOCOLS,
        )
        servers = settings.get("bootstrap.servers", "")
        made = Security(protocol, _mechanism(given, protocol), given, str(servers))
        made._check()
        return made

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def login(self) -> Login:
        """The login of this process, for messages."""
        if self.mechanism in PASSWORDS:
            return Login(f"User:{self.given['sasl.username']}", self.mechanism)
        if self.mechanism:
            return Login("", self.mechanism, by_token=self.mechanism != KERBEROS)
        if self.protocol == "SSL" and "ssl.certificate.location" in self.given:
            return Login("", f"certificate {self.given['ssl.certificate.location']}")
        return Login("User:ANONYMOUS", "no login")

    @property
    def warnings(self) -> list[str]:
        """Sentences on settings that are allowed but insecure."""
        found = []
        if self.protocol == "SASL_PLAINTEXT" and self.mechanism in (
            "PLAIN",
            OAUTHBEARER,
        ):
            found.append(
                f"security.protocol is SASL_PLAINTEXT: {self.mechanism} sends the "
                f"{'password' if self.mechanism == 'PLAIN' else 'token'} readable by everybody on the way. Set SASL_SSL"
            )
        if not self.protocol.startswith("SASL") and (
            unused := sorted(n for n in self.given if n.startswith("sasl."))
        ):
            found.append(
                f"{', '.join(unused)} set, but security.protocol is {self.protocol}, so nobody logs in. Set SASL_SSL"
            )
        if not self.tls and (unused := sorted(self.given.keys() & _TLS)):
            found.append(
                f"{', '.join(unused)} set, but security.protocol is {self.protocol}, without TLS"
            )
        if self.tls and not self._verifies:
            found.append(
                "enable.ssl.certificate.verification is false: anybody may claim to be the broker"
            )
        return found

    def librdkafka(self) -> dict[str, Any]:
        """Return the security settings of a client of confluent-kafka."""
        settings = {
            name: value
            for name, value in self.given.items()
            if name not in ("sasl.mechanisms", "oauth_cb")
        } | {"security.protocol": self.protocol}
        settings.pop("sasl.mechanism", None)
        if self.mechanism:
            settings["sasl.mechanism"] = (
                OAUTHBEARER if self.mechanism == MSK_IAM else self.mechanism
            )
        if self._token_source is not None and not self._native_oidc:
            settings["oauth_cb"] = self._token_source
        return settings

    def kafka_python(self) -> dict[str, Any]:
        """Return the arguments for kafka-python's client. `token_source` is no argument
        of it: the caller wraps it.
        """
        arguments: dict[str, Any] = {"security_protocol": self.protocol}
        if self.tls:
            arguments["ssl_context"] = self._context()
        if not self.mechanism:
            return arguments
        arguments["sasl_mechanism"] = self.mechanism
        if self.mechanism in PASSWORDS:
            arguments["sasl_plain_username"] = self.given["sasl.username"]
            arguments["sasl_plain_password"] = self.given["sasl.password"]
        elif self.mechanism == KERBEROS:
            arguments["sasl_kerberos_service_name"] = self.given.get(
                "sasl.kerberos.service.name",
                "kafka",
            )
        else:
            arguments |= {
                "sasl_mechanism": OAUTHBEARER,
                "token_source": self._token_source,
            }
        return arguments

    def java(self) -> dict[str, str]:
        """Return the settings for Java's clients.

        Raises:
            ConfigError: Java's clients have no equivalent of a setting.
        """
        rest = dict(self.given)
        java = {"security.protocol": self.protocol}
        rest.pop("security.protocol", None)
        if self.tls:
            java |= self._java_tls(rest)
        if self.mechanism:
            java |= self._java_login(rest)
        if rest:
            raise ConfigError(
                f"connector jvm: {', '.join(sorted(rest))} cannot be told to the Java client; read with connector "
                "python"
            )
        return java

    def _check(self) -> None:
        """Check that everything that the protocol and the mechanism need is set, and
        can be read.
        """
        if self.mechanism in PASSWORDS:
            self._need("sasl.username", "sasl.password")
        if self._native_oidc:
            self._need(
                "sasl.oauthbearer.token.endpoint.url",
                "sasl.oauthbearer.client.id",
            )
            self._need("sasl.oauthbearer.client.secret")
        if self.mechanism == MSK_IAM and not self.tls:
            raise ConfigError(
                f"sasl.mechanism {MSK_IAM} needs security.protocol SASL_SSL"
            )
        _ = self._token_source  # raises the errors of its settings
        if self.tls:
            self._context()

    def _need(self, *names: str) -> None:
        if missing := [name for name in names if not self.given.get(name)]:
            raise ConfigError(
                f"{' and '.join(missing)} must be set for sasl.mechanism {self.mechanism}"
            )

    @property
    def _native_oidc(self) -> bool:
        method = str(self.given.get("sasl.oauthbearer.method", "default")).lower()
        return self.mechanism == OAUTHBEARER and method == "oidc"

    @property
    def _token_source(self) -> Fetch | None:
        """The function that returns a token with its end, as librdkafka's `oauth_cb`;
        None: this mechanism needs no token.
        """
        if self.mechanism == MSK_IAM:
            return msk_iam(self.servers)
        if self.mechanism != OAUTHBEARER:
            return None
        if self._native_oidc:
            return oidc(self.given)
        if "oauth_cb" not in self.given:
            raise ConfigError(
                "sasl.mechanism OAUTHBEARER: who gives the token? Set sasl.oauthbearer.method=oidc with "
                "sasl.oauthbearer.token.endpoint.url, …client.id and …client.secret; or oauth_cb, a function, or "
                '"module:function", that returns (token, expiry in seconds since 1970)'
            )
        return callback(
            self.given["oauth_cb"],
            str(self.given.get("sasl.oauthbearer.config", "")),
        )

    @property
    def _verifies(self) -> bool:
        return _flag(self.given, "enable.ssl.certificate.verification", True)

    def _context(self) -> ssl.SSLContext:
        try:
            return _context(self.given, verifies=self._verifies)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            named = ", ".join(
                f"{name} = {self.given[name]}"
                for name in sorted(_TLS & self.given.keys())
                if not is_secret(name) and not name.endswith(".pem")
            )
            raise ConfigError(
                f"the TLS settings cannot be used ({named or 'the defaults'}): {error}"
            ) from error

    def _java_tls(self, rest: dict[str, Any]) -> dict[str, str]:
        """Return the TLS settings for the Java client; take them out of `rest`."""
        java: dict[str, str] = {}
        if (authorities := rest.pop("ssl.ca.location", None)) is not None:
            java |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(authorities),
            }
        if (certificate := rest.pop("ssl.certificate.location", None)) is not None:
            # Java wants one text with key and chain; a file of both would be a third
            # copy of the key.
            key = Path(str(rest.pop("ssl.key.location", certificate))).read_text(
                encoding="utf-8"
            )
            java |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": key}
            java["ssl.keystore.certificate.chain"] = Path(str(certificate)).read_text(
                encoding="utf-8"
            )
            if (password := rest.pop("ssl.key.password", None)) is not None:
                java["ssl.key.password"] = str(password)
        if (
            names := rest.pop("ssl.endpoint.identification.algorithm", None)
        ) is not None:
            java["ssl.endpoint.identification.algorithm"] = (
                "" if str(names).lower() == "none" else "https"
            )
        return java

    def _java_login(self, rest: dict[str, Any]) -> dict[str, str]:
        """Return the SASL settings for the Java client; take them out of `rest`."""
        if self.mechanism not in _JAVA_LOGIN:
            raise ConfigError(
                f"connector jvm: sasl.mechanism {self.mechanism} cannot be told to the Java client; read with "
                "connector python"
            )
        rest.pop("sasl.mechanism", None)
        rest.pop("sasl.mechanisms", None)
        user, password = (
            json.dumps(str(rest.pop(name)))
            for name in ("sasl.username", "sasl.password")
        )
        login = f"{_JAVA_LOGIN[self.mechanism]} required username={user} password={password};"
        return {"sasl.mechanism": self.mechanism, "sasl.jaas.config": login}


def is_security(name: str) -> bool:
    """Return whether a setting is on security. So is one with the prefix of a single
    client, which `Security.of` refuses.
    """
    for client in _CLIENTS:
        name = name.removeprefix(client)
    return name.startswith(_PREFIXES)


def _check_name(name: str) -> None:
    """Check that a security setting is known, and not of a single client."""
    for client in _CLIENTS:
        if name.startswith(client):
            raise ConfigError(
                f"{name}: all clients of a process log in as the same user. Set {name.removeprefix(client)}"
            )
    if name not in _KNOWN | _TLS | _OIDC:
        other = name.startswith(
            ("sasl.oauthbearer.", "enable.sasl.oauthbearer", "https.")
        )
        cure = _CURES.get(name) or (
            _OTHER_GRANT
            if other
            else f"Remove it{did_you_mean(name, _KNOWN | _TLS | _OIDC)}."
        )
        raise ConfigError(
            f"{name} cannot be given to the group's client (kafka-python). {cure}"
        )


def _mechanism(given: Mapping[str, Any], protocol: str) -> str:
    """Return the SASL mechanism; empty without SASL."""
    named = {
        name: given[name]
        for name in ("sasl.mechanism", "sasl.mechanisms")
        if name in given
    }
    found = {_one_of(name, value, MECHANISMS) for name, value in named.items()}
    if len(found) > 1:
        raise ConfigError(
            "sasl.mechanism and sasl.mechanisms are the same setting, with two values: remove one"
        )
    return (found.pop() if found else KERBEROS) if protocol.startswith("SASL") else ""


def _one_of(
    name: str,
    value: Any,
    allowed: tuple[str, ...],
) -> str:
    """Return a setting's value in capitals, one of `allowed`."""
    text = str(value).upper()
    if text not in allowed:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
    return text


def _flag(
    given: Mapping[str, Any],
    name: str,
    default: bool,
) -> bool:
    """Return a setting that is true or false."""
    text = str(given.get(name, default)).lower()
    if text not in _TRUE | _FALSE:
        raise ConfigError(f"{name}: {text!r} is neither true nor false")
    return text in _TRUE


def _context(given: Mapping[str, Any], *, verifies: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    algorithm = "ssl.endpoint.identification.algorithm"
    context.check_hostname = (
        _one_of(algorithm, given.get(algorithm, "https"), ("HTTPS", "NONE")) != "NONE"
    )
    if not verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    location = given.get("ssl.ca.location")
    if location and location != "probe":
        _load_authorities(context, str(location))
    if "ssl.ca.pem" in given:
        context.load_verify_locations(cadata=str(given["ssl.ca.pem"]))
    elif not location or location == "probe":
        context.load_default_certs()
    if "ssl.certificate.location" in given:
        key = given.get("ssl.key.location")
        password = given.get("ssl.key.password")
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(
            str(given["ssl.certificate.location"]),
            key and str(key),
            str(password or ""),
        )
    if "ssl.crl.location" in given:
        context.load_verify_locations(str(given["ssl.crl.location"]))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if "ssl.cipher.suites" in given:
        context.set_ciphers(str(given["ssl.cipher.suites"]))
    return context


def _load_authorities(context: ssl.SSLContext, location: str) -> None:
    """Load trusted authorities from a file of certificates, or from a folder made by
    `c_rehash`.
    """
    if Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)
