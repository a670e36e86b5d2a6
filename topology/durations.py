"""Converts durations (a `timedelta`, or 0) to milliseconds.

Windows accept their length in units as well: `TimeWindows(hours=1)`. Internally,
durations are whole milliseconds, in names that end in `_ms`.

Invariant: no number without a unit except 0. Turned down: plain numbers as
milliseconds, as in Kafka's settings: the reader of `grace=30` cannot tell the unit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import (
    Literal,
    TypeAlias,
    TypedDict,
    Unpack,
)

from coopstreams.topology.errors import TopologyError

Duration: TypeAlias = timedelta | Literal[0]

_MILLISECOND = timedelta(milliseconds=1)


class Units(TypedDict, total=False):
    """A length of time as the sum of units: `hours=1, minutes=30`."""

    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float


def duration_ms(duration: Duration, what: str) -> int:
    """Return a duration in milliseconds.

    Raises:
        TopologyError: a number without a unit, an object that is not a duration, or a
            fraction of a millisecond. The message calls the argument `what`.
    """
    if isinstance(duration, timedelta):
        if duration % _MILLISECOND:
            raise TopologyError(
                f"{what} is {duration}: nothing finer than a millisecond exists in Kafka. Round it."
            )
        return duration // _MILLISECOND
    if type(duration) is int and duration == 0:  # False == 0, but is not a duration
        return 0
    if type(duration) in (int, float):
        raise TopologyError(
            f"{what} is {duration}, a number without a unit. Write timedelta(milliseconds={duration}), "
            "timedelta(seconds=...), ..."
        )
    raise TopologyError(
        f"{what} must be a timedelta such as timedelta(minutes=5), not {duration!r}"
    )


def checked_ms(
    duration: Duration,
    what: str,
    least: int = 0,
) -> int:
    """Return a duration in milliseconds, checked to be at least `least`.

    Raises:
        TopologyError: the duration is below `least`, or is not a duration. The message
            calls the argument `what`.
    """
    ms = duration_ms(duration, what)
    if ms < least:
        raise TopologyError(
            f"{what} must be at least {least} ms, not {ms} ms"
            if least
            else f"{what} must not be negative, it is {ms} ms"
        )
    return ms


def length_ms(
    windows: str,
    what: str,
    length: Duration | None,
    least: int = 0,
    **units: Unpack[Units],
) -> int:
    """Return the length of windows in milliseconds, given as a duration or in units,
    checked to be at least `least`.

    Raises:
        TopologyError: neither or both are given, an unknown unit, an object that is not
            a duration, or a length below `least`. The message names the class `windows`
            and its argument `what`.
    """
    words = ", ".join(f"{unit}=" for unit in Units.__annotations__)
    if unknown := units.keys() - Units.__annotations__.keys():
        raise TopologyError(
            f"{windows} takes no {min(unknown)}=: give the {what} in {words}"
        )
    if (length is None) != bool(units):
        raise TopologyError(
            f"{windows}: give the {what} either in {words} as in {windows}(minutes=5), or as {what}=timedelta(...)"
        )
    return checked_ms(
        timedelta(**units) if length is None else length,
        f"{windows}: the {what}",
        least,
    )
