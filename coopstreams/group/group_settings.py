"""Connection and security settings for kafka-python, from the same settings in
librdkafka's names.

    translated   `TRANSLATED`: librdkafka's name, and kafka-python's
    security     by `common.security`, for all clients alike
    refused      settings on how to connect that kafka-python lacks: an error at start, never a silent difference
    ignored      settings on other things (batching, fetching, statistics, callbacks)

Invariant: either both clients reach the brokers in the same way, or nothing starts.
Source: librdkafka's CONFIGURATION.md; kafka-python
`KafkaConnectionManager.DEFAULT_CONFIG`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from coopstreams.common.security import Security
from coopstreams.common.setting_values import servers
from coopstreams.topology.errors import ConfigError

_TRUE = {"true", "t", "1", "yes", "on"}
_FALSE = {"false", "f", "0", "no", "off"}


def _flag(value: Any) -> bool:
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        raise ValueError(f"{value!r} is neither true nor false")
    return text in _TRUE


def _servers(value: Any) -> list[str]:
    """Return the servers as host:port. A protocol in front of a host is dropped;
    librdkafka ignores it too.
    """
    listed = value if isinstance(value, str) else ",".join(value)
    try:
        return [
            server.strip().rpartition("://")[2] for server in servers(listed).split(",")
        ]
    except ValueError as error:
        raise ValueError(f"{listed!r} must be {error}") from None


def _lookup(value: Any) -> str:
    if value not in ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"):
        raise ValueError(
            f"{value!r} is not one of use_all_dns_ips, resolve_canonical_bootstrap_servers_only"
        )
    return str(value)


TRANSLATED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", _servers),
    "metadata.broker.list": ("bootstrap_servers", _servers),
    "client.id": ("client_id", str),
    "client.dns.lookup": ("client_dns_lookup", _lookup),
    "socket.timeout.ms": ("request_timeout_ms", int),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", int),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "receive.message.max.bytes": ("receive_message_max_bytes", int),
}
"""kafka-python's name of each of librdkafka's settings, and the function that reads its
value.
"""

_SOCKET: Mapping[str, tuple[int, int, Callable[[Any], int]]] = {
    "socket.keepalive.enable": (socket.SOL_SOCKET, socket.SO_KEEPALIVE, _flag),
    "socket.nagle.disable": (socket.IPPROTO_TCP, socket.TCP_NODELAY, _flag),
    "socket.send.buffer.bytes": (socket.SOL_SOCKET, socket.SO_SNDBUF, int),
    "socket.receive.buffer.bytes": (socket.SOL_SOCKET, socket.SO_RCVBUF, int),
}


def kafka_python_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for kafka-python's client, and for `Connection` the
    arguments `login` and, with OAUTHBEARER, `token_source`. TLS files are read now.

    Shape: `settings` in librdkafka's names; keys with the prefix `consumer.`,
    `producer.` or `admin.` are for other clients.

    Raises:
        ConfigError: a value that cannot be read, or a setting without a counterpart in
            kafka-python; has the cure.
    """
    ours = {
        name: value
        for name, value in settings.items()
        if not name.startswith(("consumer.", "producer.", "admin."))
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
    if "bootstrap_servers" not in arguments:
        raise ConfigError(
            "bootstrap.servers is missing: HOST:PORT of the brokers, separated by commas"
        )
    security = Security.of(settings)
    return (
        arguments
        | _idle(arguments)
        | _socket_options(options)
        | security.kafka_python()
        | {"login": security.login}
    )


def _read(
    name: str,
    value: Any,
    read: Callable[[Any], Any],
) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _idle(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the idle time-out for the value 0, which means never in librdkafka;
    otherwise nothing.
    """
    return (
        {"connections_max_idle_ms": 1 << 40}
        if arguments.get("connections_max_idle_ms") == 0
        else {}
    )


def _socket_options(options: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Return the socket options: kafka-python's own two, overridden by the given ones;
    nothing if none is given.
    """
    merged = {
        (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    }
    merged |= {
        (level, option): value
        for level, option, value in options
        if value or option in (socket.TCP_NODELAY, socket.SO_KEEPALIVE)
    }
    return (
        {
            "socket_options": [
                (level, option, value) for (level, option), value in merged.items()
            ]
        }
        if options
        else {}
    )
