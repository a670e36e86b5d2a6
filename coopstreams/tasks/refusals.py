"""Predicts which records a broker will refuse, and why, once it has refused one.

Kafka refuses whole batches, and its client reports the same error for each record: it
names neither the bad record nor its source record. So after a refusal the interval is
aborted. For a while tasks step record by record, and each output is checked against the
settings of its topic before it is written. An output that the settings forbid is a
failure of the source record just processed, for `production.exception.handler`. A topic
that takes smaller batches than the client makes gets batches that fit, from then on.

Invariant: a record that the topic's settings allow is never left out. A refusal that
the settings do not explain ends the thread, with Kafka's error. Turned down: a delivery
callback for each record (half a microsecond for all, and it names the whole batch);
checking records always (a twentieth of a microsecond for all, for something that is
rare); remembering refused records by their content (the batch again).
Relies on: `committer` (aborts the interval, and makes careful ones while `expected`).
Source: Kafka `LogValidator`, `DefaultRecordBatch` (the sizes); librdkafka
`rd_kafka_msg_max_wire_size`.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass

from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.log.log import Log, Writer
from coopstreams.topology.columns import Headers, Int64s
from coopstreams.topology.compile.outputs import Output
from coopstreams.topology.errors import DeliveryError

CAREFUL_S = 60.0
"""How long after the last refusal outputs are checked one by one."""
BATCH_BYTES = 61
"""The bytes of a batch before its records."""
CLIENT_BYTES = 36
"""The bytes that librdkafka adds to key, value and headers when it checks the size of a
record.
"""
SHOWN = 60
"""The most characters of a key in a message."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of a topic's settings for records. None: no limit.

    `batch_bytes`: for a batch of several records. `after_ms`, `before_ms`: how far a
    timestamp may be after or before the broker's clock. `compacted`: whether the topic
    is compacted, and takes no records without keys.
    """

    batch_bytes: int | None = None
    most_bytes: int | None = None
    """The limit of a batch with one record; None as well if compression makes its size
    unknown.
    """
    after_ms: int | None = None
    before_ms: int | None = None
    compacted: bool = False

    @staticmethod
    def of(topic: Mapping[str, str], *, compressed: bool) -> TopicLimits:
        """Return the limits in a topic's configuration.

        `compressed`: batches are compressed, so the final size of a record is unknown.
        """
        timed = topic.get("message.timestamp.type") != "LogAppendTime"

        def number(name: str) -> int | None:
            return int(topic[name]) if name in topic else None

        most = number("max.message.bytes")
        return TopicLimits(
            most,
            None if compressed else most,
            number("message.timestamp.after.max.ms") if timed else None,
            number("message.timestamp.before.max.ms") if timed else None,
            "compact" in topic.get("cleanup.policy", ""),
        )

    def reasons(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp: int,
        now_ms: int,
    ) -> list[str]:
        """Return all reasons why the broker refuses a record in a batch of its own,
        each with its setting.
        """
        found = []
        if key is None and self.compacted:
            found.append("it has no key, and the topic is compacted (cleanup.policy)")
        if self.after_ms is not None and timestamp - now_ms > self.after_ms:
            found.append(
                f"its timestamp is {seconds(timestamp - now_ms)} ahead of the clock, message.timestamp.after.max.ms "
                f"allows {seconds(self.after_ms)}"
            )
        if self.before_ms is not None and now_ms - timestamp > self.before_ms:
            found.append(
                f"its timestamp is {seconds(now_ms - timestamp)} behind the clock, message.timestamp.before.max.ms "
                f"allows {seconds(self.before_ms)}"
            )
        if (
            self.most_bytes is not None
            and (size := batch_bytes(key, value, headers)) > self.most_bytes
        ):
            found.append(
                f"it has {size} bytes with Kafka's overhead, max.message.bytes allows {self.most_bytes}"
            )
        return found


class Refusals:
    """Decides whether outputs are checked, and checks them. Shared by the stream
    threads of an instance.
    """

    def __init__(
        self,
        log: Log,
        config: Config,
        host: Host = SYSTEM,
    ) -> None:
        self._host = host
        self._log = log
        self._limits: dict[str, TopicLimits] = {}
        self._until = float("-inf")
        settings = {
            name.removeprefix("producer."): value
            for name, value in config.client.items()
        }
        self._compressed = (
            str(
                settings.get(
                    "compression.type",
                    settings.get("compression.codec", "none"),
                )
            )
            != "none"
        )
        self._client_bytes = int(settings.get("message.max.bytes", 1_000_000))
        self._client_batch = min(
            self._client_bytes,
            int(settings.get("batch.size", 1_000_000)),
        )
        self.narrow: dict[str, int] = {}
        """The batch limit of each topic that has refused a record and takes smaller
        batches than the client makes. Units: bytes.
        """

    @property
    def expected(self) -> bool:
        """Whether a broker has refused a record within the last `CAREFUL_S`."""
        return self._host.now() < self._until

    def expect(self) -> None:
        """Have outputs checked for `CAREFUL_S`, because a broker has refused a record,
        and drop the limits fetched earlier.
        """
        self._until = self._host.now() + CAREFUL_S
        self._limits.clear()

    def append(
        self,
        writer: Writer,
        timeout_s: float,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        *,
        partitions: int | Int64s | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> None:
        """Append records to a topic. If it takes smaller batches than the client makes,
        append them in groups that fit into a batch.
        """
        most_bytes = self.narrow.get(topic)
        if most_bytes is None:
            writer.append(
                topic,
                keys,
                values,
                timestamps,
                partitions=partitions,
                headers=headers,
            )
            return
        # The header of a batch is counted for each record: within a batch, the deltas
        # of its timestamp and offset may take more bytes than alone.
        sizes = [
            batch_bytes(*row)
            for row in zip(keys, values, headers or [None] * len(keys), strict=True)
        ]
        for at in batches(sizes, most_bytes):
            where = (
                partitions
                if partitions is None or isinstance(partitions, int)
                else partitions[at]
            )
            writer.append(
                topic,
                keys[at],
                values[at],
                timestamps[at],
                partitions=where,
                headers=headers and headers[at],
            )
            writer.flush(timeout_s)

    def reason(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp: int,
    ) -> str | None:
        """Return why a topic refuses a record, with all settings that forbid it; None:
        no reason is known.

        Raises:
            LogError: the topic's settings cannot be fetched.
        """
        limits = self._limits.get(topic)
        if limits is None:
            limits = self._limits[topic] = TopicLimits.of(
                self._log.topic_config(topic),
                compressed=self._compressed,
            )
            if (
                limits.batch_bytes is not None
                and limits.batch_bytes < self._client_batch
            ):
                self.narrow[topic] = limits.batch_bytes
        why = limits.reasons(key, value, headers, timestamp, self._host.wall_ms())
        size = CLIENT_BYTES + payload_bytes(key, value, headers)
        if size > self._client_bytes:
            why.append(
                f"it has {size} bytes, the application's producer.message.max.bytes allows {self._client_bytes}"
            )
        if not why:
            return None
        self._until = self._host.now() + CAREFUL_S
        return (
            f'topic "{topic}" does not take the record with key {shown(key)} and timestamp {timestamp}: '
            + "; ".join(why)
        )

    def leave_out(
        self,
        output: Output,
        on_refused: Callable[[bytes | None, int, DeliveryError], None],
    ) -> None:
        """Remove the records that the topic would refuse from an output. Call
        `on_refused` for each of them.

        Raises:
            LogError: the topic's settings cannot be fetched.
        """
        headers = output.headers or [None] * len(output)
        rows = zip(output.keys, output.values, headers, output.timestamps, strict=True)
        reasons = [self.reason(output.topic, *row) for row in rows]
        if not any(reasons):
            return
        for key, timestamp, reason in zip(
            output.keys,
            output.timestamps,
            reasons,
            strict=True,
        ):
            if reason:
                on_refused(key, timestamp, DeliveryError(reason))
        output.keep([row for row, reason in enumerate(reasons) if not reason])


def batches(sizes: Sequence[int], most_bytes: int) -> Iterator[slice]:
    """Yield consecutive slices that cover all records. Each has at most `most_bytes`,
    or is a single record.
    """
    begin = together = 0
    for at, size in enumerate(sizes):
        if at > begin and together + size > most_bytes:
            yield slice(begin, at)
            begin = at
            together = 0
        together += size
    yield slice(begin, len(sizes))


def batch_bytes(
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> int:
    """Return the size of an uncompressed batch of this one record."""
    body = 3 + _field(key) + _field(value) + _varint(len(headers or ()))
    for name, content in headers or ():
        body += _field(name.encode()) + _field(content)
    return BATCH_BYTES + _varint(body) + body


def payload_bytes(
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> int:
    """Return the total size of key, value and headers, in bytes."""
    return (
        len(key or b"")
        + len(value or b"")
        + sum(
            len(name.encode()) + len(content or b"") for name, content in headers or ()
        )
    )


def shown(key: bytes | None) -> str:
    """Return a key as text, shortened if it is long."""
    text = repr(key)
    return (
        text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(key or b'')} bytes)"
    )


def seconds(ms: int) -> str:
    """Return a time span as text."""
    return f"{ms / 1000:,.0f} s"


def _field(content: bytes | None) -> int:
    """Return the bytes that a key, a value or a header's part takes, with its length."""
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    """Return how many bytes a length takes: zigzag, seven bits each."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
