"""The rows of a task's stores that belong into their changelogs, and their changelog records."""

from __future__ import annotations

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
"""The earliest timestamp of a changelog without a retention. Records without a timestamp have -1."""


def horizon_of(table: Table) -> int | None:
    """Return the first time of the rows that have not expired: of windows and of versions; None: none has."""
    if isinstance(table, VersionTable):
        return table.old_ms + 1
    spec, observed = table.spec, table.observed
    return (
        layout.horizon(spec, observed)
        if spec.kind in layout.SEGMENTED and observed != NOTHING_OBSERVED
        else None
    )


def visible(
    database: Database, spec: StoreSpec, key_range: KeyRange, horizon: int | None
) -> Rows:
    """Yield the store keys of a range with their rows, in order, without those from before the horizon."""
    for key, row in database.scan(
        spec.name, layout.groups_of(key_range).numbers, None, None
    ):
        if horizon is None or layout.time_of(spec.kind, key) >= horizon:
            yield key, row


def record_of(
    spec: StoreSpec, key: bytes, row: bytes, oldest_ms: int, changelog: str
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
            f"{oldest_ms} there, "
            f"and one is of {timestamp}. Raise retention.ms of {changelog} and resume the run; or give the store a "
            "longer retention=, and begin anew."
        )
    return layout.changelog_key(spec.kind, key), value, timestamp
