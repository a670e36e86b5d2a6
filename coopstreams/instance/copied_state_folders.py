"""Finds members of the group whose state folder is a copy of that of this process, or
the other way round.

Transactional ids are made of the process id in the state folder. Under exactly-once two
processes with the same ids end each other's transactions for ever. Every member
announces its ids, so both processes see it.

Turned down: refusing one of the two (a process that was killed may be a member until
its session ends, and its successor would be refused), and a process id that depends on
the host or the disk (a volume may move to another host).
"""

from __future__ import annotations

from pathlib import Path

from coopstreams.group.members import Cluster


def twins(
    cluster: Cluster,
    process: str,
    folder: Path,
) -> list[str]:
    """Return a sentence for each other member that has a transactional id of this
    process.

    `process`: the name of this run. `folder`: its state folder.
    """
    infos = [member.info for member in cluster.members]
    mine = {
        name
        for info in infos
        if info.process == process
        for name in info.transactional_ids
    }
    return [
        f"process {info.process} on host {info.host} has the process id of this one, so each ends the transactions of "
        "the other: one state folder is a copy of the other. Stop one of them, delete the file process-id in its "
        f'folder (here "{folder}"), and start it again. If that process has died, the group removes it soon'
        for info in infos
        if info.process != process and not mine.isdisjoint(info.transactional_ids)
    ]
