"""Secrets in settings: from files and the environment; errors name the setting and not
the secret.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from coopstreams.common.references import Secret, is_secret, resolved
from coopstreams.topology.errors import ConfigError


def test_references_are_replaced_anywhere_in_a_value(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("two words\n")
    given = {
        "sasl.password": f"${{file:{tmp_path}/password}}",
        "bootstrap.servers": "${env:ONE}:9092,${env:OTHER}:9092",
        "linger.ms": 5,
    }
    assert resolved(given, {"ONE": "a", "OTHER": "b"}) == {
        "sasl.password": "two words",
        "bootstrap.servers": "a:9092,b:9092",
        "linger.ms": 5,
    }


def test_a_secret_that_looks_like_a_reference_is_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("${env:X}")
    once = resolved({"sasl.password": f"${{file:{tmp_path}/password}}"}, {})
    assert resolved(once, {}) == {"sasl.password": "${env:X}"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "${env:GONE}",
            r"sasl\.password = \$\{env:GONE\}: the environment variable GONE is not set here",
        ),
        ("${file:/nowhere}", "the file cannot be read: No such file"),
        ("${vault:x}", r"there is no \$\{vault:"),
    ],
)
def test_a_reference_that_leads_nowhere_names_the_setting(
    value: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        resolved({"sasl.password": value}, {})


def test_secrets_are_hidden_also_after_a_journey() -> None:
    (secret,) = resolved({"producer.sasl.password": "xyzzy"}, {}).values()
    for each in (secret, pickle.loads(pickle.dumps(secret))):
        assert (each, repr(each), type(each)) == ("xyzzy", "'[hidden]'", Secret)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.password", True),
        ("ssl.key.password", True),
        ("ssl.key.pem", True),
        ("sasl.oauthbearer.client.secret", True),
        ("sasl.oauthbearer.config", True),
        ("admin.sasl.password", True),
        ("sasl.username", False),
        ("ssl.key.location", False),
        ("ssl.ca.pem", False),
    ],
)
def test_which_settings_are_secret(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
