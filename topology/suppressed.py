"""When a table's updates are let go: `until_window_closes()`, `until_time_limit(timedelta(minutes=5))`.

Source: Kafka Streams `Suppressed` (KIP-328).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import msgspec

from coopstreams.topology.columns import Headers
from coopstreams.topology.serdes import Serde
from coopstreams.topology.windows import checked_ms


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What `KTable.suppress` is to wait for. Made by the functions below.

    Units: `wait_ms` None: until the window closes.
    """

    wait_ms: int | None
    max_records: int | None = None


def until_window_closes() -> Suppressed:
    """Forward each window once, when it is closed: end + grace <= stream time. For windowed tables; deletions are not forwarded."""
    return Suppressed(None)


def until_time_limit(limit: timedelta | int, *, max_records: int | None = None) -> Suppressed:
    """Forward the latest update of a row when `limit` has passed in stream time since the first that was held.

    `max_records`: rows held at most, in each task; with more, the earliest go at once.
    """
    if max_records is not None:
        checked_ms(max_records, "until_time_limit: max_records", 1)
    return Suppressed(checked_ms(limit, "until_time_limit: the limit"), max_records)


class Held(NamedTuple):
    """An update that waits.

    Shape: `place` is the time by which it waits; `before` what was forwarded of the row before, None if that was nothing or nobody asks.
    """

    place: int
    timestamp: int
    value: bytes | None
    before: bytes | None
    headers: Headers | None


_decode = msgspec.msgpack.Decoder(Held).decode

held: Serde[Held] = Serde("held", msgspec.msgpack.Encoder().encode, _decode)
"""MessagePack."""
