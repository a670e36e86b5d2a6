"""Selects the rows of a task's stores that are written to their changelogs, and makes
the changelog records.

Relies on: `state.layout` (the bytes, and what has expired).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coopstreams.log.log import NO_STREAM_TIME
from coopstreams.state import layout
from coopstreams.state.checkpoints import NOTHING_OBSERVED
from coopstreams.state.database import Database
from coopstreams.state.engine import Rows
from coopstreams.state.table import Table
from coopstreams.state.window_table import VersionTable
from coopstreams.topology.errors import LogError
from coopstreams.topology.keys import KeyRange
from coopstreams.topology.stores import StoreSpec

KEPT_FOR_EVER = -(1 << 63)
"""The earliest timestamp of a changelog without a retention. Records without a
timestamp have -1.
"""


def horizon_of(table: Table) -> int | None:
    """Return the earliest time of the windows or versions in a table that have not
    expired; None if no row can have expired.
    """
    if isinstance(table, VersionTable):
        return table.old_ms + 1
    spec = table.spec
    observed = table.observed
    return (
        layout.horizon(spec, observed)
        if spec.kind in layout.SEGMENTED and observed != NOTHING_OBSERVED
        else None
    )


def visible(
    database: Database,
    spec: StoreSpec,
    key_range: KeyRange,
    horizon: int | None,
) -> Rows:
    """Yield the store keys of a range with their rows, in order, without rows from
    before the horizon.
    """
    for key, row in database.scan(
        spec.name,
        layout.groups_of(key_range).numbers,
        None,
        None,
    ):
        if horizon is None or layout.time_of(spec.kind, key) >= horizon:
            yield key, row


@dataclass(frozen=True, slots=True)
class Expiry:
    """The rule that leaves rows of a window store out of its changelog, if the brokers
    would delete them and the application does not need them.

    A store follows the time of the records that reach its operator. Below a filter, or
    in a partition of few records, that may be weeks behind: the store still has rows
    that the brokers would delete from its changelog at once. Those of them that have
    expired by the time that the run has reached are left out: no new record finds them.
    """

    oldest_ms: int = KEPT_FOR_EVER
    """The earliest timestamp that the changelog keeps."""
    reached_ms: int = NO_STREAM_TIME
    """The latest stream time that the run has reached, as far as a task knows."""

    def kept(
        self,
        spec: StoreSpec,
        rows: Rows,
        expired: Counter[str],
    ) -> Rows:
        """Yield the rows that the changelog gets; count the other rows in `expired`, by
        store.
        """
        horizon = self._horizon(spec)
        for key, row in rows:
            old = layout.unpack(row)[1] < self.oldest_ms
            if old and layout.time_of(spec.kind, key) < horizon:
                expired[spec.name] += 1
            else:
                yield key, row

    def _horizon(self, spec: StoreSpec) -> int:
        """Return the earliest time of the rows that have not expired by the time of the
        run.
        """
        if spec.kind not in layout.SEGMENTED:
            return KEPT_FOR_EVER
        return layout.horizon_at(spec, self.reached_ms)


def record_of(
    spec: StoreSpec,
    key: bytes,
    row: bytes,
    oldest_ms: int,
    changelog: str,
) -> tuple[bytes, bytes, int]:
    """Return key, value and timestamp of the changelog record of a row.

    `oldest_ms`: the earliest timestamp that the changelog keeps.

    Raises:
        LogError: the row is older, and the broker would delete it at once.
    """
    value, timestamp = layout.unpack(row)
    if timestamp < oldest_ms:
        raise LogError(
            f'the changelog of "{spec.name}" would lose what is written to it: the broker deletes records from before '
            f"{oldest_ms} there, and one is of {timestamp}, which has not expired: its partition has no record that is "
            f"newer by the store's retention. Set retention.ms=-1 of {changelog} and resume the run."
        )
    return layout.changelog_key(spec.kind, key), value, timestamp
