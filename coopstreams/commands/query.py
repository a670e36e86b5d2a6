"""`coopstreams query`: prints the result of a query by key, by time or by range.

Relies on: `query.client`, `http_access`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from coopstreams.commands.http_access import AskingFile, asking
from coopstreams.common.optional_packages import need_http
from coopstreams.common.time_parsing import moment_ms
from coopstreams.query.problems import elsewhere
from coopstreams.topology.errors import QueryError

if TYPE_CHECKING:
    from coopstreams.query.client import QueryClient
    from coopstreams.query.client_requests import EntryFound


def query(  # noqa: PLR0913
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="http://HOST:PORT of any instance of the application; it asks the owner.",
        ),
    ],
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store to ask.")],
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="The key as text; one of JSON, Avro or Protobuf as JSON; one with a minus sign in front behind `--`. "
            "Without one: the entries of the store.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Only entries whose key has this prefix; without KEY.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="The most entries, windows or sessions to print.",
        ),
    ] = 100,
    first: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME|KEY",
            help="Windows, sessions or versions from this time on; without KEY: entries from this key on.",
        ),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME|KEY",
            help="Windows, sessions or versions up to this time; without KEY: entries up to this key, with it.",
        ),
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="The last entries first; without KEY.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The row of a versioned store as of this time.",
        ),
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="MS",
            help="If the owner does not answer, a standby may whose rows were up to date so long ago; not for versions.",
            show_default=False,
        ),
    ] = None,
    config: AskingFile = None,
) -> None:
    """Print the value of a key, its windows or sessions, or the entries of a store: a
    line of JSON each.

    For a versioned store: the latest value of a key; with --as-of its value at that
    time; with --from and --to all versions in that time. A time is written as
    2026-01-31T08:00Z, or in ms since 1970. Without KEY, --from and --to are keys.

    While a task moves the query is repeated, for 30 seconds at most. Exit status 1: the
    key has no value, which standard error says, or the query failed.
    """
    need_http("coopstreams query")
    timed = first is not None or last is not None
    if as_of is not None and (timed or key is None):
        raise _bad(
            "--as-of is one moment of one key: give it with KEY, and without --from and --to"
        )
    with asking(url, config, "read", 30) as client:
        asked = _store(client, store)
        if key is not None:
            times = _Times(first, last, as_of)
            _print_rows(client, asked, key, times, limit, max_staleness)
            return
        first_key = None if first is None else _key(first, asked["key"])
        last_key = None if last is None else _key(last, asked["key"])
        entries = client.range(
            store,
            first_key,
            last_key,
            prefix=prefix,
            reverse=reverse,
            page=min(limit + 1, 1000),
            max_staleness_ms=max_staleness,
        )
        for entry in islice(entries, limit):
            _print(_shown(entry))
        if next(entries, None) is not None:
            typer.echo(
                f"there are more entries than {limit}: --limit prints more; --prefix, --from and --to fewer",
                err=True,
            )


@dataclass(frozen=True, slots=True)
class _Times:
    """The values of --from, --to and --as-of, as they were typed."""

    first: str | None
    last: str | None
    as_of: str | None

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """The times of --from and --to in ms, inclusive, with their defaults."""
        from coopstreams.query.client_requests import LATEST_MS

        first_ms = 0 if self.first is None else _time("--from", self.first)
        last_ms = LATEST_MS if self.last is None else _time("--to", self.last)
        return first_ms, last_ms

    @property
    def are_given(self) -> bool:
        """Whether --from or --to was typed."""
        return self.first is not None or self.last is not None

    def __str__(self) -> str:
        """Return how a message describes the times after a key."""
        if self.as_of is not None:
            return f" as of {self.as_of}"
        return " of these times" if self.are_given else ""


def _store(client: QueryClient, name: str) -> dict[str, Any]:
    """Return the description of a store in the answer of `/v1/stores`."""
    stores = {known["name"]: known for known in client.stores()}
    if name not in stores:
        raise QueryError(
            "UNKNOWN_STORE",
            f"there is no store {name}; there are {', '.join(sorted(stores)) or 'none'}",
            status=404,
        )
    return stores[name]


def _print_rows(
    client: QueryClient,
    store: Mapping[str, Any],
    key: str,
    times: _Times,
    limit: int,
    max_staleness: int | None,
) -> None:
    """Print the value of a key, or its windows, sessions or versions.

    Raises:
        Exit: the key has none; standard error says so.
    """
    kind = store["kind"]
    found = _rows(client, store, _key(key, store["key"]), times, limit, max_staleness)
    for one in found[:limit]:
        if one is not None:
            _print(asdict(one))
    in_windows = kind in ("window", "session")
    if in_windows and len(found) > limit:
        typer.echo(
            f"there are more {kind}s than {limit}: --limit prints more, --from and --to fewer",
            err=True,
        )
    if any(found):
        return
    none = "no versions of" if times.are_given else "no"
    if in_windows:
        none = f"no {kind}s of"
    where = elsewhere(store.get("misplaced", ()))
    typer.echo(f'store {store["name"]} has {none} key "{key}"{times}{where}', err=True)
    raise typer.Exit(1)


def _rows(
    client: QueryClient,
    store: Mapping[str, Any],
    key: Any,
    times: _Times,
    limit: int,
    max_staleness: int | None,
) -> list[Any]:
    """Return the value of a key, or its windows, sessions or versions. If there are
    more windows or sessions than `limit`, return one more than `limit`.
    """
    name = store["name"]
    bounds_ms = times.bounds_ms
    in_windows = store["kind"] in ("window", "session")
    versions = times.as_of is not None or (times.are_given and not in_windows)
    if versions and max_staleness is not None:
        raise _bad("--max-staleness: only the owner of a key knows its versions")
    if times.as_of is not None:
        return [client.as_of(name, key, _time("--as-of", times.as_of))]
    if in_windows:
        ask = client.windows if store["kind"] == "window" else client.sessions
        return [*ask(name, key, *bounds_ms, limit + 1, max_staleness_ms=max_staleness)]
    if times.are_given:
        return [*client.versions(name, key, *bounds_ms)]
    return [client.get(name, key, max_staleness_ms=max_staleness)]


def _shown(entry: EntryFound) -> dict[str, Any]:
    """Return an entry in the form of an answer over HTTP."""
    shown = asdict(entry)
    if entry.key_error is None:
        del shown["key_error"]
    del shown["window"]
    if entry.window is not None:
        start, end = entry.window
        shown["window"] = {"start": start, "end": end}
    return shown


def _key(text: str, serde: str) -> Any:
    """Return a typed key as the client takes it: decoded, if the serde's keys are given
    as JSON, else as text.
    """
    from coopstreams.query.client_requests import AS_JSON

    if not serde.startswith(AS_JSON):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise QueryError(
            "BAD_KEY",
            f"the keys of this store are {serde}, and {text} is no JSON ({error}): a text is written '\"{text}\"'",
            status=400,
        ) from error


def _time(option: str, text: str) -> int:
    """Return the time that an option gives, in ms since 1970."""
    try:
        return moment_ms(text)
    except ValueError as error:
        raise _bad(f"{option} {error}") from None


def _bad(message: str) -> QueryError:
    return QueryError("BAD_PARAMETER", message, status=400)


def _print(entry: dict[str, Any]) -> None:
    typer.echo(orjson.dumps(entry, default=str).decode())
