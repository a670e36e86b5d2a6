"""Which records the replays of a dead-letter topic have written: what each leaves
beside its position, for the next.

A record may have two letters, and goes back once: a replay leaves out what it has
written. If it is interrupted between the two, and where they lie in two partitions, the
next one must know as well. So the metadata of the group's offset of each partition says
what the replays wanted that have passed its letters:

    [[node, phase, begin], ...]     from this offset on, up to the next entry's: letters of this node and phase

The next replay reads these letters again. `coopstreams group reset` leaves no metadata:
from there on, all is written again.

Turned down: the records themselves in the metadata (a broker takes 4 KiB, and two
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
"""The latest turns that are kept."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The letters that a replay writes: of a node, and of a phase; None: of any."""

    node: str | None = None
    phase: str | None = None

    def fits(self, why: Mapping[str, str]) -> bool:
        """Return whether a letter with this reason is wanted."""
        return self.node in (None, why.get("node")) and self.phase in (
            None,
            why.get("phase"),
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """What replays wanted from an offset on."""

    wanted: Wanted
    begin: int


def turns_of(metadata: str) -> tuple[Turn, ...]:
    """Return the turns in the metadata of an offset, ascending; none, if no replay
    wrote it.
    """
    with suppress(ValueError, TypeError):
        return tuple(
            Turn(Wanted(node, phase), int(begin))
            for node, phase, begin in json.loads(metadata or "[]")
        )
    return ()


def metadata_of(turns: tuple[Turn, ...]) -> str:
    """Return the metadata with these turns."""
    return json.dumps(
        [[turn.wanted.node, turn.wanted.phase, turn.begin] for turn in turns],
        separators=(",", ":"),
    )


def continued(passed: OffsetAndRanges | None, wanted: Wanted) -> tuple[Turn, ...]:
    """Return the turns that count when a replay goes on at a position: a new one, if
    the last wanted other letters.
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
    """Return whether a replay has passed the letter with this key and offset."""
    (hash_,) = key_hashes([key], [offset])
    return any(
        one.has_done(offset) for one in passed.key_ranges if hash_ in one.key_range
    )


def was_wanted(
    turns: tuple[Turn, ...],
    offset: int,
    why: Mapping[str, str],
) -> bool:
    """Return whether the replay that passed a letter wrote its record."""
    latest = next((turn for turn in reversed(turns) if turn.begin <= offset), None)
    return latest is not None and latest.wanted.fits(why)
