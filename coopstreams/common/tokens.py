"""Tokens for OAUTHBEARER: their sources, and renewal for the group's client.

    callback    a user's function, `oauth_cb`: as librdkafka calls it
    oidc        OpenID Connect's client credentials grant: librdkafka has its own; this is for the group's client
    msk_iam     a request that is signed with the credentials of AWS (`pip install 'coopstreams[msk]'`)

Invariant: heartbeats never wait for an identity provider once there was a token: a
thread renews it before its end.
Source: RFC 6749 section 4.4; KIP-255 (tokens are renewed after four fifths of their
life); KIP-768.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import os
import re
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, cast

from coopstreams.topology.credentials import without_credentials
from coopstreams.topology.errors import ConfigError, CoopStreamsError

log = logging.getLogger(__name__)

Token = tuple[Any, ...]
"""Token, its end in seconds since 1970, and optionally the principal and a mapping of
SASL extensions.
"""
Fetch = Callable[[str], Token]
"""Returns a new token, as `oauth_cb` of librdkafka: its argument is
`sasl.oauthbearer.config`.
"""

FETCH_TIMEOUT_S = 10.0
RETRY_S = 5.0
"""Pause before a token is asked for again after a failure."""
RENEWED_AFTER = 0.8
"""Part of a token's life after which it is renewed."""
_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


class TokenError(CoopStreamsError):
    """There is no token: its source refused or did not answer."""


def callback(given: Any, config: str) -> Fetch:
    """Return a function that gets tokens from the user's function.

    `given`: the user's function, as itself or as `"module:function"`. `config`: its
    argument.

    Raises:
        ConfigError: the function cannot be imported, or is none.
    """
    function = given
    if isinstance(given, str):
        module, colon, name = given.partition(":")
        if not colon:
            raise ConfigError(f'oauth_cb = {given!r}: write "module:function"')
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"oauth_cb = {given!r}: {error}") from error
    if not callable(function):
        raise ConfigError(
            f'oauth_cb = {given!r}: must be a function, or "module:function"'
        )

    called = cast("Callable[[str], Token]", function)

    def fetch(_: str) -> Token:
        token = called(config)
        if (ended_s := time.time() - float(token[1])) > 0:
            raise TokenError(
                f"oauth_cb returned a token that has ended {ended_s:.0f} s ago"
            )
        return token

    return fetch


def oidc(settings: Mapping[str, Any]) -> Fetch:
    """Return a function that gets tokens by the client credentials grant; `settings` in
    librdkafka's names.
    """
    url = str(settings["sasl.oauthbearer.token.endpoint.url"])
    form = {"grant_type": "client_credentials"}
    if scope := settings.get("sasl.oauthbearer.scope"):
        form["scope"] = str(scope)
    identity = f"{settings['sasl.oauthbearer.client.id']}:{settings['sasl.oauthbearer.client.secret']}"
    head = {
        "Authorization": f"Basic {base64.b64encode(identity.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    pairs = str(settings.get("sasl.oauthbearer.extensions", "")).split(",")
    extensions = {
        name: value
        for name, _, value in (
            pair.strip().partition("=") for pair in pairs if pair.strip()
        )
    }
    authorities = settings.get("https.ca.location")
    context = (
        ssl.create_default_context(cafile=str(authorities)) if authorities else None
    )

    def fetch(_: str) -> Token:
        asked = urllib.request.Request(
            url,
            urllib.parse.urlencode(form).encode(),
            head,
            method="POST",
        )
        try:
            with urllib.request.urlopen(
                asked,
                timeout=FETCH_TIMEOUT_S,
                context=context,
            ) as response:
                answer = json.loads(response.read())
            token = str(answer["access_token"])
            return token, _end_of(token, answer.get("expires_in")), "", extensions
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The cause is left out: its traceback's variables have the request with the
            # secret.
            raise TokenError(
                f"no token from {without_credentials(url)}: {_reason(error)}"
            ) from None

    return fetch


def msk_iam(servers: str) -> Fetch:
    """Return a function that signs tokens for Amazon MSK; the region is in the brokers'
    names, or in `AWS_REGION`.

    Raises:
        ConfigError: the signer is not installed, or the region is not known.
    """
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise ConfigError(
            "sasl.mechanism AWS_MSK_IAM: pip install 'coopstreams[msk]'"
        ) from error
    found = _REGION.search(servers)
    region = (
        found[1]
        if found
        else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    )
    if not region:
        raise ConfigError(
            f"sasl.mechanism AWS_MSK_IAM: in which region is {servers}? Set AWS_REGION"
        )

    def fetch(_: str) -> Token:
        token, end_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return token, end_ms / 1000

    return fetch


class Tokens:
    """The current token from one source. A thread of its own renews it, from the first
    `current` until `close`. Thread-safe: a lock, and one reference that is replaced.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._token: Token | None = None
        self._problem = "no answer yet"
        self._asked = threading.Event()
        """Set after the first answer or failure."""
        self._closed = threading.Event()
        self._begun = False
        self._lock = threading.Lock()

    def current(self) -> Token:
        """Return the current token; wait for the first one.

        Raises:
            TokenError: there is no token that is still valid.
        """
        with self._lock:
            if not self._begun:  # a connection that is never made asks for no token
                self._begun = True
                threading.Thread(target=self._renew, name="tokens", daemon=True).start()
        self._asked.wait(FETCH_TIMEOUT_S)
        token = self._token
        if token is None or float(token[1]) <= time.time():
            raise TokenError(f"no token for OAUTHBEARER: {self._problem}")
        return token

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closed.set()

    def _renew(self) -> None:
        """Fetch a token, and each next one before its end, until `close`."""
        rest_s = 0.0
        while not self._closed.wait(rest_s):
            try:
                token = self._fetch("")
                if (left_s := float(token[1]) - time.time()) <= 0:
                    raise TokenError(
                        f"it ended {-left_s:.0f} s ago by the clock of this host"
                    )
                rest_s = max(RENEWED_AFTER * left_s, 0.1)
                self._token = token
            except Exception as error:  # noqa: BLE001 a user's function may raise anything, and is asked again
                self._problem = _reason(error)
                rest_s = RETRY_S
                log.warning(
                    "no new token for OAUTHBEARER, asking again in %g s: %s",
                    RETRY_S,
                    self._problem,
                )
            self._asked.set()


def _end_of(token: str, expires_in: Any) -> float:
    """Return the end of a token (seconds since 1970), from its own claim, or else from
    the provider's answer.
    """
    try:
        claims = token.split(".")[1]
        return float(
            json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))[
                "exp"
            ]
        )
    except (IndexError, ValueError, KeyError, TypeError):
        return time.time() + float(expires_in)


def _reason(error: Exception) -> str:
    """Return an error in words, with the reason that it carries."""
    reason = getattr(error, "reason", None)
    return (
        f"{error}"
        if reason is None or isinstance(reason, str)
        else f"{error} ({reason})"
    )
