"""One set of security settings for every client: translated alike or refused with the
cure; secrets are not shown.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from coopstreams.common.acl_errors import Attempt, Login
from coopstreams.common.config import Config
from coopstreams.common.security import Security
from coopstreams.log.kafka.client_settings import client_settings
from coopstreams.topology.errors import ConfigError

SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
}
TOKENS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OIDC = {
    **TOKENS,
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://id/token",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "hush",
}

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
"""  # a key that is used nowhere else


def tokens(config: str) -> tuple[str, float]:
    return f"token of {config}", 2e9


@pytest.mark.parametrize("mechanism", ["PLAIN", "scram-sha-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_user_and_password_for_both_clients(mechanism: str, name: str) -> None:
    given = {
        "security.protocol": "sasl_plaintext",
        name: mechanism,
        "sasl.username": "u",
        "sasl.password": "p,;= ",
    }
    made = Security.of(given)
    assert made.librdkafka() == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism.upper(),
        "sasl.username": "u",
        "sasl.password": "p,;= ",
    }
    assert made.kafka_python() == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism.upper(),
        "sasl_plain_username": "u",
        "sasl_plain_password": "p,;= ",
    }
    assert made.login == Login("User:u", mechanism.upper())


def test_kerberos_is_what_librdkafka_does_without_a_mechanism() -> None:
    made = Security.of(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "broker"}
    )
    assert made.librdkafka()["sasl.mechanism"] == "GSSAPI"
    assert made.librdkafka()["sasl.kerberos.service.name"] == "broker"
    assert made.kafka_python()["sasl_kerberos_service_name"] == "broker"


@pytest.mark.parametrize("given", [tokens, f"{__name__}:tokens"])
def test_tokens_come_from_the_same_function_given_itself_or_by_name(given: Any) -> None:
    made = Security.of({**TOKENS, "sasl.oauthbearer.config": "x=y", "oauth_cb": given})
    assert made.librdkafka()["oauth_cb"]("") == ("token of x=y", 2e9)
    assert made.kafka_python()["token_source"]("") == ("token of x=y", 2e9)


def test_openid_connect_is_librdkafkas_own_and_ours_for_the_group() -> None:
    made = Security.of(OIDC)
    assert "oauth_cb" not in made.librdkafka()
    assert made.librdkafka()["sasl.oauthbearer.client.secret"] == "hush"
    assert callable(made.kafka_python()["token_source"])


def test_the_java_client_is_told_of_certificates(identity: Path) -> None:
    files = {name: str(identity / file) for name, file in IDENTITY.items()}
    java = Security.of(
        {"security.protocol": "SSL", **files, "ssl.key.password": "pw"}
    ).java()
    assert java == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(identity / "cert.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": KEY,
        "ssl.keystore.certificate.chain": CERTIFICATE,
        "ssl.key.password": "pw",
    }


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        (
            {"ssl.key.pem": "-----BEGIN"},
            r"^ssl\.key\.pem.*Write it to a file and name that with ssl\.key\.location",
        ),
        (
            {"ssl.certificate.pem": "-----BEGIN"},
            r"name that with ssl\.certificate\.location",
        ),
        ({"ssl.keystore.location": "x.p12"}, "openssl pkcs12"),
        ({"sasl.kerberos.keytab": "x"}, "KRB5_CLIENT_KTNAME"),
        ({"sasl.kerberos.principal": "x"}, "kinit"),
        ({"sasl.oauthbearer.grant.type": "x"}, "oauth_cb"),
        ({"ssl.engine.location": "x"}, "Remove it"),
        ({"ssl.ca.locaton": "x"}, r"ssl\.ca\.location"),
        (
            {"producer.sasl.username": "x"},
            r"all clients of a process log in as the same user\. Set sasl\.username",
        ),
        ({"consumer.oauth_cb": "x:y"}, r"Set oauth_cb"),
        (
            {"security.protocol": "tls"},
            "security.protocol: 'tls' is not one of PLAINTEXT, SSL",
        ),
        (
            {**SASL, "sasl.mechanism": "SCRAM"},
            "sasl.mechanism: 'SCRAM' is not one of PLAIN, SCRAM-SHA-256",
        ),
        ({**SASL, "sasl.mechanisms": "PLAIN"}, "the same setting"),
        (
            {**SASL, "sasl.username": ""},
            "^sasl.username and sasl.password must be set for sasl.mechanism SCRAM",
        ),
        (SASL, "^sasl.password must be set"),
        (TOKENS, "who gives the token.*oauth_cb"),
        ({**TOKENS, "oauth_cb": "here"}, 'write "module:function"'),
        (
            {**TOKENS, "oauth_cb": "nowhere_at_all:f"},
            "No module named 'nowhere_at_all'",
        ),
        ({**TOKENS, "oauth_cb": 5}, "must be a function"),
        ({**OIDC, "sasl.oauthbearer.client.secret": ""}, "client.secret must be set"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "AWS_MSK_IAM"},
            "needs security.protocol SASL_SSL",
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"},
            "/nowhere/ca.pem.*No such file",
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "so"},
            "identification.algorithm: 'so'",
        ),
        (
            {"security.protocol": "SSL", "enable.ssl.certificate.verification": "so"},
            "neither true nor false",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_at_start_with_the_cure(
    settings: dict[str, Any], cure: str
) -> None:
    with pytest.raises(ConfigError, match=cure):
        Config.of({"bootstrap.servers": "a:9092", **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.password": "p",
            },
            "PLAIN sends the password readable by everybody on the way. Set SASL_SSL",
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": tokens,
            },
            "sends the token readable",
        ),
        (
            {"sasl.password": "p"},
            "sasl.username set, but security.protocol is PLAINTEXT, so nobody logs in",
        ),
        (
            {"ssl.ca.location": "/ca.pem"},
            "ssl.ca.location set, but security.protocol is PLAINTEXT, without TLS",
        ),
        (
            {"security.protocol": "SSL", "enable.ssl.certificate.verification": False},
            "anybody may claim",
        ),
    ],
)
def test_what_is_hardly_meant_is_a_warning(
    settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Config.of({"bootstrap.servers": "a:9092", "sasl.username": "u", **settings})
    assert said in caplog.text


def test_sasl_settings_without_sasl_do_nothing() -> None:
    made = Security.of({"ssl.ca.location": "/nowhere", "sasl.mechanism": "PLAIN"})
    assert made.kafka_python() == {"security_protocol": "PLAINTEXT"}


def test_a_reference_is_resolved_for_every_client(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush\n")
    config = Config.of(
        {
            "bootstrap.servers": "a:9092",
            **SASL,
            "sasl.password": f"${{file:{tmp_path}/password}}",
        }
    )
    for settings in (
        config.client,
        {
            **SASL,
            "bootstrap.servers": "a",
            "sasl.password": f"${{file:{tmp_path}/password}}",
        },
    ):
        assert client_settings(settings, "producer")["sasl.password"] == "hush"
        assert Security.of(settings).kafka_python()["sasl_plain_password"] == "hush"


@pytest.mark.parametrize(
    "name", ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret"]
)
def test_settings_do_not_show_a_secret(name: str) -> None:
    config = Config.of({"bootstrap.servers": "a:9092", **OIDC, name: "xyzzy"})
    shown = (
        config,
        Security.of(config.client),
        client_settings(config.client, "admin"),
    )
    assert "xyzzy" not in repr(shown)
    assert "[hidden]" in repr(shown)


def test_a_password_is_not_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Security.of(
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": "/nowhere",
                "ssl.key.password": "xyzzy",
            }
        )
    assert "xyzzy" not in str(caught.value)


LIFE = UUID("114c37fa-c7ba-4a55-b90e-fa68b8da4e77")
IDENTITY = {
    "ssl.ca.location": "cert.pem",
    "ssl.certificate.location": "cert.pem",
    "ssl.key.location": "key.pem",
}


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    """A folder with a self-signed certificate and its key, which has the password `pw`."""
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    return tmp_path


def context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    made = Security.of({"security.protocol": "SSL", **settings}).kafka_python()[
        "ssl_context"
    ]
    assert isinstance(made, ssl.SSLContext)
    return made


def test_tls_checks_certificate_and_host_name_unless_told_otherwise() -> None:
    made = context({})
    assert (made.verify_mode, made.check_hostname, made.minimum_version) == (
        ssl.CERT_REQUIRED,
        True,
        ssl.TLSVersion.TLSv1_2,
    )
    assert not context({"ssl.endpoint.identification.algorithm": "none"}).check_hostname
    careless = context({"enable.ssl.certificate.verification": "false"})
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)


def test_only_the_given_authority_is_trusted(identity: Path) -> None:
    for made in (
        context({"ssl.ca.location": str(identity / "cert.pem")}),
        context({"ssl.ca.pem": (identity / "cert.pem").read_text()}),
    ):
        (authority,) = made.get_ca_certs()
        assert (
            dict(entry[0] for entry in authority["subject"])["commonName"]  # type: ignore[misc]
            == "localhost"
        )


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_client_certificate_needs_its_password(identity: Path, password: str) -> None:
    """Without the password, OpenSSL would ask for it on the terminal."""
    files = {name: str(identity / file) for name, file in IDENTITY.items()}
    context({**files, "ssl.key.password": "pw"})
    with pytest.raises(ConfigError, match=r"ssl.certificate.location = .*cert\.pem"):
        context({**files, "ssl.key.password": password})


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            "TOPIC_AUTHORIZATION_FAILED",
            "User:me (PLAIN) has no ACL for Write on one of the topics a, b. Allow it: kafka-acls.sh "
            "--bootstrap-server <HOST:PORT> --add --allow-principal User:me --operation Write --topic a --topic b",
        ),
        (
            "GROUP_AUTHORIZATION_FAILED",
            "has no ACL for Read on the group g. Allow it: ",
        ),
        (
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            "--operation Write --transactional-id t",
        ),
        ("CLUSTER_AUTHORIZATION_FAILED", "--operation IdempotentWrite --cluster"),
    ],
)
def test_a_refusal_names_user_mechanism_operation_resource_and_cure(
    refusal: str, said: str
) -> None:
    assert said in Attempt(
        Login("User:me", "PLAIN"), "Write", "a, b", "g", "t"
    ).missing(refusal)


@pytest.mark.parametrize(
    ("id_", "allowed"),
    [
        (
            f"dead-replay-consumer-{LIFE.hex}-commit",
            "dead-replay- --resource-pattern-type prefixed",
        ),
        (f"group-alone-{LIFE.hex[:16]}", "group- --resource-pattern-type prefixed"),
        (f"shop-{LIFE}-0", "shop- --resource-pattern-type prefixed"),
        ("shop-facade-7", "shop-facade-7"),
    ],
)
def test_a_transactional_id_of_one_life_is_allowed_by_its_prefix(
    id_: str, allowed: str
) -> None:
    said = Attempt(Login("User:me"), transactional_id=id_).missing(
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    )
    assert f"on the transactional id {id_}. Allow it: " in said
    assert said.endswith(f"--operation Write --transactional-id {allowed}")
