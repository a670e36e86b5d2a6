"""One set of connection settings for two clients: translated, or refused with what to do instead; never silently
different.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from kafka.net.manager import KafkaConnectionManager

from coopstreams.group.settings import TRANSLATED, kafka_python_settings
from coopstreams.topology.errors import ConfigError

SERVERS = {"bootstrap.servers": "a:9092"}

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUJEaeXSuZ+bXZkJK+1HG3k5znkGIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTA4NDYxMFoYDzIxMjYxMDI4
MDg0NjEwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS/tjDdhpgooKAlBIFMGJDyU2rz2uKvGIkXiJw1XNQ7T4BE214spSY/
hr91pXaDOSeO3zD44Ayx8voTxOBQiQaJo1MwUTAdBgNVHQ4EFgQUVj+/LtB+HPLU
3ZkJvWs9KkpToNIwHwYDVR0jBBgwFoAUVj+/LtB+HPLU3ZkJvWs9KkpToNIwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEAj6oU+91cebyqdulqGi/j
myuynOkhhQURnANzv2FZqg4CIDFOOavyPMwZ6dkOlcKCiwkVz043+LZwGKNo1k1I
MXfC
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHjME4GCSqGSIb3DQEFDTBBMCkGCSqGSIb3DQEFDDAcBAi9e5tfpzGHBAICCAAw
DAYIKoZIhvcNAgkFADAUBggqhkiG9w0DBwQITD/N7xn3H90EgZCnqpapcCqllXnD
0XZAdRMoglta0erNxiSyaNnvKqlWgfukILViDHjvhiBVJRdYRWyPllzSYsDoKWTl
GnmvaDhHfn28Ld8bGnq4GEw10sGJY5ZdXmEjXl+HZVBG2WHGo7AmmnagvY/xs5c1
wxa/aKERuYkV0yPOs/qP+XMdvMFHMwDWiFMLqDxEbnI+wBiri3o=
-----END ENCRYPTED PRIVATE KEY-----
"""  # of nobody: made for this test


@pytest.mark.parametrize(
    ("setting", "value", "argument", "translated"),
    [
        ("bootstrap.servers", "a:9092, b:9093", "bootstrap_servers", ["a:9092", "b:9093"]),
        ("bootstrap.servers", "SASL_SSL://a:9092,ssl://b:1", "bootstrap_servers", ["a:9092", "b:1"]),
        ("bootstrap.servers", ["a:9092", "[::1]:9092"], "bootstrap_servers", ["a:9092", "[::1]:9092"]),
        ("metadata.broker.list", "a:9092", "bootstrap_servers", ["a:9092"]),
        ("client.id", "me", "client_id", "me"),
        ("client.dns.lookup", "use_all_dns_ips", "client_dns_lookup", "use_all_dns_ips"),
        ("security.protocol", "plaintext", "security_protocol", "PLAINTEXT"),
        ("socket.timeout.ms", "5000", "request_timeout_ms", 5000),
        ("socket.connection.setup.timeout.ms", 3000, "socket_connection_setup_timeout_ms", 3000),
        ("connections.max.idle.ms", 60000, "connections_max_idle_ms", 60000),
        ("reconnect.backoff.ms", 20, "reconnect_backoff_ms", 20),
        ("reconnect.backoff.max.ms", 5000, "reconnect_backoff_max_ms", 5000),
        ("receive.message.max.bytes", 1000000, "receive_message_max_bytes", 1000000),
    ],
)
def test_a_setting_is_translated(setting: str, value: Any, argument: str, translated: Any) -> None:
    assert kafka_python_settings({**SERVERS, setting: value})[argument] == translated


def test_every_translation_is_an_argument_that_kafka_python_knows() -> None:
    assert {argument for argument, _ in TRANSLATED.values()} <= KafkaConnectionManager.DEFAULT_CONFIG.keys()


@pytest.mark.parametrize("mechanism", ["PLAIN", "scram-sha-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_user_and_password(mechanism: str, name: str) -> None:
    given = {
        **SERVERS,
        "security.protocol": "sasl_plaintext",
        name: mechanism,
        "sasl.username": "u",
        "sasl.password": "p,;= ",
    }
    arguments = kafka_python_settings(given)
    assert arguments["sasl_mechanism"] == mechanism.upper()
    assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == ("u", "p,;= ")


def test_kerberos_is_what_librdkafka_does_without_a_mechanism() -> None:
    arguments = kafka_python_settings(
        {**SERVERS, "security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "broker"}
    )
    assert (arguments["sasl_mechanism"], arguments["sasl_kerberos_service_name"]) == ("GSSAPI", "broker")


def test_tokens_come_from_the_same_function() -> None:
    def tokens(config: str) -> tuple[str, float]:
        return config, 0.0

    given = {
        **SERVERS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": "x=y",
        "oauth_cb": tokens,
    }
    arguments = kafka_python_settings(given)
    assert (arguments["oauth_cb"], arguments["oauth_config"]) == (tokens, "x=y")


def test_sasl_settings_without_sasl_do_nothing() -> None:
    assert "ssl_context" not in kafka_python_settings({**SERVERS, "ssl.ca.location": "/nowhere"})
    assert "sasl_mechanism" not in kafka_python_settings(SERVERS)


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
    assert kafka_python_settings({**SERVERS, "connections.max.idle.ms": 0})["connections_max_idle_ms"] > 10**12


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
    given = {**SERVERS, "producer.ssl.key.pem": "x", "consumer.client.id": "y", "admin.socket.timeout.ms": "z"}
    assert kafka_python_settings(given) == kafka_python_settings(SERVERS)


@pytest.mark.parametrize(
    ("setting", "value", "cure"),
    [
        ("ssl.key.pem", "-----BEGIN", "Write it to a file and name that with ssl.key.location"),
        ("ssl.certificate.pem", "-----BEGIN", "name that with ssl.certificate.location"),
        ("ssl.keystore.location", "x.p12", "openssl pkcs12"),
        ("sasl.kerberos.keytab", "x", "KRB5_CLIENT_KTNAME"),
        ("sasl.kerberos.principal", "x", "kinit"),
        ("sasl.oauthbearer.token.endpoint.url", "x", "oauth_cb"),
        ("ssl.engine.location", "x", "Remove it"),
        ("ssl.made.up", "x", "Remove it"),
        ("security.made.up", "x", "Remove it"),
        ("broker.address.family", "v6", "list addresses"),
    ],
)
def test_a_connection_setting_without_a_counterpart_is_refused_with_a_cure(setting: str, value: str, cure: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}.*{cure}"):
        kafka_python_settings({**SERVERS, setting: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "bootstrap.servers is missing"),
        ({**SERVERS, "security.protocol": "tls"}, "security.protocol: 'tls' is not one of PLAINTEXT, SSL"),
        ({**SERVERS, "socket.timeout.ms": "soon"}, "socket.timeout.ms: .*soon"),
        (
            {**SERVERS, "socket.keepalive.enable": "perhaps"},
            "socket.keepalive.enable: 'perhaps' is neither true nor false",
        ),
        ({**SERVERS, "client.dns.lookup": "guess"}, "client.dns.lookup: 'guess'"),
        (
            {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "sasl.username and sasl.password must be set",
        ),
        (
            {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"},
            "^sasl.password must be set",
        ),
        ({**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "oauth_cb"),
        (
            {**SERVERS, "security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"},
            "ssl.ca.location = /nowhere/ca.pem.*No such file",
        ),
        (
            {**SERVERS, "security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "perhaps"},
            "ssl.endpoint.identification.algorithm",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kafka_python_settings(settings)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        kafka_python_settings(
            {
                **SERVERS,
                "security.protocol": "SSL",
                "ssl.certificate.location": "/nowhere",
                "ssl.key.password": "secret",
            }
        )
    assert "secret" not in str(caught.value)


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    """A folder with a self-signed certificate and its key, which has the password `pw`."""
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    return tmp_path


def context(**settings: Any) -> ssl.SSLContext:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    made = kafka_python_settings({**SERVERS, "security.protocol": "SSL", **named})["ssl_context"]
    assert isinstance(made, ssl.SSLContext)
    return made


def test_tls_checks_certificate_and_host_name_unless_told_otherwise() -> None:
    made = context()
    assert (made.verify_mode, made.check_hostname, made.minimum_version) == (
        ssl.CERT_REQUIRED,
        True,
        ssl.TLSVersion.TLSv1_2,
    )
    assert not context(ssl_endpoint_identification_algorithm="none").check_hostname
    careless = context(enable_ssl_certificate_verification="false")
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)


def test_only_the_given_authority_is_trusted(identity: Path) -> None:
    for made in (
        context(ssl_ca_location=str(identity / "cert.pem")),
        context(ssl_ca_pem=(identity / "cert.pem").read_text()),
    ):
        (authority,) = made.get_ca_certs()
        assert dict(entry[0] for entry in authority["subject"])["commonName"] == "localhost"  # type: ignore[misc]


def test_a_client_certificate_needs_its_password(identity: Path) -> None:
    files = {"ssl_certificate_location": str(identity / "cert.pem"), "ssl_key_location": str(identity / "key.pem")}
    context(**files, ssl_key_password="pw")
    with pytest.raises(ConfigError, match=r"ssl.certificate.location = .*cert\.pem"):
        context(**files, ssl_key_password="wrong")
