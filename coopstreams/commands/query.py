"""`coopstreams query`: a point, window or range query from the command line."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import orjson
import typer

from coopstreams.topology.errors import QueryError


def query(
    url: Annotated[str, typer.Argument(metavar="URL", help="http://HOST:PORT of any instance of the application; it asks the owner.")],
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store to ask.")],
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="The key as text; a JSON key as JSON. Without one: the entries of the store.", show_default=False),
    ] = None,
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Only entries whose key begins so; without KEY.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many entries or windows.")] = 100,
) -> None:
    """Print the value of a key, its windows in a window store, or the entries of a store: a line of JSON each.

    While a task moves it asks again, for 30 seconds at most. Exit status 1: the key has no value, or the query failed.
    """
    from coopstreams.query.client import QueryClient  # needs the `http` extra, which other commands do not

    with QueryClient(url) as client:
        if key is None:
            for entry in islice(client.range(store, prefix=prefix, page=min(limit, 1000)), limit):
                _print(asdict(entry))
            return
        stores = {known["name"]: known for known in client.stores()}
        if store not in stores:
            raise QueryError("UNKNOWN_STORE", f"there is no store {store}; there are {', '.join(sorted(stores))}", status=404)
        wanted = _key(key, stores[store]["key"])
        found: list[Any] = list(client.windows(store, wanted, limit=limit)) if stores[store]["kind"] == "window" else [client.get(store, wanted)]
        for one in found:
            if one is not None:
                _print(asdict(one))
        if not any(found):
            raise typer.Exit(1)


def _key(text: str, serde: str) -> Any:
    """Return the key as the client takes it: a JSON key as the value, others as the text."""
    if not serde.startswith("json"):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise QueryError(
            "BAD_KEY", f"the keys of this store are {serde}, and {text} is no JSON ({error}): a text is written '\"{text}\"'", status=400
        ) from error


def _print(entry: dict[str, Any]) -> None:
    typer.echo(orjson.dumps(entry, default=str).decode())
