"""The filter of a consumer, which drops records by key and by size.

A dropped record counts as done for the whole group: the committed position passes it,
and no member receives it. All members of a group must therefore use the same filter.

Source: the proposal's outlook on broker-side filtering: key ranges, blacklisted and
whitelisted keys, largest and smallest record size.
"""

from __future__ import annotations

from dataclasses import dataclass

from coopstreams.topology.columns import Columns


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """The conditions on a record. A record passes if it meets all that are set.

    Units: the size of a record is that of its key and value, in bytes.
    """

    allow_keys: frozenset[bytes] | None = None
    """The only keys that pass; None: all keys."""
    deny_keys: frozenset[bytes] = frozenset()
    min_record_bytes: int = 0
    max_record_bytes: int | None = None

    def passes(self, key: bytes | None, value: bytes | None) -> bool:
        """Return whether a record with this key and value passes."""
        if (
            self.allow_keys is not None and key not in self.allow_keys
        ) or key in self.deny_keys:
            return False
        size = len(key or b"") + len(value or b"")
        return size >= self.min_record_bytes and (
            self.max_record_bytes is None or size <= self.max_record_bytes
        )

    def columns(self, columns: Columns) -> Columns:
        """Return those of the records that pass."""
        return columns.pick(
            [
                i
                for i, record in enumerate(
                    zip(columns.keys, columns.values, strict=True)
                )
                if self.passes(*record)
            ]
        )
