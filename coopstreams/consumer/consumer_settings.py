"""The settings of a cooperative consumer: Kafka's names, the proposal's, and
librdkafka's.

Invariant: names that are not listed here are passed unchanged to the Kafka clients,
which refuse unknown names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coopstreams.common.config import check_heartbeat, check_security
from coopstreams.common.references import resolved
from coopstreams.common.setting_sources import flat
from coopstreams.common.setting_values import (
    ascii_text,
    boolean,
    integer,
    one_of,
)
from coopstreams.topology.errors import ConfigError

SETTINGS: Mapping[str, tuple[Callable[[Any], Any], Any, str]] = {
    "group.id": (ascii_text, None, "The consumer group: commits belong to it."),
    "group.instance.id": (
        ascii_text,
        None,
        "Makes this a static member: started again within `session.timeout.ms`, it gets its key ranges back, and "
        "the other members are not disturbed.",
    ),
    "auto.offset.reset": (
        one_of("earliest", "latest"),
        "earliest",
        "Where a group without a committed offset begins.",
    ),
    "isolation.level": (
        one_of("read_committed", "read_uncommitted"),
        "read_committed",
        "Whether records of open transactions are handed out.",
    ),
    "partition.assignment.strategy": (
        one_of("cooperative-sticky", "range", "roundrobin"),
        "cooperative-sticky",
        "How the leader assigns partitions and key ranges.",
    ),
    "allow.individual.commit": (
        boolean,
        True,
        "Whether this consumer commits out of order and shares partitions. False: it commits positions, and reads "
        "whole partitions only.",
    ),
    "enable.auto.commit": (
        boolean,
        False,
        "Whether `consume` commits by itself what is done, every `auto.commit.interval.ms`. Kafka's default is true.",
    ),
    "auto.commit.interval.ms": (
        integer(1),
        5000,
        "The time between two commits with `enable.auto.commit`.",
    ),
    "max.num.ranges.to.commit": (
        integer(1),
        10_000,
        "Commit by itself once more ranges of offsets than this were done since the last commit.",
    ),
    "max.individual.commits": (
        integer(1),
        50_000,
        "Records of a key range that may be out and not done, and so how many ranges a commit of it can have. Then "
        "nothing more is handed out.",
    ),
    "max.bytes.key.range.cache": (
        integer(1),
        209_715_200,
        "Bound on records kept for key ranges that cannot take them now. What does not fit is read again.",
    ),
    "max.poll.interval.ms": (
        integer(1),
        300_000,
        "A consumer that has not called consume for so long is out of the group.",
    ),
    "max.revoke.delay.ms": (
        integer(1),
        300_000,
        "How long a key range that the group wants back may be kept by `delay_revoke`; then it is lost.",
    ),
    "session.timeout.ms": (
        integer(1000),
        10_000,
        "A process that sends no heartbeat for so long is removed from the group.",
    ),
    "heartbeat.interval.ms": (
        integer(50),
        400,
        "Time between heartbeats; sets how fast a rebalance goes.",
    ),
    "transaction.timeout.ms": (
        integer(1000),
        15_000,
        "The broker aborts a commit that is open for longer. For a transaction, the setting of your producer counts.",
    ),
    "commit.order": (
        one_of("none", "offset"),
        "none",
        "offset: a transaction waits until everything before it in its partitions is committed, for half of "
        "`transaction.timeout.ms` at most.",
    ),
    "replication.factor": (
        integer(-1),
        -1,
        "Replicas of the topics with commits and policies, when they are made; -1: the broker's default.",
    ),
    "connect.timeout.ms": (
        integer(1000),
        60_000,
        "How long to look for the brokers before giving up.",
    ),
}
"""Every setting of coopstreams: its parser, its default, its meaning."""


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The checked settings of a consumer.

    Shape: `values` has every name of `SETTINGS`. `client` has the settings of the Kafka
    clients, in librdkafka's names.
    """

    values: Mapping[str, Any]
    client: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @staticmethod
    def of(settings: Mapping[str, Any]) -> ConsumerConfig:
        """Return the checked settings, with defaults for missing ones.

        Shape: dotted names, or nested tables, as `tomllib` reads a file.

        Raises:
            ConfigError: an invalid value, or no `group.id`.
        """
        values = {name: default for name, (_, default, _) in SETTINGS.items()}
        settings = resolved(flat(settings))
        for name in settings.keys() & SETTINGS.keys():
            try:
                values[name] = SETTINGS[name][0](settings[name])
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    f"{name} = {settings[name]!r}: must be {error}"
                ) from None
        if values["group.id"] is None:
            raise ConfigError(
                "group.id is not set: name the group whose progress is kept"
            )
        check_heartbeat(values)
        client = {
            name: value for name, value in settings.items() if name not in SETTINGS
        }
        check_security(client)
        client.setdefault("consumer.group.id", values["group.id"])  # as `Config` does
        client["producer.transaction.timeout.ms"] = values["transaction.timeout.ms"]
        return ConsumerConfig(values, client)
