"""The messages between the two sides of a foreign-key join.

Each left row subscribes to the right row that its foreign key names. The subscription
goes through a topic to the partition of the foreign key; the answer returns through a
second topic to the partition of the left row's key. An answer carries the hash of the
left value that asked. If the left row has changed meanwhile, the hashes differ and the
answer is dropped as stale, so that answers in any order leave the right result.

Invariant: once all answers have come, each left row is joined with the right row that
it names now.

In a left join each change of a left row is answered. In an inner join it is answered
only if the answer could add or delete a result, as if all earlier answers had come. So
a stale answer of an inner join may be the only one that would have deleted a result:

- A stale answer without a right row deletes the result if the left row names no right
  row now. Otherwise the left row asks again (`again`), and is answered if its right row
  does not exist. Messages between the two sides keep their order, so the last answer of
  the right row that is named now counts.
- A stale answer with a right row needs nothing: the left row has asked since, and is
  answered if its right row exists.

Turned down: sending the left value along (like Kafka Streams, we do not write every
value to a topic twice); an answer to each change of an inner join (it would delete rows
that never existed); a store of the rows that wait for an answer.
Source: Kafka Streams KIP-213, `SubscriptionSendProcessorSupplier`,
`SubscriptionWrapper`, `SubscriptionResponseWrapper`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Literal, NamedTuple

from xxhash import xxh128_digest

from coopstreams.topology.serde import wrong_length
from coopstreams.topology.serdes import Serde
from coopstreams.topology.stores import Entry

Instruction = Literal[0, 1, 2, 3, 4]
UNSUBSCRIBE: Instruction = 0
"""Delete the subscription; do not answer."""
UNSUBSCRIBE_AND_ANSWER: Instruction = 1
ANSWER_IF_FOUND: Instruction = 2
ANSWER: Instruction = 3
"""Answer, even if the row does not exist."""
ANSWER_IF_MISSING: Instruction = 4
"""Answer if the right row does not exist. If it exists, an earlier subscription of the
left row is answered.
"""

_LENGTH = Struct(">i")
_HASH_BYTES = 16


class ForeignKeySubscription(NamedTuple):
    """The message of a left row to the right side. `hash` is that of the left value,
    None if the row is deleted.
    """

    instruction: int
    hash: bytes | None
    primary_key: bytes


class Answer(NamedTuple):
    """The answer of the right side: the subscription's hash, and the right value, None
    if there is no such row.
    """

    hash: bytes | None
    value: bytes | None


def hash_of(value: bytes | None) -> bytes | None:
    """Return a 16-byte hash of a value, None for None."""
    return None if value is None else xxh128_digest(value)


def questions(
    extract: Callable[[Any, Any], Any],
    serialize: Callable[[Any], bytes],
    left: bool,
    key: Any,
    primary_key: bytes,
    value: Any,
    data: bytes | None,
    old: Any,
) -> list[tuple[bytes | None, ForeignKeySubscription]]:
    """Return the subscriptions that a change of a left row from `old` to `value` sends,
    each with its foreign key.

    `data`: the serialised `value`. `left`: whether it is a left join, in which rows
    without a right row have a result too. There, each change needs an answer, and a row
    that names no foreign key sends its subscription to the foreign key None.
    """
    hash_ = hash_of(data)
    was = _foreign_key(extract, serialize, key, old)
    now = _foreign_key(extract, serialize, key, value)

    def ask(
        foreign_key: bytes | None,
        instruction: Instruction,
    ) -> tuple[bytes | None, ForeignKeySubscription]:
        return foreign_key, ForeignKeySubscription(instruction, hash_, primary_key)

    if left:
        if value is None and old is None:
            return []
        if was is None or was == now:
            return [ask(now, ANSWER)]
        return [ask(was, UNSUBSCRIBE), ask(now, ANSWER)]
    if now is None:
        return [] if was is None else [ask(was, UNSUBSCRIBE_AND_ANSWER)]
    if was is None or was == now:
        return [ask(now, ANSWER_IF_FOUND)]
    return [ask(was, UNSUBSCRIBE), ask(now, ANSWER)]


def _foreign_key(
    extract: Callable[[Any, Any], Any],
    serialize: Callable[[Any], bytes],
    key: Any,
    value: Any,
) -> bytes | None:
    """Return the foreign key that a left row names; None if the row is deleted or names
    none.
    """
    foreign_key = None if value is None else extract(key, value)
    return None if foreign_key is None else serialize(foreign_key)


def again(
    extract: Callable[[Any, Any], Any],
    serialize: Callable[[Any], bytes],
    key: Any,
    primary_key: bytes,
    value: Any,
    data: bytes | None,
) -> tuple[bytes, ForeignKeySubscription] | None:
    """Return the subscription that asks again for a left row as it is now, with its
    foreign key; None if the row is deleted or names no right row.

    `data`: the serialised `value`.
    """
    foreign_key = _foreign_key(extract, serialize, key, value)
    if foreign_key is None:
        return None
    asked = ForeignKeySubscription(ANSWER_IF_MISSING, hash_of(data), primary_key)
    return foreign_key, asked


def subscribe(
    subscribers: dict[bytes, bytes] | None,
    asked: ForeignKeySubscription,
) -> dict[bytes, bytes] | None:
    """Return the subscribers of a right row (primary key to hash) after a subscription;
    None if there are none left.
    """
    after = dict(subscribers or {})
    if asked.hash is None or asked.instruction in (UNSUBSCRIBE, UNSUBSCRIBE_AND_ANSWER):
        after.pop(asked.primary_key, None)
    else:
        after[asked.primary_key] = asked.hash
    return after or None


def subscribers_of(rows: Iterable[tuple[bytes, Entry]]) -> list[tuple[bytes, bytes]]:
    """Return the subscribers in some rows of the store, as pairs of primary key and
    hash, in the order of the primary keys.
    """
    return sorted(pair for _, entry in rows for pair in entry.value.items())


def answer_to(asked: ForeignKeySubscription, value: bytes | None) -> Answer | None:
    """Return the answer to a subscription; None if it asks for none. `value`: the right
    row's; None: there is no such row.
    """
    if asked.instruction == UNSUBSCRIBE:
        return None
    if asked.instruction == ANSWER_IF_FOUND and value is None:
        return None
    if asked.instruction == ANSWER_IF_MISSING and value is not None:
        return None
    return Answer(
        asked.hash,
        None if asked.instruction == UNSUBSCRIBE_AND_ANSWER else value,
    )


def is_current(
    hash_: bytes | None,
    data: bytes | None,
    stored: bytes | None,
) -> bool:
    """Return whether an answer with this hash belongs to the left row as it is now.

    `data`: the row, serialised. `stored`: its bytes in the store, if it is there. An
    earlier program, whose class had other fields, may have asked with the hash of the
    stored bytes. The row serialised again has another hash, so without `stored` each
    answer would be stale until the row changes.
    """
    return hash_of(data) == hash_ or (
        hash_ is not None and stored is not None and hash_of(stored) == hash_
    )


def _optional(data: bytes | None) -> bytes:
    return b"\0" if data is None else b"\1" + data


def _present(data: bytes) -> bool:
    """Return the flag in the first byte: whether a value follows."""
    if data[:1] not in (b"\0", b"\1"):
        raise ValueError(f"{data[:1]!r}, where a byte 0 or 1 is expected")
    return data[0] == 1


def _hash_and_rest(data: bytes) -> tuple[bytes | None, bytes]:
    if not _present(data):
        return None, data[1:]
    end = 1 + _HASH_BYTES
    if len(data) < end:
        raise wrong_length(_HASH_BYTES, len(data) - 1)
    return data[1:end], data[end:]


def _write_subscription(asked: ForeignKeySubscription) -> bytes:
    return bytes([asked.instruction]) + _optional(asked.hash) + asked.primary_key


def _read_subscription(data: bytes) -> ForeignKeySubscription:
    if not data or data[0] > ANSWER_IF_MISSING:
        raise ValueError(f"{data[:1]!r} is no instruction")
    return ForeignKeySubscription(data[0], *_hash_and_rest(data[1:]))


def _write_answer(answer: Answer) -> bytes:
    return _optional(answer.hash) + _optional(answer.value)


def _read_answer(data: bytes) -> Answer:
    hash_, rest = _hash_and_rest(data)
    return Answer(hash_, rest[1:] if _present(rest) else None)


def _write_subscribers(subscribers: dict[bytes, bytes]) -> bytes:
    return b"".join(
        _LENGTH.pack(len(key)) + key + hash_
        for key, hash_ in sorted(subscribers.items())
    )


def _read_subscribers(data: bytes) -> dict[bytes, bytes]:
    subscribers = {}
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        left = len(data) - at - _LENGTH.size - _HASH_BYTES
        if not 0 <= length <= left:
            raise wrong_length(length, left)
        key_end = at + _LENGTH.size + length
        key = data[at + _LENGTH.size : key_end]
        at = key_end + _HASH_BYTES
        subscribers[key] = data[key_end:at]
    return subscribers


SUBSCRIPTION: Serde[ForeignKeySubscription] = Serde(
    "subscription",
    _write_subscription,
    _read_subscription,
)
"""Writes a subscription: instruction (1 byte), whether there is a hash (1), hash (0 or
16), primary key.
"""

ANSWERS: Serde[Answer] = Serde("answer", _write_answer, _read_answer)
"""Writes an answer: whether there is a hash (1 byte), hash (0 or 16), whether there is
a value (1), value.
"""

SUBSCRIBERS: Serde[dict[bytes, bytes]] = Serde(
    "subscribers",
    _write_subscribers,
    _read_subscribers,
)
"""Writes the subscribers of a right row, in key order. For each: length (4 bytes
big-endian) and bytes of the primary key, hash (16).
"""
