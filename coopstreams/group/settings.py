"""Connection and security settings, given once in librdkafka's names, for kafka-python.

    translated   `TRANSLATED`: librdkafka's name, and kafka-python's
    TLS          read here into an `ssl.SSLContext`, which supports all of librdkafka's but the settings in `REFUSED`
    refused      settings on how to connect that kafka-python lacks: an error at start, never a silent difference
    ignored      settings on other things (batching, fetching, statistics, callbacks)

Invariant: either both clients reach the brokers in the same way, or nothing starts.
Source: librdkafka's CONFIGURATION.md; kafka-python `KafkaConnectionManager.DEFAULT_CONFIG`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coopstreams.topology.errors import ConfigError

_TRUE, _FALSE = {"true", "t", "1", "yes", "on"}, {"false", "f", "0", "no", "off"}


def _text(value: Any) -> str:
    return str(value)


def _number(value: Any) -> int:
    return int(value)


def _flag(value: Any) -> bool:
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return text in _TRUE


def _servers(value: Any) -> list[str]:
    """Return the servers as host:port. A protocol in front is dropped, which librdkafka ignores as well."""
    servers = value.split(",") if isinstance(value, str) else list(value)
    return [server.strip().rpartition("://")[2] for server in servers]


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = str(value).upper()
        if text not in allowed:
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
        return text

    return read


_names = _one_of("HTTPS", "NONE")


def _lookup(value: Any) -> str:
    if value not in ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"):
        raise ValueError(f"{value!r} is not one of use_all_dns_ips, resolve_canonical_bootstrap_servers_only")
    return str(value)


TRANSLATED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", _servers),
    "metadata.broker.list": ("bootstrap_servers", _servers),
    "client.id": ("client_id", _text),
    "client.dns.lookup": ("client_dns_lookup", _lookup),
    "security.protocol": ("security_protocol", _one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    "sasl.mechanism": ("sasl_mechanism", _one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")),
    "sasl.mechanisms": ("sasl_mechanism", _one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")),
    "sasl.username": ("sasl_plain_username", _text),
    "sasl.password": ("sasl_plain_password", _text),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", _text),
    "socket.timeout.ms": ("request_timeout_ms", _number),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", _number),
    "connections.max.idle.ms": ("connections_max_idle_ms", _number),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _number),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _number),
    "receive.message.max.bytes": ("receive_message_max_bytes", _number),
}
"""librdkafka's name -> kafka-python's name, and how the value is read."""

_SOCKET: Mapping[str, tuple[int, int, Callable[[Any], int]]] = {
    "socket.keepalive.enable": (socket.SOL_SOCKET, socket.SO_KEEPALIVE, _flag),
    "socket.nagle.disable": (socket.IPPROTO_TCP, socket.TCP_NODELAY, _flag),
    "socket.send.buffer.bytes": (socket.SOL_SOCKET, socket.SO_SNDBUF, _number),
    "socket.receive.buffer.bytes": (socket.SOL_SOCKET, socket.SO_RCVBUF, _number),
}

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

_FILES = "Write it to a file and name that with {}."
_KINIT = (
    "Have a ticket before the start (kinit, or the environment variable KRB5_CLIENT_KTNAME=<keytab>) and remove this "
    "setting."
)
_OIDC = "Give the setting oauth_cb a function that returns (token, expiry) instead."
_PKCS12 = "Convert it (openssl pkcs12) to PEM files for ssl.certificate.location, ssl.key.location and ssl.ca.location."

REFUSED: Mapping[str, str] = {
    "ssl.certificate.pem": _FILES.format("ssl.certificate.location"),
    "ssl.key.pem": _FILES.format("ssl.key.location"),
    "ssl.keystore.location": _PKCS12,
    "ssl.keystore.password": _PKCS12,
    "sasl.kerberos.keytab": _KINIT,
    "sasl.kerberos.principal": _KINIT,
    "sasl.kerberos.kinit.cmd": _KINIT,
    "sasl.oauthbearer.method": _OIDC,
    "sasl.oauthbearer.client.id": _OIDC,
    "sasl.oauthbearer.client.secret": _OIDC,
    "sasl.oauthbearer.token.endpoint.url": _OIDC,
    "sasl.oauthbearer.scope": _OIDC,
    "enable.sasl.oauthbearer.unsecure.jwt": _OIDC,
}
"""Settings on how to connect that kafka-python lacks -> the cure. Other names with these prefixes: remove them."""

_CONNECTING = ("ssl.", "ssl_", "sasl.", "security.", "enable.ssl", "enable.sasl", "https.")
_HARMLESS = {"sasl.oauthbearer.config", "sasl.kerberos.min.time.before.relogin"}
"""Settings that only refine another one, which decides."""


def kafka_python_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for kafka-python's client. TLS files are read now.

    Shape: `settings` in librdkafka's names; keys with the prefix `consumer.`, `producer.` or `admin.` are for other
    clients.

    Raises:
        ConfigError: a value that cannot be read, or a setting without a counterpart in kafka-python; has the cure.
    """
    ours = {
        name: value for name, value in settings.items() if not name.startswith(("consumer.", "producer.", "admin."))
    }
    arguments: dict[str, Any] = {}
    options: list[tuple[int, int, int]] = []
    for name, value in ours.items():
        if name in TRANSLATED:
            argument, read = TRANSLATED[name]
            arguments[argument] = _read(name, value, read)
        elif name in _SOCKET:
            level, option, read_number = _SOCKET[name]
            options.append((level, option, int(_read(name, value, read_number))))
        elif name == "broker.address.family" and value != "any":
            raise ConfigError(
                f"{name} = {value!r} cannot be given to the group's client. Remove it, and list addresses of the "
                "wanted family in bootstrap.servers."
            )
        elif name.startswith(_CONNECTING) and name not in _TLS | _HARMLESS:
            raise ConfigError(
                f"{name} cannot be given to the group's client (kafka-python). {REFUSED.get(name, 'Remove it.')}"
            )
    if not any(arguments.get("bootstrap_servers", ())):
        raise ConfigError("bootstrap.servers is missing: HOST:PORT of the brokers, separated by commas")
    return arguments | _idle(arguments) | _socket_options(options) | _sasl(arguments, ours) | _tls(arguments, ours)


def _read(name: str, value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _idle(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the idle time-out for 0, which means never, as in librdkafka."""
    return {"connections_max_idle_ms": 1 << 40} if arguments.get("connections_max_idle_ms") == 0 else {}


def _socket_options(options: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Return kafka-python's own two socket options, overridden by ours."""
    merged = {(socket.IPPROTO_TCP, socket.TCP_NODELAY): 1, (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1}
    merged |= {
        (level, option): value
        for level, option, value in options
        if value or option in (socket.TCP_NODELAY, socket.SO_KEEPALIVE)
    }
    return {"socket_options": [(level, option, value) for (level, option), value in merged.items()]} if options else {}


def _sasl(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    if not arguments.get("security_protocol", "PLAINTEXT").startswith("SASL"):
        return {}
    mechanism = arguments.get("sasl_mechanism", "GSSAPI")
    if mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        missing = [name for name in ("sasl.username", "sasl.password") if name not in settings]
        if missing:
            raise ConfigError(f"{' and '.join(missing)} must be set for sasl.mechanism {mechanism}")
    if mechanism == "OAUTHBEARER":
        callback = settings.get("oauth_cb")
        if not callable(callback):
            raise ConfigError(f"sasl.mechanism OAUTHBEARER: {_OIDC}")
        return {
            "sasl_mechanism": mechanism,
            "oauth_cb": callback,
            "oauth_config": str(settings.get("sasl.oauthbearer.config", "")),
        }
    return {"sasl_mechanism": mechanism}


def _tls(arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    if arguments.get("security_protocol") not in ("SSL", "SASL_SSL"):
        return {}
    try:
        return {"ssl_context": _context(settings)}
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        named = ", ".join(
            f"{name} = {settings[name]}"
            for name in sorted(_TLS & settings.keys())
            if "password" not in name and not name.endswith(".pem")
        )
        raise ConfigError(f"the TLS settings cannot be used ({named or 'the defaults'}): {error}") from error


def _context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = (
        _read(
            "ssl.endpoint.identification.algorithm",
            settings.get("ssl.endpoint.identification.algorithm", "https"),
            _names,
        )
        != "NONE"
    )
    if not _read(
        "enable.ssl.certificate.verification", settings.get("enable.ssl.certificate.verification", True), _flag
    ):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    location = settings.get("ssl.ca.location")
    if location and location != "probe":
        _load_authorities(context, str(location))
    if "ssl.ca.pem" in settings:
        context.load_verify_locations(cadata=str(settings["ssl.ca.pem"]))
    elif not location or location == "probe":
        context.load_default_certs()
    if "ssl.certificate.location" in settings:
        key, password = settings.get("ssl.key.location"), settings.get("ssl.key.password")
        context.load_cert_chain(str(settings["ssl.certificate.location"]), key and str(key), password and str(password))
    if "ssl.crl.location" in settings:
        context.load_verify_locations(str(settings["ssl.crl.location"]))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if "ssl.cipher.suites" in settings:
        context.set_ciphers(str(settings["ssl.cipher.suites"]))
    return context


def _load_authorities(context: ssl.SSLContext, location: str) -> None:
    """Load a file of certificates, or a folder made by `c_rehash`."""
    if Path(location).is_dir():
        context.load_verify_locations(capath=location)
    else:
        context.load_verify_locations(cafile=location)
