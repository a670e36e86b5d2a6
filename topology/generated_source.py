"""Runs source code that was generated. It is registered in `linecache`, so tracebacks and
debuggers show it.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Mapping
from typing import Any


def executed(
    title: str,
    text: str,
    constants: Mapping[str, object],
) -> dict[str, Any]:
    """Return the names of the source, which was run as a module of its own.

    `title`: what tracebacks call it. `constants`: the objects that it names.
    """
    # The hash in the file name keeps different code apart: a traceback must show the
    # code that ran.
    filename = f"<coopstreams {title} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    linecache.cache[filename] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        filename,
    )
    names: dict[str, Any] = {"__name__": "coopstreams.generated", **constants}
    exec(
        compile(text, filename, "exec"),
        names,
    )  # the text is ours: user functions are constants in it, and names are quoted
    return names
