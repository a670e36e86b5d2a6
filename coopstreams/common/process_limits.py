"""Sets the memory and open-file limits of a process whose job is to run a topology.

A store keeps hundreds of thousands of small objects alive. The garbage collector should
not traverse them every few milliseconds, and the allocator should not return their
pages as often. A database keeps up to 256 files open, and a process may have a hundred
databases: systems give it 1024 files unless it asks for more.

Turned down: doing this on import (a library must not change the process that imports
it).
"""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
"""Source: glibc `malloc.h`."""


OPEN_FILES = 1 << 16
"""How many files a process may have open, if the system allows it."""


def allow_open_files() -> None:
    """Raise this process's limit of open files to `OPEN_FILES`, or to what the system
    allows. Never lower it.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if resource.RLIM_INFINITY != now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def tune_memory() -> None:
    """Make garbage collections rarer, and keep freed memory.

    That saves a third of the time of a keyed count, and most of a JSON encoder's
    (measured).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    with suppress(OSError, AttributeError):  # another C library: nothing to set
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
        mallopt(_M_TOP_PAD, 16 << 20)
