"""Which records the earlier replays of a dead-letter topic have written, as the
metadata of the replay group's offsets.

A record may have two letters, and is written back once: a replay leaves out the records
that it has written. If it is interrupted between the two letters, or if they are in two
partitions, the next replay must know these records as well. So the metadata of each
partition's offset says which letters the earlier replays wanted:

    [[node, phase, begin], ...]     from this offset on, up to the next entry's: letters of this node and phase

The next replay reads these letters again. `coopstreams group reset` leaves no metadata:
after it, a replay writes all letters again.

Turned down: the records themselves in the metadata (a broker accepts 4 KiB, and two
letters may be far apart).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from coopstreams.commit.group_progress import OffsetAndRanges
from coopstreams.topology.keys import key_hashes

MOST_TURNS = 8
"""How many of the latest filters are kept."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of the letters that a replay writes: those of one node, of one phase, or
    of both. None: any.
    """

    node: str | None = None
    phase: str | None = None

    def fits(self, why: Mapping[str, str]) -> bool:
        """Return whether a letter with these error headers is wanted."""
        return self.node in (None, why.get("node")) and self.phase in (
            None,
            why.get("phase"),
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One filter in the history of a dead-letter topic's replays: the filter, and the
    first offset to which it applied.
    """

    wanted: Wanted
    begin: int


def turns_of(metadata: str) -> tuple[Turn, ...]:
    """Return the filters in the metadata of an offset, by ascending offset; empty: no
    replay wrote it.
    """
    with suppress(ValueError, TypeError):
        return tuple(
            Turn(Wanted(node, phase), int(begin))
            for node, phase, begin in json.loads(metadata or "[]")
        )
    return ()


def metadata_of(turns: tuple[Turn, ...]) -> str:
    """Return the metadata that encodes these filters."""
    return json.dumps(
        [[turn.wanted.node, turn.wanted.phase, turn.begin] for turn in turns],
        separators=(",", ":"),
    )


def continued(passed: OffsetAndRanges | None, wanted: Wanted) -> tuple[Turn, ...]:
    """Return the filters for a replay that begins at the position `passed`. `wanted` is
    added if the last replay had another filter.
    """
    turns = () if passed is None else turns_of(passed.metadata)
    if turns and turns[-1].wanted == wanted:
        return turns
    return (*turns, Turn(wanted, 0 if passed is None else passed.offset))[-MOST_TURNS:]


def is_passed(
    passed: OffsetAndRanges,
    key: bytes | None,
    offset: int,
) -> bool:
    """Return whether the position `passed` covers the letter with this key and offset."""
    (hash_,) = key_hashes([key], [offset])
    return any(
        one.has_done(offset) for one in passed.key_ranges if hash_ in one.key_range
    )


def was_wanted(
    turns: tuple[Turn, ...],
    offset: int,
    why: Mapping[str, str],
) -> bool:
    """Return whether the replay that passed a letter wrote its record. `why`: the
    letter's error headers.
    """
    latest = next((turn for turn in reversed(turns) if turn.begin <= offset), None)
    return latest is not None and latest.wanted.fits(why)
