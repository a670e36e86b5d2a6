"""Accepts the addresses under which members of the group say that they answer queries.

Whoever may join the group is a member, and this instance sends its tokens to the
address that a member announces: members are trusted with them. What can be seen of an
address is checked once, here.

Invariant: an instance that has certificates sends nothing in clear text.
"""

from __future__ import annotations

from coopstreams.common.setting_values import reachable
from coopstreams.query.backend import Peer
from coopstreams.topology.credentials import without_credentials
from coopstreams.topology.task_id import TaskId

_LONGEST = 2000
"""The most characters of an address: paths follow."""


def peer_of(
    id_: str, announced: str | None, tasks: tuple[TaskId, ...], *, https: bool
) -> Peer:
    """Return a member; without its address if it may not be asked there, and with the
    reason.

    `https`: this instance has certificates.
    """
    if announced is None:
        return Peer(id_, None, tasks)
    if problem := _problem(announced, https):
        shown = without_credentials(announced[:100])
        return Peer(id_, None, tasks, f'is not asked at "{shown}": {problem}')
    return Peer(id_, announced.rstrip("/"), tasks)


def _problem(address: str, https: bool) -> str:
    """Return why nothing is sent to an address; empty: it is accepted."""
    if https and address.startswith("http://"):
        return (
            "this instance has certificates, and would send its token there in clear text. Give all instances "
            "http.ssl.certificate.location"
        )
    try:
        reachable(address)
        right = address.startswith(("http://", "https://")) and address.isprintable()
    except ValueError:
        right = False
    return "" if right and len(address) <= _LONGEST else "it is no URL of a server"
