"""Defines the options of `suppress`, which decide when it emits a table's updates:
`until_window_closes()`, or `until_time_limit(timedelta(minutes=5))`.

Source: Kafka Streams `Suppressed` (KIP-328).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import msgspec

from coopstreams.topology.columns import Headers
from coopstreams.topology.durations import Duration, checked_ms
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.serdes import Serde

WhenFull = Literal["emit_early", "shut_down"]


@dataclass(frozen=True, slots=True)
class Suppressed:
    """The options of `KTable.suppress`: how long it holds updates, and how many. Made
    by the functions below.

    Units: `wait_ms` None: until the window closes. `max_records` and `max_bytes` limit
    the updates that each task holds; None: no limit.
    """

    wait_ms: int | None
    max_records: int | None = None
    max_bytes: int | None = None
    when_full: WhenFull = "emit_early"


def until_window_closes(
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> Suppressed:
    """Return the option to forward each window once, when it is closed: end + grace <=
    stream time.

    For windowed tables. Deletions are not forwarded. `max_records` and `max_bytes` (of
    keys and values) limit the updates that each task holds. Above them the application
    stops.
    """
    return _suppressed(None, max_records, max_bytes, "shut_down", "until_window_closes")


def until_time_limit(
    limit: Duration,
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
    when_full: WhenFull = "emit_early",
) -> Suppressed:
    """Return the option to forward the latest update of a row when `limit` has passed,
    in stream time, since the row's first held update.

    `max_records` and `max_bytes` (of keys and values) limit the updates that each task
    holds. Above them the earliest updates are forwarded at once (`emit_early`), or the
    application stops (`shut_down`).
    """
    return _suppressed(
        checked_ms(limit, "until_time_limit: the limit"),
        max_records,
        max_bytes,
        when_full,
        "until_time_limit",
    )


def _suppressed(
    wait_ms: int | None,
    max_records: int | None,
    max_bytes: int | None,
    when_full: WhenFull,
    where: str,
) -> Suppressed:
    for what, most in (("max_records", max_records), ("max_bytes", max_bytes)):
        if most is not None and (type(most) is not int or most < 1):
            raise TopologyError(
                f"{where}: {what} must be a whole number from 1 on, not {most!r}"
            )
    if when_full not in get_args(WhenFull):
        raise TopologyError(
            f"{where}: when_full must be one of {', '.join(get_args(WhenFull))}, not {when_full!r}"
        )
    return Suppressed(wait_ms, max_records, max_bytes, when_full)


class SuppressedUpdate(NamedTuple):
    """An update that `suppress` holds in its buffer.

    Shape: `place` is the time by which the buffer is ordered. `before` is the value
    that was forwarded last for the row; None if no value was forwarded, or if no
    operator below needs old values.
    """

    place: int
    timestamp: int
    value: bytes | None
    before: bytes | None
    headers: Headers | None


_decode = msgspec.msgpack.Decoder(SuppressedUpdate).decode

held: Serde[SuppressedUpdate] = Serde("held", msgspec.msgpack.Encoder().encode, _decode)
"""The serde of held updates: MessagePack."""
