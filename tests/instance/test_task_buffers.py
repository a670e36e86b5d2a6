"""The write buffers and record caches of a process keep to
`statestore.cache.max.bytes`.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coopstreams.common.config import Config
from coopstreams.group.assignor import assign
from coopstreams.group.members import MemberInfo, MemberState
from coopstreams.instance.components import task_buffer_bytes

MOST = 8 << 30  # a task gets a megabyte in any case


@settings(max_examples=40, deadline=None)
@given(
    partitions=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    threads=st.integers(1, 64),
    ranges=st.integers(1, 16),
    others=st.lists(st.integers(1, 64), max_size=3),
)
def test_the_tasks_of_a_process_together_keep_to_the_setting_also_if_they_share_a_partition(
    partitions: list[int], threads: int, ranges: int, others: list[int]
) -> None:
    config = Config(
        {
            "application.id": "app",
            "bootstrap.servers": "",
            "num.stream.threads": threads,
            "ranges.per.partition": ranges,
            "statestore.cache.max.bytes": MOST,
        }
    )
    members = {
        f"process-{number}": MemberState(
            MemberInfo(f"process-{number}", threads=of_member)
        )
        for number, of_member in enumerate([threads, *others])
    }
    tasks = assign(dict(enumerate(partitions)), members, ranges=ranges)[
        "process-0"
    ].target
    assert len(tasks) * task_buffer_bytes(config, partitions) <= MOST
