"""How many cores a process may use, in control groups as Linux shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coopstreams.common.cores import available_cores

HERE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, HERE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, HERE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/cpu.max": "99900000 100000\n",
            },
            HERE,
        ),
        (
            {
                "proc/self/cgroup": "0::/system.slice/my app.service\n",
                "sys/fs/cgroup/system.slice/my app.service/cpu.max": "max 100000\n",
                "sys/fs/cgroup/system.slice/cpu.max": "100000 100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:cpu,cpuacct:/docker/of-the-host\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            HERE,
        ),
    ],
)
def test_it_is_the_smallest_share_of_the_groups_above_but_one_at_least(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == expected


def test_affinity_limits_it() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
