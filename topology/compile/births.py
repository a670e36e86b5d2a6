"""Writes and reads the births of records in timed topics as headers: see
`timed_topics`.

    __coopstreams.birth    8 bytes, big-endian: milliseconds since the epoch

A record whose birth is its timestamp, as in a partition in order, does not have this
header. The header is the last one, and it is removed before a program gets the record.

Relies on: `log.batches` (takes the header off), `outputs` (puts it on).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from coopstreams.topology.columns import Headers, Int64s
from coopstreams.topology.errors import LogError

HEADER = "__coopstreams.birth"
VERSION = 1
"""The version of a birth. The header of a later version begins with the name of this
one.
"""
_TIME = Struct(">q")


def with_births(
    headers: Sequence[Headers | None] | None,
    births: Sequence[int],
    timestamps: Sequence[int],
) -> Sequence[Headers | None] | None:
    """Return a column of headers, with a birth header for each record whose birth is
    not its timestamp. None: no record has a header.

    `births`: empty if the topic is not timed.
    """
    if not births or births == timestamps:
        return headers
    return [
        given if birth == timestamp else [*(given or ()), (HEADER, _TIME.pack(birth))]
        for given, birth, timestamp in zip(
            headers or [None] * len(births),
            births,
            timestamps,
            strict=True,
        )
    ]


def check_version(name: str, known: str) -> None:
    """Check that a header of a timed topic is of the version that this release knows.

    Raises:
        LogError: the name is not `known`: a later version has the number behind it.
    """
    if name != known:
        raise LogError(
            f'a record of a timed topic has the header "{name}", and this release of coopstreams reads "{known}": a '
            "newer release has processed records. Use that one"
        )


def births_in(
    headers: Sequence[Headers | None] | None,
    timestamps: Int64s,
) -> tuple[list[int] | None, list[Headers | None] | None]:
    """Return the births of records, and their headers without the birth headers. None
    in place of the births means that each birth is the timestamp.

    Raises:
        LogError: a birth is of a later version.
    """
    if headers is None:
        return None, None
    births = list(timestamps)
    left: list[Headers | None] = list(headers)
    found = False
    for at, given in enumerate(headers):
        if not given:
            continue
        name, birth = given[-1]
        if name != HEADER:
            # The usual name is compared once: this is done for each record.
            if name.startswith(HEADER):
                check_version(name, HEADER)
            continue
        if birth is not None and len(birth) == _TIME.size:
            found = True
            births[at] = _TIME.unpack(birth)[0]
            left[at] = given[:-1] or None
    return (births if found else None), (left if any(left) else None)
