"""Parses times as people write them: ISO 8601 with a time zone, or milliseconds since
1970.
"""

from __future__ import annotations

from datetime import datetime

from coopstreams.topology.windows import FOREVER_MS

FORM = "a time as 2026-01-31T08:00Z, or in ms since 1970"


def moment_ms(text: str) -> int:
    """Return the time that a text means, in milliseconds since the epoch.

    Raises:
        ValueError: the text is no time, has no time zone, or is before 1970; the
            message says what to write.
    """
    if text.isascii() and text.isdecimal() and int(text[:20]) <= FOREVER_MS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]}: write {FORM}") from None
    if moment.tzinfo is None:
        time = moment.isoformat()
        raise ValueError(
            f"{text}: in which time zone? Write {time}Z for UTC, or an offset, as {time}+01:00"
        )
    time_ms = round(moment.timestamp() * 1000)
    if time_ms < 0:
        raise ValueError(f"{text}: it is before 1970; write {FORM}")
    return time_ms
