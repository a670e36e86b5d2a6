"""The files of the page that an instance shows to people at `/`: HTML, style and
modules, as they are in `page/`.

They hold no data: the page asks for it with the token that a person types in. So they
are open, as a form to log in is.

Invariant: a browser loads nothing from any other host, runs no script that is not one
of these files, and sends no form, frame or referrer anywhere. Turned down: a bundler
and a framework (a build step, and megabytes that somebody has to keep up to date).
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from coopstreams.query.problems import unknown_path

INDEX = "index.html"
_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Revalidated each time, by its tag: an upgraded instance shows its own page.
    "cache-control": "no-cache",
}


def asset(request: Request) -> Response:
    """Return the file of a request, or 304 if the browser has it.

    Raises:
        QueryError: UNKNOWN_PATH.
    """
    name = request.path_params.get("file", INDEX)
    found = _files().get(name)
    if found is None:
        raise unknown_path(f"the page has no file {name}")
    body, tag = found
    headers = _HEADERS | {"etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Return the bytes and the tag of each file."""
    found = {}
    for file in (files("coopstreams.query") / "page").iterdir():
        body = file.read_bytes()
        found[file.name] = (body, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found
