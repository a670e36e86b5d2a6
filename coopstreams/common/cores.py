"""Counts the processor cores that this process may use: those of the machine, of its
affinity, or its share in a container.

Invariant: at least one; a file that cannot be read limits nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Return how many cores the process may use; a quota of one and a half counts as
    two.

    Source: Linux, cgroup-v2.rst (`cpu.max`) and sched-bwc.rst (version 1).
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return min([cores, *(max(1, math.ceil(share)) for share in _quotas(root))])


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quota, in cores, of each control group that the process is in."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, path = line.split(":", 2)[1:]
        if controllers and "cpu" not in controllers.split(","):
            continue
        files = (
            ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        )
        top = root / "sys/fs/cgroup" / controllers
        group = top / path.lstrip("/")
        for folder in (
            group,
            *group.parents,
        ):  # a container sees its own group as the top one, whatever the path says
            words = [word for name in files for word in _text(folder / name).split()]
            if len(words) == 2 and words[0].isdigit():  # "max", -1: no limit
                yield int(words[0]) / int(words[1])
            if folder == top:
                break


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
