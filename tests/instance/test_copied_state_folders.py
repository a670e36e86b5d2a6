"""Members of the group that have the process id of this one."""

from __future__ import annotations

from pathlib import Path

from coopstreams.group.members import Cluster, Member, MemberInfo
from coopstreams.instance.copied_state_folders import twins


def member(process: str, host: str, *ids: str) -> Member:
    return Member(f"m-{process}", MemberInfo(process, host, transactional_ids=ids), ())


def test_each_of_two_members_with_one_process_id_names_the_other_and_the_cure() -> None:
    alone = member("b-1", "east", "app-b-0")
    cluster = Cluster(
        (
            member("a-1", "east", "app-a-0", "app-a-1"),
            member("a-2", "west", "app-a-0"),
            alone,
        )
    )
    (of_first,), (of_second,) = (
        twins(cluster, process, Path("/state/app/instance-0"))
        for process in ("a-1", "a-2")
    )
    assert "process a-2 on host west" in of_first
    assert "process a-1 on host east" in of_second
    assert (
        'delete the file process-id in its folder (here "/state/app/instance-0")'
        in of_first
    )
    assert twins(cluster, "b-1", Path()) == []


def test_members_without_transactions_do_not_disturb_each_other() -> None:
    assert (
        twins(Cluster((member("a-1", "east"), member("a-2", "west"))), "a-1", Path())
        == []
    )
