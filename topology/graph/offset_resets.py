"""The offset reset: where a source begins if the group has no position in it. It is
`reset=` of the source, else `auto.offset.reset`.

    earliest               at the first record that the topic still has
    latest                 behind the last record
    by_duration:PT1H       at the first record that is not older than this, by the clock when the source begins

Invariant: a reset has one form, so equal meanings are equal texts.
Source: Kafka KIP-1106; `java.time.Duration.parse` for durations.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from coopstreams.topology.durations import checked_ms
from coopstreams.topology.errors import TopologyError

OffsetReset: TypeAlias = Literal["earliest", "latest"] | timedelta | str
"""The argument `reset=`: a word, a duration before the start of the source, or
`by_duration:` and ISO 8601.
"""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_BY_DURATION = "by_duration:"
_ISO = re.compile(
    r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,3}))?S)?)?",
    re.IGNORECASE,
)


def parse_reset(value: object) -> str:
    """Return a reset, given as text, in its normal form.

    Raises:
        ValueError: the text is no reset; the message lists the valid forms.
    """
    if value in (EARLIEST, LATEST):
        return str(value)
    ms = (
        _milliseconds(value.removeprefix(_BY_DURATION))
        if isinstance(value, str)
        else None
    )
    if not isinstance(value, str) or not value.startswith(_BY_DURATION) or ms is None:
        raise ValueError(
            "earliest, latest, or by_duration: and a duration in ISO 8601, such as by_duration:PT1H30M"
        )
    return _by_duration(ms)


def reset_of(value: OffsetReset | None, where: str) -> str | None:
    """Return the argument `reset=` in its normal form; None if it is None.

    Raises:
        TopologyError: the argument is no reset.
    """
    if value is None:
        return None
    if isinstance(value, timedelta):
        return _by_duration(checked_ms(value, f"{where}: reset"))
    try:
        return parse_reset(value)
    except ValueError as error:
        raise TopologyError(
            f"{where}: reset={value!r} must be a timedelta, {error}"
        ) from None


def duration_ms_of(reset: str) -> int | None:
    """Return how many milliseconds before the present a reset begins; None if it has no
    duration.
    """
    return (
        _milliseconds(reset.removeprefix(_BY_DURATION))
        if reset.startswith(_BY_DURATION)
        else None
    )


def _by_duration(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return f"{_BY_DURATION}PT{seconds}{f'.{rest:03}' if rest else ''}S"


def _milliseconds(text: str) -> int | None:
    found = _ISO.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + int(
        (found[5] or "").ljust(3, "0")
    )
