"""Commits and JoinGroup keep out of each other's way.

A commit names a generation. When the group moves on in the middle of it, a rightful owner is refused and does its work again.
So whoever joins waits until nobody commits, and whoever commits waits while this member joins: both only for a while, because
neither a dead member that the group waits for nor a hanging commit may stop the other for long.

Invariant: this is courtesy, not safety. The broker checks every commit's generation; past the gate a refusal is only likelier.
"""

from __future__ import annotations

from coopstreams.common.host import SYSTEM, Host


class CommitGate:
    """Any number of commits, or one join."""

    def __init__(self, host: Host = SYSTEM) -> None:
        self._changed = host.condition()
        self._committing = 0
        self._joining = False

    def enter(self, patience_s: float) -> bool:
        """Begin a commit; return whether no join was in the way in the end. Every `enter` needs a `leave`."""
        with self._changed:
            clear = self._changed.wait_for(lambda: not self._joining, patience_s)
            self._committing += 1
            return clear

    def leave(self) -> None:
        """End a commit."""
        with self._changed:
            self._committing -= 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Let no new commits begin, as far as they are patient; return whether none is under way. Never waits."""
        with self._changed:
            self._joining = True
            return self._committing == 0

    def open(self) -> None:
        """The join is over."""
        with self._changed:
            self._joining = False
            self._changed.notify_all()
