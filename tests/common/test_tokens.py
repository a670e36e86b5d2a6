"""Tokens for OAUTHBEARER: from an identity provider, signed for AWS, and renewed before
their end.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import logging
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator

import pytest

from coopstreams.common.security import Security
from coopstreams.common.tokens import Token, TokenError, Tokens, oidc
from coopstreams.dev import token_issuer
from coopstreams.topology.errors import ConfigError
from tests.identity_provider import SECRET, IdentityProvider, identity_provider

KEY = token_issuer.new_key()


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider(lambda: token_issuer.signed(KEY, "me", 100)) as made:
        yield made


def test_a_token_comes_with_the_end_in_its_claims(provider: IdentityProvider) -> None:
    extra = {
        "sasl.oauthbearer.scope": "kafka all",
        "sasl.oauthbearer.extensions": "a=1,b=2",
    }
    token, end, _, extensions = oidc(provider.settings() | extra)("")
    assert token.count(".") == 2
    assert 98 < end - time.time() <= 100
    assert extensions == {"a": "1", "b": "2"}
    assert provider.forms == [
        {"grant_type": ["client_credentials"], "scope": ["kafka all"]}
    ]


def test_a_token_that_says_nothing_ends_when_the_provider_says() -> None:
    with identity_provider(lambda: "opaque") as provider:
        token, end, *_ = oidc(provider.settings())("")
    assert (token, 3590 < end - time.time() <= 3600) == ("opaque", True)


def test_a_refusal_names_the_endpoint_and_not_the_secret(
    provider: IdentityProvider,
) -> None:
    wrong = provider.settings() | {"sasl.oauthbearer.client.secret": f"not-{SECRET}"}
    with pytest.raises(TokenError) as caught:
        oidc(wrong)("")
    assert f"no token from {provider.url}: HTTP Error 401: Unauthorized" in str(
        caught.value
    )
    assert SECRET not in str(caught.value)


def test_a_token_is_renewed_before_its_end_and_nobody_waits_for_it() -> None:
    numbers, renewed = itertools.count(), threading.Event()

    def fetch(_: str) -> Token:
        if (number := next(numbers)) >= 2:
            renewed.set()
        return f"token-{number}", time.time() + 1.0

    made = Tokens(fetch)
    assert made.current()[0] == "token-0"
    assert renewed.wait(30)
    made.close()


def test_the_old_token_is_used_while_there_is_no_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers, failed = itertools.count(), threading.Event()

    def fetch(_: str) -> Token:
        if next(numbers):
            failed.set()
            raise OSError("the provider is away")
        return "first", time.time() + 3600 * 1e-4

    made = Tokens(fetch)
    assert made.current()[0] == "first"
    with caplog.at_level(logging.WARNING):
        assert failed.wait(30)
        made.close()
    with pytest.raises(
        TokenError, match="no token for OAUTHBEARER: the provider is away"
    ):
        while_there_is_one(made)


def while_there_is_one(made: Tokens) -> None:
    while made.current():
        time.sleep(0.01)


def test_a_provider_whose_tokens_have_ended_by_the_clock_here_is_asked_again_after_a_pause() -> (
    None
):
    """A clock that is an hour ahead: the provider was asked ten times a second, without
    a line in the log.
    """
    asked: list[float] = []

    def fetch(_: str) -> Token:
        asked.append(time.monotonic())
        return "ended", time.time() - 3000

    made = Tokens(fetch)
    with pytest.raises(
        TokenError,
        match="no token for OAUTHBEARER: it ended 3000 s ago by the clock of this host",
    ):
        made.current()
    time.sleep(0.5)
    made.close()
    assert len(asked) == 1


def test_who_never_connects_asks_for_no_token() -> None:
    """An instance that is given up before it joins closes no connection."""
    asked: list[str] = []

    def fetch(config: str) -> Token:
        asked.append(config)
        return "token", time.time() + 100

    made = Tokens(fetch)
    time.sleep(0.1)
    assert not asked
    assert made.current()[0] == "token"
    made.close()
    assert len(asked) == 1


def test_a_token_for_aws_is_a_signed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: AWS Signature Version 4, with the signature in the query."""
    pytest.importorskip(
        "aws_msk_iam_sasl_signer", reason="`make setup` installs the extra msk"
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    servers = "b-1.orders.abc.c2.kafka.eu-west-1.amazonaws.com:9098"
    given = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
    }
    made = Security.of(given)
    assert (
        made.librdkafka()["sasl.mechanism"]
        == made.kafka_python()["sasl_mechanism"]
        == "OAUTHBEARER"
    )
    for fetch in (made.librdkafka()["oauth_cb"], made.kafka_python()["token_source"]):
        token, end = fetch("")
        assert 800 < end - time.time() <= 900
        url = urllib.parse.urlsplit(
            base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        )
        query = dict(urllib.parse.parse_qsl(url.query))
        assert url.netloc == "kafka.eu-west-1.amazonaws.com"
        assert query["X-Amz-Credential"].startswith("AKIAEXAMPLE/")
        assert query["X-Amz-Signature"] == signature(url.netloc, query, "hush")


def signature(host: str, query: dict[str, str], secret: str) -> str:
    """Return the signature that AWS computes for the same request."""
    signed = sorted(
        (name, value)
        for name, value in query.items()
        if name not in ("X-Amz-Signature", "User-Agent")
    )
    canonical = urllib.parse.urlencode(
        signed, quote_via=urllib.parse.quote, safe="-_.~"
    )
    empty = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{canonical}\nhost:{host}\n\nhost\n{empty}"
    scope = query["X-Amz-Credential"].partition("/")[2]
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def test_without_the_signer_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match=r"pip install 'coopstreams\[msk\]'"):
        Security.of({"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"})
