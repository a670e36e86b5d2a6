"""The cache folder of downloads, and a lock that keeps two processes from writing the
same download.

Invariant: a file or folder under its final name is complete. It is made under another
name, with the lock held, and renamed. `dev/jars.py` keeps to that, and so do the examples
and the tests that download something. `dev/broker.py` takes only the lock, for its folder.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder; it need not exist yet.

    Shape: `COOPSTREAMS_CACHE`, else `XDG_CACHE_HOME`/coopstreams, else
    ~/.cache/coopstreams.
    """
    if own := os.environ.get("COOPSTREAMS_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "coopstreams"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` (made if missing); wait for it without
    limit.

    The kernel releases it when the process dies, so a lock is never stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
