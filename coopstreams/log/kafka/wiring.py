"""The environment of an instance or a consumer: the machine it runs on, its cluster,
its group's coordinator.

A simulation replaces all three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.coordinator import connector
from coopstreams.group.coordinator_interface import Connector
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.log import Log

Settings: TypeAlias = Mapping[str, Any]
"""How to reach the brokers, in librdkafka's names."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The host of an instance or a consumer, and functions that connect to its cluster
    and its group's coordinator.

    Units: `cluster` is called with the seconds for which brokers may be unreachable
    before a request fails.
    """

    host: Host
    cluster: Callable[[Settings, float], Log]
    coordinator: Callable[[Settings], Connector]


KAFKA = Wiring(
    SYSTEM,
    lambda settings, timeout_s: KafkaLog(settings, timeout_s=timeout_s),
    connector,
)
"""The wiring of production: the operating system and a Kafka cluster."""
