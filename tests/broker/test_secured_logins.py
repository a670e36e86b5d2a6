"""Each way to log in, on a real broker: tokens that are renewed while an application
runs, certificates, passwords.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coopstreams.dev import token_issuer
from tests.broker.counting import Counting, await_table, failure_of, instance_of
from tests.broker.secured import SecuredKafka, printed, secured_kafka
from tests.conftest import download_kafka
from tests.identity_provider import CLIENT, identity_provider

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LIFETIME_S = 10
"""The lifetime of a token: an application that runs for several logs in repeatedly."""


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SecuredKafka]:
    """Return a secured broker for the tests of this module; it knows the user `plain`
    by the mechanism PLAIN.
    """
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_plain="secret-of-plain";'
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
    }
    with secured_kafka(
        tmp_path_factory.mktemp("secured"), download_kafka(request), settings
    ) as kafka:
        yield kafka


def counted(secured: SecuredKafka, user: str) -> Counting:
    """Return an application that this user may run."""
    counting = Counting.make(secured)
    secured.allow(
        user, printed(counting.topology, processing_guarantee="exactly_once_v2")
    )
    return counting


def runs(counting: Counting, folder: Path, login: dict[str, Any]) -> None:
    """Run an application of two tasks with this login once."""
    with counting.app(
        folder,
        processing_guarantee="exactly_once_v2",
        ranges_per_partition=2,
        login=login,
    ) as app:
        await_table(app, counting.write(["a", "b", "a"]))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_and_password(
    secured: SecuredKafka, tmp_path: Path, mechanism: str
) -> None:
    user = f"user-{mechanism}"
    counting = counted(secured, user)
    runs(counting, tmp_path, secured.user(user, (), mechanism))
    assert secured.refusals(user, counting.sink) == set()


def test_plain_over_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    counting = counted(secured, "plain")
    login = {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "plain",
        "sasl.password": "secret-of-plain",
    }
    runs(counting, tmp_path, secured.settings | login)


def test_mutual_tls(secured: SecuredKafka, tmp_path: Path) -> None:
    counting = counted(secured, "certified")
    runs(counting, tmp_path, secured.with_certificate("certified"))
    assert secured.refusals("certified", counting.sink) == set()


def test_tokens_of_ones_own_are_renewed_while_it_runs(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    asked: list[str] = []

    def token(config: str) -> tuple[str, float]:
        asked.append(config)
        return secured.secured.token("tokens", LIFETIME_S), time.time() + LIFETIME_S

    counting = counted(secured, "tokens")
    login = {
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
        "sasl.oauthbearer.config": "x=y",
    }
    stays_in(counting, tmp_path, secured.without_password() | login)
    assert set(asked) == {"x=y"}


def test_tokens_by_openid_connect_are_renewed_while_it_runs(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    counting = counted(secured, CLIENT)
    with identity_provider(
        lambda: secured.secured.token(CLIENT, LIFETIME_S)
    ) as provider:
        stays_in(counting, tmp_path, secured.without_password() | provider.settings())
    assert secured.refusals(CLIENT, counting.sink) == set()


def stays_in(counting: Counting, folder: Path, login: dict[str, Any]) -> None:
    """Run an application for three token lifetimes: it continues to count, in one
    generation of the group.
    """
    with counting.app(
        folder,
        processing_guarantee="exactly_once_v2",
        ranges_per_partition=2,
        login=login,
    ) as app:
        await_table(app, counting.write(["a"]))
        generation = instance_of(app).member._participant._holdings.generation
        until, total = time.monotonic() + 3 * LIFETIME_S, 1
        while time.monotonic() < until:
            total += 1
            counting.write(["a"])
            await_table(app, {"a": total})
            time.sleep(0.5)
        assert instance_of(app).member._participant._holdings.generation == generation


def test_an_application_outlives_an_identity_provider_that_is_away(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    """The provider is unavailable for longer than a token's life: no client can log in,
    and no process ends.
    """
    counting = counted(secured, CLIENT)
    with identity_provider(
        lambda: secured.secured.token(CLIENT, LIFETIME_S)
    ) as provider:
        login = secured.without_password() | provider.settings()
        with counting.app(
            tmp_path, processing_guarantee="exactly_once_v2", login=login
        ) as app:
            await_table(app, counting.write(["a"]))
            provider.down = True
            time.sleep(1.5 * LIFETIME_S)
            provider.down = False
            counting.write(["a"])
            await_table(app, {"a": 2})


def test_an_application_outlives_tokens_that_are_refused_for_a_while(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    """As when a provider signs with a new key before the brokers have it."""
    unknown: list[bytes] = []

    def token(_: str) -> tuple[str, float]:
        ends = time.time() + LIFETIME_S
        if unknown:
            return token_issuer.signed(unknown[0], "tokens", LIFETIME_S), ends
        return secured.secured.token("tokens", LIFETIME_S), ends

    counting = counted(secured, "tokens")
    login = secured.without_password() | {
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    with counting.app(
        tmp_path, processing_guarantee="exactly_once_v2", login=login
    ) as app:
        await_table(app, counting.write(["a"]))
        unknown.append(token_issuer.new_key())
        time.sleep(2 * LIFETIME_S)
        unknown.clear()
        counting.write(["a"])
        await_table(app, {"a": 2})


def test_a_token_that_the_brokers_do_not_take(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    counting = Counting.make(secured)

    def token(_: str) -> tuple[str, float]:
        return token_issuer.signed(
            token_issuer.new_key(), "tokens", LIFETIME_S
        ), time.time() + LIFETIME_S

    login = secured.without_password() | {
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    error = str(
        failure_of(counting.app(tmp_path, login=login, connect_timeout_ms=10_000))
    )
    print(error)
    assert (
        "The brokers do not let in the user of this process (OAUTHBEARER): check"
        in error
    )


def test_an_identity_provider_that_refuses(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    counting = Counting.make(secured)
    with identity_provider(lambda: "") as provider:
        login = (
            secured.without_password()
            | provider.settings()
            | {"sasl.oauthbearer.client.secret": "xyzzy"}
        )
        error = str(
            failure_of(counting.app(tmp_path, login=login, connect_timeout_ms=5_000))
        )
    print(error)
    assert "Failed to acquire SASL OAUTHBEARER token" in error
    assert "xyzzy" not in error


def test_a_token_that_has_expired(secured: SecuredKafka, tmp_path: Path) -> None:
    counting = Counting.make(secured)

    def token(_: str) -> tuple[str, float]:
        return secured.secured.token("tokens", -60), time.time() - 60

    login = secured.without_password() | {
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    error = str(failure_of(counting.app(tmp_path, login=login)))
    assert error.startswith(
        "no token for OAUTHBEARER: oauth_cb returned a token that has ended 60 s ago"
    )
