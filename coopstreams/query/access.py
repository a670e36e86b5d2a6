"""Access control of the HTTP interface: bearer tokens for two roles, and a check of the
header `Host` where no token is needed.

    read       the state: stores, keys, ranges, and where a key lies
    operate    status, metrics and the topology; pause and resume, which always need a token
    (none)     health, the description and the files of the page: probes carry no token, and the files no data. Health
               says the reasons in words to the role `operate` only: an error that they
               name may quote a record

A role may have several tokens, and each is accepted. Instances send each other all
tokens of a role. So a token is replaced without a refused request: first `old,new` on
one instance after the other, then `new`.

Invariant: with any token set, every path of the two roles needs one. Without any,
requests that change something are refused: a web page can make the browser send them to
an address on this host, but not with a token. A read by such a page is refused by its
`Host` (`host_names`).
Turned down: user names and groups (a proxy in front has them, and one token).
Source: RFC 6750.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from coopstreams.common.config import MOST_TOKENS
from coopstreams.query.certificates import Certificates, Files
from coopstreams.query.host_names import Hosts
from coopstreams.topology.errors import QueryError

Role: TypeAlias = Literal["read", "operate"]


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of a query server: the tokens of each role, its certificates,
    and the host names that it accepts.

    Shape: no tokens: no request needs one; `certificates` None: no TLS; `names`: the
    setting `http.allowed.hosts`; `hosts`: all accepted names, None: any name.
    """

    tokens: Mapping[Role, Sequence[str]] = field(default_factory=dict)
    certificates: Certificates | None = None
    names: Sequence[str] = ()
    hosts: Hosts | None = None

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Access:
        """Return the access control of the settings `http.token.*`, `http.ssl.*` and
        `http.allowed.hosts`.

        Raises:
            ConfigError: a file of `http.ssl.*` cannot be used.
        """
        read = settings["http.token.read"]
        operate = settings["http.token.operate"]
        tokens: Mapping[Role, Sequence[str]] = (
            {"read": read, "operate": operate or read} if read else {}
        )
        names = settings["http.allowed.hosts"] or ()
        if not settings["http.ssl.certificate.location"]:
            return Access(tokens, names=names)
        clients_show = settings["http.ssl.client.auth"] == "required"
        certificates = Certificates(Files.of(settings), clients_show=clients_show)
        return Access(tokens, certificates, names)

    def known_as(self, url: str) -> Access:
        """Return these rules for a server that announces this URL. If they need neither
        a token nor TLS, the result accepts only known host names.
        """
        if self.tokens or self.certificates is not None:
            return self
        return replace(self, hosts=Hosts.of(url, self.names))

    def check(
        self,
        role: Role | None,
        authorization: str | None,
        host: str | None,
        *,
        changes: bool = False,
    ) -> None:
        """Raise an error unless a request with these headers has the role.

        `changes`: the request changes the instance, so it always needs a token.

        Raises:
            QueryError: UNAUTHORIZED: no token, or an unknown one; FORBIDDEN: the token
                of the other role, or a change while no token is set; UNKNOWN_HOST: no
                token is set, and the name in `Host` may be a web page's.
        """
        if role is None:
            return
        if self.tokens:
            self._check_token(role, authorization)
        elif changes:
            raise _forbidden(
                "this path changes what the instance does, and the application has no tokens: set http.token.read "
                "and http.token.operate"
            )
        elif self.hosts is not None and not self.hosts.accepts(host):
            raise unknown_host(host or "")

    def _check_token(self, role: Role, authorization: str | None) -> None:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            named = "read" if self.tokens["operate"] == self.tokens["read"] else role
            raise unauthorized(
                f"this path needs the token http.token.{named} of the application"
            )
        # Each guess is compared with each token: a header of 64 KiB has 30,000 of them.
        if token.count(",") >= MOST_TOKENS:
            raise unauthorized(f"a request may show {MOST_TOKENS} tokens")
        given = [part.strip() for part in token.split(",")]
        if _in_common(given, self.tokens[role]):
            return
        if any(_in_common(given, tokens) for tokens in self.tokens.values()):
            raise _forbidden(
                f"this path needs the token http.token.{role}, not the other one"
            )
        raise unauthorized("the application does not know this token")

    def allows(
        self,
        role: Role,
        authorization: str | None,
        host: str | None,
    ) -> bool:
        """Return whether a request with these headers has the role."""
        try:
            self.check(role, authorization, host)
        except QueryError:
            return False
        return True

    def headers(self, path: str) -> dict[str, str]:
        """Return the headers that another instance requires for a request of the path."""
        role = role_of(path)
        return (
            {"authorization": f"Bearer {','.join(self.tokens[role])}"}
            if role is not None and self.tokens
            else {}
        )

    def exposed(self, host: str) -> str:
        """Return a warning of what a server that listens on this host exposes; empty:
        nothing.
        """
        if host == "::1" or host.startswith("127."):
            return ""
        if not self.tokens and not (
            self.certificates and self.certificates.clients_show
        ):
            return "anybody who reaches it can read the state: set http.token.read, or http.ssl.client.auth=required"
        if self.certificates is None:
            return "it is not encrypted, and tokens travel over it: set http.ssl.certificate.location"
        return ""


def role_of(path: str) -> Role | None:
    """Return the role that a path needs; None: it needs no token."""
    if path.startswith(("/v1/stores", "/v1/metadata")):
        return "read"
    return (
        "operate"
        if path in ("/v1/status", "/v1/topology", "/v1/pause", "/v1/resume", "/metrics")
        else None
    )


def _forbidden(message: str) -> QueryError:
    return QueryError("FORBIDDEN", message, status=403)


def unauthorized(message: str) -> QueryError:
    """Return the error for a request without a valid token."""
    return QueryError(
        "UNAUTHORIZED",
        f"{message}; send it as `Authorization: Bearer <TOKEN>`",
        status=401,
    )


def unknown_host(host: str) -> QueryError:
    """Return the error for a request that calls the server by a name that it does not
    know.
    """
    return QueryError(
        "UNKNOWN_HOST",
        f'"{host[:100]}" is no name of this instance that it knows, and a web page could have a name that points here '
        "(DNS rebinding). If the name is yours, add it to http.allowed.hosts; with http.token.read any name will do",
        status=403,
    )


def _in_common(given: Sequence[str], tokens: Sequence[str]) -> bool:
    """Return whether a given token is among the tokens, in constant time: the duration
    must not reveal how much of a guess is right.
    """
    return any(
        hmac.compare_digest(one.encode(), token.encode())
        for one in given
        for token in tokens
    )
