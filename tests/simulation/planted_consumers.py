"""Planted bugs of consumers: see `planted`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from coopstreams.commit.inflight import InFlight
from coopstreams.commit.progress import CommitPlan
from coopstreams.commit.view import CommitView
from coopstreams.consumer.consumer_commit import CommitResult, Commits
from coopstreams.consumer.consumer_session import ConsumerSession
from coopstreams.consumer.owned_range import OwnedRange
from coopstreams.consumer.ownership import Ownership, Shared, Transaction


def done_before() -> AbstractContextManager[Any]:
    """Records that earlier owners committed beyond the position are handed out again."""
    return patch.object(InFlight, "_not_found", lambda *given: given[-1])


def no_way_back() -> AbstractContextManager[Any]:
    """Waiting records of a revoked key range are not read again when it is kept after
    all.
    """
    return patch.object(
        OwnedRange, "_forget_waiting", lambda self: self.waiting.clear()
    )


def what_is_held_is_passed() -> AbstractContextManager[Any]:
    """Of a key range whose records wait, the log is passed up to behind them."""
    take = OwnedRange.take

    def taken(self: OwnedRange, *given: Any, **named: Any) -> None:
        take(self, *given, **named)
        if self.waiting and self.held:
            self.inflight.hand_out((), (), self.taken)

    return patch.object(OwnedRange, "take", taken)


def no_fence() -> AbstractContextManager[Any]:
    """Commits are not fenced by the generation of the group."""

    def commit(
        _: Shared, writer: Transaction, plan: CommitPlan, epoch: int, timeout_s: float
    ) -> None:
        writer.commit(timeout_s)

    return patch.object(Shared, "commit", commit)


def commit_beside() -> AbstractContextManager[Any]:
    """The progress of a user's transaction is committed before it, in one of its own."""

    def commit_in(
        self: Commits,
        transaction: Transaction,
        owned_ranges: Sequence[OwnedRange],
        ownership: Ownership,
        metadata: Any,
    ) -> CommitResult:
        done = self.commit(owned_ranges, ownership, metadata)
        transaction.commit(self._timeout_s)
        return done

    return patch.object(Commits, "commit_in", commit_in)


def results_first() -> AbstractContextManager[Any]:
    """The results of a user's transaction are committed before its progress."""

    def commit_in(
        self: Commits,
        transaction: Transaction,
        owned_ranges: Sequence[OwnedRange],
        ownership: Ownership,
        metadata: Any,
    ) -> CommitResult:
        transaction.commit(self._timeout_s)
        return self.commit(owned_ranges, ownership, metadata)

    return patch.object(Commits, "commit_in", commit_in)


def abort_that_keeps() -> AbstractContextManager[Any]:
    """Records of an aborted transaction are not handed out again."""
    return patch.object(ConsumerSession, "reopen", lambda _: None)


def positions_of_any_topic() -> AbstractContextManager[Any]:
    """Commits in a topic that was deleted count in the one that has its name."""
    return patch.multiple(
        CommitView,
        _is_other=lambda *_: False,
        of_this_topic=lambda _, __, committed: committed,
    )


def nobody_looks() -> AbstractContextManager[Any]:
    """A consumer goes on at its positions when a topic is made anew."""
    return patch.object(ConsumerSession, "_lose_remade", lambda *_: False)
