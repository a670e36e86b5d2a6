"""Settings of a cooperative consumer: Kafka's names, the proposal's, and whatever librdkafka knows.

Invariant: what is not listed here goes to the Kafka clients as it is, and they refuse what they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coopstreams.topology.errors import ConfigError


def _number(low: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = int(value)
        if isinstance(value, float) or number < low:
            raise ValueError(f"a whole number of at least {low}")
        return number

    return read


def _flag(value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError("true or false")
    return str(value).lower() == "true"


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return str(value)

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty")
    return value


SETTINGS: Mapping[str, tuple[Callable[[Any], Any], Any, str]] = {
    "group.id": (_text, None, "The consumer group: commits belong to it."),
    "group.instance.id": (
        _text,
        None,
        "Makes this a static member: started again within `session.timeout.ms`, it has what it had, and nobody else is disturbed.",
    ),
    "auto.offset.reset": (_one_of("earliest", "latest"), "earliest", "Where a group begins that has no offset."),
    "isolation.level": (_one_of("read_committed", "read_uncommitted"), "read_committed", "Whether records of open transactions are handed out."),
    "partition.assignment.strategy": (
        _one_of("cooperative-sticky", "range", "roundrobin"),
        "cooperative-sticky",
        "How the leader deals partitions and key ranges.",
    ),
    "allow.individual.commit": (
        _flag,
        True,
        "Whether this consumer commits out of order and shares partitions. False: it commits positions, and reads whole partitions only.",
    ),
    "max.num.ranges.to.commit": (_number(1), 10_000, "Commit by itself once more ranges of offsets than this were done since the last commit."),
    "max.individual.commits": (
        _number(1),
        50_000,
        "Records of a key range that may be out and not done, and so how many ranges a commit of it can have. Then nothing more is handed out.",
    ),
    "max.bytes.key.range.cache": (
        _number(1),
        209_715_200,
        "Bound on records kept for key ranges that cannot take them now. What does not fit is read again.",
    ),
    "max.poll.interval.ms": (_number(1), 300_000, "A consumer that has not called consume for so long is out of the group."),
    "max.revoke.delay.ms": (_number(1), 300_000, "How long a key range that the group wants back may be kept by `delay_revoke`; then it is lost."),
    "session.timeout.ms": (_number(1000), 10_000, "A process that has not been heard of for so long is out of the group."),
    "heartbeat.interval.ms": (_number(50), 400, "Time between heartbeats; sets how fast a rebalance goes."),
    "transaction.timeout.ms": (_number(1000), 15_000, "The broker aborts a commit, or a transaction, that is open for longer."),
    "commit.order": (
        _one_of("none", "offset"),
        "none",
        "offset: a transaction waits until everything before it in its partitions is committed, for half of `transaction.timeout.ms` at most.",
    ),
    "replication.factor": (_number(-1), -1, "Replicas of the topics with commits and policies, when they are made; -1: the broker's default."),
    "connect.timeout.ms": (_number(1000), 60_000, "How long to look for the brokers before giving up."),
}
"""Every setting of ours: how it is read, its default, what it means."""


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Checked settings. `values` has every name of `SETTINGS`; `client` what goes to the Kafka clients, in librdkafka's names."""

    values: Mapping[str, Any]
    client: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @staticmethod
    def of(settings: Mapping[str, Any]) -> ConsumerConfig:
        """Return the checked settings, with defaults for what is not said.

        Raises:
            ConfigError: a value that cannot be, or no group.
        """
        values = {name: default for name, (_, default, _) in SETTINGS.items()}
        for name in settings.keys() & SETTINGS.keys():
            try:
                values[name] = SETTINGS[name][0](settings[name])
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{name} = {settings[name]!r}: must be {error}") from None
        if values["group.id"] is None:
            raise ConfigError("group.id is not set: name the group whose progress is kept")
        if values["heartbeat.interval.ms"] * 3 > values["session.timeout.ms"]:
            raise ConfigError("heartbeat.interval.ms must be at most a third of session.timeout.ms, or one lost heartbeat costs the membership")
        client = {name: value for name, value in settings.items() if name not in SETTINGS}
        client["producer.transaction.timeout.ms"] = values["transaction.timeout.ms"]
        return ConsumerConfig(values, client)
