"""One set of connection settings for two clients: translated, or refused with the
alternative; never silently different.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest
from kafka.net.manager import KafkaConnectionManager

from coopstreams.group.group_settings import TRANSLATED, kafka_python_settings
from coopstreams.topology.errors import ConfigError

SERVERS = {"bootstrap.servers": "a:9092"}


@pytest.mark.parametrize(
    ("setting", "value", "argument", "translated"),
    [
        (
            "bootstrap.servers",
            "a:9092, b:9093",
            "bootstrap_servers",
            ["a:9092", "b:9093"],
        ),
        (
            "bootstrap.servers",
            "SASL_SSL://a:9092,ssl://b:1",
            "bootstrap_servers",
            ["a:9092", "b:1"],
        ),
        (
            "bootstrap.servers",
            ["a:9092", "[::1]:9092"],
            "bootstrap_servers",
            ["a:9092", "[::1]:9092"],
        ),
        ("metadata.broker.list", "a:9092", "bootstrap_servers", ["a:9092"]),
        ("client.id", "me", "client_id", "me"),
        (
            "client.dns.lookup",
            "use_all_dns_ips",
            "client_dns_lookup",
            "use_all_dns_ips",
        ),
        ("socket.timeout.ms", "5000", "request_timeout_ms", 5000),
        (
            "socket.connection.setup.timeout.ms",
            3000,
            "socket_connection_setup_timeout_ms",
            3000,
        ),
        ("connections.max.idle.ms", 60000, "connections_max_idle_ms", 60000),
        ("reconnect.backoff.ms", 20, "reconnect_backoff_ms", 20),
        ("reconnect.backoff.max.ms", 5000, "reconnect_backoff_max_ms", 5000),
        ("receive.message.max.bytes", 1000000, "receive_message_max_bytes", 1000000),
    ],
)
def test_a_setting_is_translated(
    setting: str, value: Any, argument: str, translated: Any
) -> None:
    assert kafka_python_settings({**SERVERS, setting: value})[argument] == translated


def test_every_translation_is_an_argument_that_kafka_python_knows() -> None:
    assert {
        argument for argument, _ in TRANSLATED.values()
    } <= KafkaConnectionManager.DEFAULT_CONFIG.keys()


def test_socket_options_are_set_as_librdkafka_would() -> None:
    arguments = kafka_python_settings(
        {
            **SERVERS,
            "socket.keepalive.enable": "false",
            "socket.nagle.disable": True,
            "socket.send.buffer.bytes": 9,
            "socket.receive.buffer.bytes": 0,
        }
    )
    assert set(arguments["socket_options"]) == {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, 9),
    }


def test_connections_that_may_be_idle_for_ever() -> None:
    assert (
        kafka_python_settings({**SERVERS, "connections.max.idle.ms": 0})[
            "connections_max_idle_ms"
        ]
        > 10**12
    )


def test_what_does_not_connect_is_ignored() -> None:
    given = {
        **SERVERS,
        "linger.ms": 5,
        "statistics.interval.ms": 1000,
        "debug": "broker",
        "fetch.wait.max.ms": 5,
        "log_level": 2,
        "error_cb": print,
    }
    assert kafka_python_settings(given) == kafka_python_settings(SERVERS)


def test_settings_of_other_clients_are_ignored() -> None:
    given = {**SERVERS, "consumer.client.id": "y", "admin.socket.timeout.ms": "z"}
    assert kafka_python_settings(given) == kafka_python_settings(SERVERS)


def test_an_address_family_is_refused_with_a_cure() -> None:
    with pytest.raises(ConfigError, match=r"^broker\.address\.family.*list addresses"):
        kafka_python_settings({**SERVERS, "broker.address.family": "v6"})


def test_security_settings_become_arguments_that_kafka_python_knows() -> None:
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    arguments = kafka_python_settings({**SERVERS, **login})
    assert arguments.keys() - {"login"} <= KafkaConnectionManager.DEFAULT_CONFIG.keys()
    assert (arguments["security_protocol"], arguments["sasl_plain_username"]) == (
        "SASL_SSL",
        "u",
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "bootstrap.servers is missing"),
        (
            {"bootstrap.servers": "localhost:port"},
            "bootstrap.servers: 'localhost:port' must be HOST:PORT of the brokers",
        ),
        ({**SERVERS, "socket.timeout.ms": "soon"}, "socket.timeout.ms: .*soon"),
        (
            {**SERVERS, "socket.keepalive.enable": "perhaps"},
            "socket.keepalive.enable: 'perhaps' is neither true nor false",
        ),
        ({**SERVERS, "client.dns.lookup": "guess"}, "client.dns.lookup: 'guess'"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kafka_python_settings(settings)
