"""`coopstreams query`: a query by key, by time or by range from the command line."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from coopstreams.commands.http_access import AskingFile, asking
from coopstreams.common.extra import need_http
from coopstreams.common.moments import moment_ms
from coopstreams.query.problems import elsewhere
from coopstreams.topology.errors import QueryError

if TYPE_CHECKING:
    from coopstreams.query.client_requests import EntryFound


def query(  # noqa: C901, PLR0913
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
            metavar="TEXT", help="Only entries whose key has this prefix; without KEY."
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="The most entries, windows or sessions to print."
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
            metavar="TIME", help="The row of a versioned store as of this time."
        ),
    ] = None,
    config: AskingFile = None,
) -> None:
    """Print the value of a key, its windows or sessions, or the entries of a store: a
    line of JSON each.

    Of a versioned store the latest value, what it was with --as-of, or all versions of
    a time with --from and --to. A time is written as 2026-01-31T08:00Z, or in ms since
    1970. Without KEY, --from and --to are keys.

    While a task moves it asks again, for 30 seconds at most. Exit status 1: the
    key has no value, which standard error says, or the query failed.
    """
    need_http("coopstreams query")
    from coopstreams.query.client_requests import LATEST_MS

    timed = first is not None or last is not None
    if as_of is not None and (timed or key is None):
        raise _bad(
            "--as-of is one moment of one key: give it with KEY, and without --from and --to"
        )
    with asking(url, config, "read", 30) as client:
        stores = {known["name"]: known for known in client.stores()}
        if store not in stores:
            raise QueryError(
                "UNKNOWN_STORE",
                f"there is no store {store}; there are {', '.join(sorted(stores)) or 'none'}",
                status=404,
            )
        if key is None:
            first_key, last_key = (
                None if bound is None else _key(bound, stores[store]["key"])
                for bound in (first, last)
            )
            entries = client.range(
                store,
                first_key,
                last_key,
                prefix=prefix,
                reverse=reverse,
                page=min(limit + 1, 1000),
            )
            for entry in islice(entries, limit):
                _print(_shown(entry))
            if next(entries, None) is not None:
                typer.echo(
                    f"there are more entries than {limit}: --limit prints more; --prefix, --from and --to fewer",
                    err=True,
                )
            return
        kind = stores[store]["kind"]
        wanted = _key(key, stores[store]["key"])
        times = (
            0 if first is None else _time("--from", first),
            LATEST_MS if last is None else _time("--to", last),
        )
        found: list[Any]
        if as_of is not None:
            found = [client.as_of(store, wanted, _time("--as-of", as_of))]
        elif kind == "window":
            found = [*client.windows(store, wanted, *times, limit=limit + 1)]
        elif kind == "session":
            found = [*client.sessions(store, wanted, *times, limit=limit + 1)]
        else:
            found = (
                [*client.versions(store, wanted, *times)]
                if timed
                else [client.get(store, wanted)]
            )
        for one in found[:limit]:
            if one is not None:
                _print(asdict(one))
        if kind in ("window", "session") and len(found) > limit:
            typer.echo(
                f"there are more {kind}s than {limit}: --limit prints more, --from and --to fewer",
                err=True,
            )
        if not any(found):
            what = (
                f"no {kind}s of"
                if kind in ("window", "session")
                else "no versions of"
                if timed
                else "no"
            )
            when = (
                f" as of {as_of}"
                if as_of is not None
                else " of these times"
                if timed
                else ""
            )
            where = elsewhere(stores[store].get("misplaced", ()))
            typer.echo(f'store {store} has {what} key "{key}"{when}{where}', err=True)
            raise typer.Exit(1)


def _shown(entry: EntryFound) -> dict[str, Any]:
    """Return an entry as an answer over HTTP has it."""
    shown = asdict(entry)
    if entry.key_error is None:
        del shown["key_error"]
    del shown["window"]
    if entry.window is not None:
        start, end = entry.window
        shown["window"] = {"start": start, "end": end}
    return shown


def _key(text: str, serde: str) -> Any:
    """Return the key in the client's form: one that is given as JSON as its value,
    others as text.
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
