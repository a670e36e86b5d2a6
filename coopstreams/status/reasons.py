"""Why an instance, or a task of it, is not well."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

HealthCode: TypeAlias = Literal[
    "no-progress",
    "slow",
    "slow-function",
    "calls-pause",
    "share-group",
    "paused",
    "not-a-member",
    "unreadable-commit",
    "another-version",
    "same-process-id",
    "not-shared",
    "partitioner",
    "records-dropped",
    "waiting",
    "restoring",
    "closing",
    "changelog-made-anew",
    "more-partitions",
    "asking-the-group",
    "resting",
    "unreachable",
]
"""The code of a reason: one with another code does not pass the type check."""
HEALTH_CODES: tuple[HealthCode, ...] = tuple(
    code for code in get_args(HealthCode) if code != "unreachable"
)
"""The codes that an instance gives itself; each is a series from the start."""


class Reason(msgspec.Struct, frozen=True):
    """Why an instance, or a task of it, is not well."""

    code: HealthCode
    message: str
    task: str | None = None


class Health(msgspec.Struct, frozen=True):
    """`live`: it makes progress, or waits for a known reason. `ready`: it is a member
    of the group, with all its tasks open.
    """

    live: bool
    ready: bool
    reasons: tuple[Reason, ...] = ()
