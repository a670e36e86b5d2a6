"""A check of facts about the cluster, and what happens with its findings.

A check is a pure function of facts that were gathered before. Its row in a table says
what it protects from, and whether a finding ends the start or is only logged. The table
in docs/reference/checks.md is made from the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coopstreams.topology.errors import CoopStreamsError

log = logging.getLogger(__name__)

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    """A check, as one row of a table."""

    protects_from: str
    """What would go wrong without the check, for the documentation."""
    find: Callable[[F], Iterable[str]]
    """Returns a sentence for each finding, with the cure."""
    error: type[CoopStreamsError] | None = None
    """The error that a finding raises; None: a finding is logged."""

    @property
    def code(self) -> str:
        """The name of the check in the documentation."""
        return self.find.__name__.replace("_", "-")


def judge(checks: Sequence[Check[F]], facts: F) -> None:
    """Run the checks in their order. Log the findings of a check that only warns.

    Raises:
        CoopStreamsError: the first check that ends the start has findings; the message
        has all of them.
    """
    for check in checks:
        found = list(check.find(facts))
        if found and check.error is not None:
            raise check.error("\n".join(found))
        for sentence in found:
            log.warning("%s", sentence)
