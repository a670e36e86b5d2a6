"""Parses and checks the parameters of a request.

Invariant: a text that is not UTF-8 after percent-decoding is refused. Frameworks
replace the invalid bytes by U+FFFD, which makes another key: a wrong "not found".
Turned down: ignoring unknown parameters (`?form=` instead of `?from=` would return
everything).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from coopstreams.common.name_suggestions import did_you_mean
from coopstreams.common.time_parsing import moment_ms
from coopstreams.query.backend import StoreInfo
from coopstreams.query.formats import parse_key, parse_prefix
from coopstreams.query.paths import STALE
from coopstreams.query.problems import bad_request, unknown_path
from coopstreams.query.range_pages import QUERIES, Query, cursor_of
from coopstreams.query.router import Asked
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.stores import check_range

FAR = (1 << 63) - 1
"""The largest timestamp."""

RANGE_PARAMETERS = (
    "from",
    "to",
    "prefix",
    "reverse",
    "limit",
    "cursor",
    "local",
    STALE,
)

What: TypeAlias = Literal["keys", "windows", "sessions", "versions"]
"""What a request asks for about a key, as in its path."""

_OF_A_KEY: Mapping[What, Sequence[str]] = {
    "keys": ("local", STALE),
    "windows": ("from", "to", "limit", "local", STALE),
    "sessions": ("from", "to", "limit", "local", STALE),
    "versions": ("as_of", "from", "to", "limit", "local"),
}
"""The query parameters that a request for a key may have."""

Times: TypeAlias = tuple[int, int]
"""The first and the last moment (ms) of a request, both inclusive."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a request. Units: entries, keys, seconds."""

    entries: int = 1000
    """The most entries in an answer, if the request sets no limit."""
    max_entries: int = 100_000
    max_keys: int = 1000
    request_s: float = 10.0
    """The time limit of an answer; a slower request gets TIMED_OUT."""
    forward_s: float = 3.0
    """The longest wait for the owner of a key."""
    connect_s: float = 1.0
    """The longest wait for a connection to another instance."""
    retry_s: float = 2.0
    """How long TASK_MOVING is retried before the client gets it."""
    cpu_share: float | None = None
    """The share of a core that queries may take while records wait; None: no bound."""
    connections: int = 512
    """The most open connections."""
    ask_s: float = 10.0
    """The longest a client may take from the first byte of a request to its end."""
    idle_s: float = 75.0
    """How long a connection may be idle after an answer.

    Longer than clients and load balancers keep one (httpx 5 s, usually 60 s): otherwise
    they may send a request on a connection that is just being closed, and get no
    answer.
    """
    read_s: float = 30.0
    """The longest a client may go without reading an answer that waits for it."""
    streams: int = 16
    """The most streams of the status at a time."""
    stream_every_s: float = 1.0
    """The time between two events of an event stream."""

    @property
    def read_part_s(self) -> float:
        """The time limit for reading an instance's part of a range. It is below
        `ask_part_s`, because the error of the read says what to do.
        """
        return 0.7 * self.request_s

    @property
    def ask_part_s(self) -> float:
        """The longest wait for another instance's part of a range. It is below
        `request_s`, because its error names the instance.
        """
        return 0.85 * self.request_s


class Parameters:
    """The parsed query string of a request. Only known names are allowed, each once;
    the name `many` may be repeated.

    Raises:
        QueryError: BAD_PARAMETER: an unknown name (the message suggests the nearest), a
            name given twice, or bytes that are not UTF-8.
    """

    def __init__(
        self,
        query_string: bytes,
        known: Sequence[str],
        many: str | None = None,
    ) -> None:
        self.many: list[str] = []
        self._values: dict[str, str] = {}
        try:
            pairs = parse_qsl(
                query_string.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
            )
        except (UnicodeDecodeError, ValueError) as error:
            raise bad_request(
                "BAD_PARAMETER",
                f"the query string is not UTF-8 with percent signs: {error}. Give bytes as base64:...",
            ) from error
        for name, value in pairs:
            if name == many:
                self.many.append(value)
            elif name not in known:
                near = did_you_mean(name, [*known, *([many] if many else [])])
                raise bad_request("BAD_PARAMETER", f'unknown parameter "{name}"{near}')
            elif name in self._values:
                raise bad_request("BAD_PARAMETER", f'parameter "{name}" is given twice')
            else:
                self._values[name] = value

    def text(self, name: str) -> str | None:
        """Return a parameter as it was sent; None if the request does not have it."""
        return self._values.get(name)

    def flag(self, name: str) -> bool:
        """Return a boolean parameter; without it, false."""
        value = self._values.get(name, "false").lower()
        if value not in ("true", "false"):
            raise bad_request(
                "BAD_PARAMETER",
                f'{name}={value}: give "true" or "false"',
            )
        return value == "true"

    def number(
        self,
        name: str,
        default: int,
        low: int,
        high: int,
    ) -> int:
        """Return a whole number from `low` to `high`, both inclusive; `default` if it
        is not given.
        """
        text = self._values.get(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if (
            not (digits.isascii() and digits.isdigit())
            or len(digits) > 19
            or not low <= int(text) <= high
        ):
            raise bad_request(
                "BAD_PARAMETER",
                f"{name}={text[:40]}: give a whole number from {low} to {high}",
            )
        return int(text)

    def moment(self, name: str, default: int) -> int:
        """Return a time in ms, given as ISO 8601 or in milliseconds since 1970;
        `default` if it is not given.
        """
        text = self._values.get(name)
        if text is None:
            return default
        try:
            return moment_ms(text.replace(" ", "+"))  # a plus sign of a URL is a space
        except ValueError as error:
            raise bad_request("BAD_PARAMETER", f"{name}={error}") from None


class KeyQuery(NamedTuple):
    """A query for one key or for the values of several keys, which are still texts.

    Shape: `asked`: whether the request may be forwarded to another instance. `many`:
    the answer is a list, even if the request names one key; `times` (first and last,
    ms) and `limit` apply to windows, sessions and versions only.
    """

    what: What
    store: StoreInfo
    texts: Sequence[str]
    asked: Asked
    many: bool = False
    times: Times = (0, FAR)
    limit: int = 0
    max_staleness_ms: int | None = None
    """How old the rows of a standby may be that answers for the owner; None: only the
    owner answers.
    """

    @property
    def suffix(self) -> str:
        """The query string with which the request is forwarded to the owner of the key."""
        if self.what == "keys":
            return ""
        first, last = self.times
        return f"?from={first}&to={last}&limit={self.limit}"

    @property
    def stale_suffix(self) -> str:
        """The query string with which the request is forwarded to a standby."""
        more = f"{STALE}={self.max_staleness_ms}"
        return f"{self.suffix}&{more}" if self.suffix else f"?{more}"


def key_query(
    what: What,
    store: StoreInfo,
    path: bytes,
    query: bytes,
    limits: RequestLimits,
    *,
    forwarded: bool,
) -> KeyQuery:
    """Return the query of a request for one key: /v1/stores/{store}/{what}/{key}.

    Raises:
        QueryError: BAD_KEY | BAD_PARAMETER | UNKNOWN_PATH.
    """
    texts = [path_piece(path, 5)]
    parameters = Parameters(query, _OF_A_KEY[what])
    if what == "keys":
        asked = how_asked(parameters, forwarded=forwarded)
        stale_ms = staleness_of(parameters)
        return KeyQuery(what, store, texts, asked, max_staleness_ms=stale_ms)
    times = times_of(parameters)
    limit = limit_of(parameters, limits)
    asked = how_asked(parameters, forwarded=forwarded)
    stale_ms = staleness_of(parameters)
    return KeyQuery(
        what,
        store,
        texts,
        asked,
        times=times,
        limit=limit,
        max_staleness_ms=stale_ms,
    )


def keys_query(
    store: StoreInfo,
    query: bytes,
    *,
    forwarded: bool,
) -> KeyQuery:
    """Return the query of a request for several keys.

    Raises:
        QueryError: BAD_PARAMETER.
    """
    parameters = Parameters(query, ("local", STALE), many="key")
    asked = how_asked(parameters, forwarded=forwarded)
    return KeyQuery(
        "keys",
        store,
        parameters.many,
        asked,
        many=True,
        max_staleness_ms=staleness_of(parameters),
    )


def path_piece(raw_path: bytes, number: int) -> str:
    """Return the rest of a path after its `number`-th slash, as text; the rest may have
    slashes.

    Raises:
        QueryError: BAD_KEY: the rest is not UTF-8; UNKNOWN_PATH: too few slashes, or a
            percent-encoded slash before the rest: it separates nothing.
    """
    *before, rest = raw_path.split(b"/", number)
    if len(before) < number or (
        b"%" in raw_path and any(b"%2f" in piece.lower() for piece in before)
    ):
        raise unknown_path(
            f"{raw_path.decode('latin-1')} has a slash before the key that is percent-encoded"
        )
    try:
        return unquote_to_bytes(rest).decode()
    except UnicodeDecodeError as error:
        raise bad_request(
            "BAD_KEY",
            f"the key in the path is not UTF-8 ({error}): give bytes as base64:...",
        ) from error


def how_asked(parameters: Parameters, *, forwarded: bool) -> Asked:
    """Return whether the request may be forwarded, must be answered here, or was
    forwarded.
    """
    if forwarded:
        return "forwarded"
    return "local" if parameters.flag("local") else "any"


def range_query(
    store: StoreInfo,
    parameters: Parameters,
    limit: int,
) -> Query:
    """Return the query of a range request.

    Raises:
        QueryError: BAD_KEY | BAD_PARAMETER.
    """
    first, last, prefix, cursor = (
        parameters.text(name) for name in ("from", "to", "prefix", "cursor")
    )
    query = Query(
        first=None if first is None else parse_key(store.key, first),
        last=None if last is None else parse_key(store.key, last),
        prefix=None if prefix is None else parse_prefix(store.key, prefix),
        reverse=parameters.flag("reverse"),
        limit=limit,
        after=None if cursor is None else cursor_of(cursor),
        max_staleness_ms=staleness_of(parameters),
    )
    try:
        check_range(query.first, query.last, f'from="{first}"', f'to="{last}"')
    except ValueError as error:
        raise bad_request("BAD_PARAMETER", str(error)) from error
    return query


def unpacked(text: str | None) -> Query:
    """Return the range query that another instance has packed into its request.

    Raises:
        QueryError: BAD_PARAMETER.
    """
    try:
        query = QUERIES.decode(bytes.fromhex(text or ""))
        for _, first, last in query.standing:
            KeyRange(first, last)  # one that cannot be is a ValueError
        return query
    except (ValueError, msgspec.MsgspecError) as error:
        raise bad_request(
            "BAD_PARAMETER",
            f"a forwarded range request without its query: {error}",
        ) from error


def times_of(parameters: Parameters) -> Times:
    """Return the first and the last moment of a request; with `as_of`, one moment."""
    if parameters.text("as_of") is None:
        first = parameters.moment("from", 0)
        last = parameters.moment("to", FAR)
        if first > last:
            raise bad_request("BAD_PARAMETER", f"from={first} is later than to={last}")
        return first, last
    if parameters.text("from") is not None or parameters.text("to") is not None:
        raise bad_request(
            "BAD_PARAMETER",
            "as_of= is one moment, from= and to= are a span of time: give one or the other",
        )
    moment = parameters.moment("as_of", 0)
    return moment, moment


def staleness_of(parameters: Parameters) -> int | None:
    """Return how old the rows of a standby may be (ms); None: only owners may answer."""
    if parameters.text(STALE) is None:
        return None
    return parameters.number(STALE, 0, 0, FAR)


def limit_of(parameters: Parameters, limits: RequestLimits) -> int:
    """Return the most entries that a request asks for."""
    return parameters.number(
        "limit",
        min(limits.entries, limits.max_entries),
        1,
        limits.max_entries,
    )
