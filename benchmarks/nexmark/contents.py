"""What a topic holds in the end, in a form in which two runs can be compared.

Invariant: two contents are equal if and only if the runs have the same results: of a
stream the same records in any order, of a table the same last value of each key.
JSON is compared as a value, bytes of keys as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import Enum
from hashlib import blake2b

import orjson
from confluent_kafka import Consumer, TopicPartition

Record = tuple[bytes | None, bytes | None]
Contents = dict[bytes, object]
"""Of a table, the value of each key; of a stream, the number of its records and the sum
of their digests.
"""

WINDOW_START_BYTES = 8


class Kind(Enum):
    """What the outputs of a query are."""

    STREAM = "a stream"
    TABLE = "a table, whose values are JSON"
    NUMBERS = "a table of numbers"
    SUMS = "a table of numbers by window, of which the sums of each key count"


def contents(kind: Kind, records: Iterable[Record]) -> Contents:
    """Return what these records say in the end."""
    if kind is Kind.STREAM:
        return _of_stream(records)
    last: dict[bytes, bytes] = {}
    for key, value in records:
        assert key is not None
        if value is None:
            last.pop(key, None)
        else:
            last[key] = value
    if kind is Kind.TABLE:
        return {key: orjson.loads(value) for key, value in last.items()}
    if kind is Kind.NUMBERS:
        return {**last}
    sums: Counter[bytes] = Counter()
    for key, value in last.items():
        sums[key[:-WINDOW_START_BYTES]] += int.from_bytes(value, signed=True)
    return {**sums}


def _of_stream(records: Iterable[Record]) -> Contents:
    found: dict[bytes, tuple[int, int]] = {}
    for key, value in records:
        count, digests = found.get(key or b"", (0, 0))
        found[key or b""] = count + 1, digests + _digest(value)
    return {**found}


def _digest(value: bytes | None) -> int:
    """Return the same number for the same JSON, however it is written."""
    if value is None:
        return 0
    text = orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
    return int.from_bytes(blake2b(text, digest_size=16).digest())


def read(bootstrap: str, topic: str) -> Iterator[Record]:
    """Yield the records of partition 0 of a topic, up to its end at the call."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench-reads",
        "enable.auto.commit": False,
        "enable.partition.eof": False,
    }
    with closing(Consumer(settings)) as consumer:
        where = TopicPartition(topic, 0, 0)
        end = consumer.get_watermark_offsets(where, timeout=30)[1]
        consumer.assign([where])
        at = 0
        while at < end:
            for message in consumer.consume(10_000, 1.0):
                assert message.error() is None, message.error()
                yield message.key(), message.value()
                offset = message.offset()
                assert offset is not None
                at = offset + 1


def difference(one: Contents, other: Contents, at_most: int = 5) -> list[str]:
    """Return lines that say what differs, none if nothing does."""
    lines = [f"{len(one)} and {len(other)} keys"] if len(one) != len(other) else []
    different = [
        key for key in sorted({*one, *other}) if one.get(key) != other.get(key)
    ]
    lines += [
        f"{key!r}: {one.get(key)!r} and {other.get(key)!r}"
        for key in different[:at_most]
    ]
    return lines
