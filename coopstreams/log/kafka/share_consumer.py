"""Records delivered by the broker: a share group (KIP-932), through confluent-kafka's
share consumer.

The broker gives each record of a partition to one member for a while; a record that is
not acknowledged in that time it delivers again.

Invariant: every record of a poll is acknowledged, one way or the other, before the next
poll (the client requires it).
Invariant: the settings of the group are altered before any member gets records.
Source: KIP-932. The client calls itself a preview; it refuses
`allow.auto.create.topics`.
"""

# confluent-kafka exports these names without declaring it.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    AcknowledgeType,
    IllegalStateException,
    KafkaError,
    KafkaException,
    ShareConsumer,
    TopicCollection,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from coopstreams.common.acl_errors import Attempt
from coopstreams.log.kafka.client_settings import (
    ClientErrors,
    client_settings,
    login_of,
    make_client,
)
from coopstreams.log.kafka.kafka_errors import (
    UNKNOWN,
    error_of,
    heals,
    translated,
)
from coopstreams.log.kafka.messages import headers_of
from coopstreams.topology.columns import Headers, TopicPartition
from coopstreams.topology.errors import AccessDeniedError, GroupError, LogError

logger = logging.getLogger(__name__)

_LOCK = "share.record.lock.duration.ms"
_SESSION = "share.session.timeout.ms"
_TIMEOUT_S = 30.0
_CURES = {
    KafkaError.GROUP_ID_NOT_FOUND: "A group of consumers has its name: choose another one.",
    KafkaError.UNSUPPORTED_VERSION: "Share groups need Apache Kafka 4.2 or later, with its feature share.version=1.",
}


@dataclass(frozen=True, slots=True)
class AcquiredRecord:
    """A record that this process has acquired: for a while no other member gets it.

    Units: the timestamp in ms since the epoch, -1 without one.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None
    deliveries: int
    """How many times the record was delivered, this time included."""

    @property
    def id(self) -> tuple[str, int, int]:
        """The topic, partition and offset of the record."""
        return self.topic, self.partition, self.offset


def delete_share_group(settings: Mapping[str, Any], group: str) -> None:
    """Delete a share group with its progress, if it exists.

    Raises:
        GroupError: the group has members. Stop them.
        LogError: the brokers refuse, or do not answer in time.
    """
    errors = ClientErrors(login_of(settings))
    admin: AdminClient = make_client(
        AdminClient,
        client_settings(settings, "admin"),
        errors,
    )
    try:
        admin.delete_consumer_groups([group], request_timeout=_TIMEOUT_S)[group].result(
            _TIMEOUT_S + 5
        )
    except KafkaException as exception:
        error = error_of(exception)
        if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return
        if error.code() == KafkaError.NON_EMPTY_GROUP:
            raise GroupError(
                f"share group {group} has members: stop all instances, then try again; one that died is removed after "
                "group.share.session.timeout.ms (45 s by default)"
            ) from exception
        raise translated(
            error,
            f"share group {group}: deleting it",
            Attempt(errors.login, "Delete", "", group),
        ) from exception


class KafkaShare:
    """A member of a share group. One thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        group: str,
        group_settings: Mapping[str, str],
        writes: Collection[str] = (),
    ) -> None:
        """Alter the settings of the group, for all of its members. `subscribe` then
        joins the group.

        `writes`: topics for results. A process that cannot write them would end at the
        first record, and after five starts the brokers would have given up the records
        that it had acquired.

        Raises:
            ConfigError: the client refuses a setting.
            AccessDeniedError: this principal may not write one of these topics.
            LogError: the brokers refuse the group's settings: they are too old, or this
                principal may not alter them.
        """
        self._errors = ClientErrors(login_of(settings))
        self._group = group
        plain = client_settings(settings, "admin")
        admin: AdminClient = make_client(AdminClient, dict(plain), self._errors)
        self._check_writes(admin, writes)
        self._configure(admin, group_settings)
        plain.pop("allow.auto.create.topics")
        own = {"group.id": group, "share.acknowledgement.mode": "explicit"}
        self._client: ShareConsumer = make_client(
            ShareConsumer,
            plain | own,
            self._errors,
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to these topics, and join the group."""
        self._client.subscribe(list(topics))

    def poll(self, timeout_s: float) -> list[AcquiredRecord]:
        """Return the records that this member has acquired; empty while the brokers are
        unreachable.

        Raises:
            LogError: an error that does not heal. If it is retryable, a new member may
                get records.
        """
        if self._errors.fatal is not None:
            raise self._failure(self._errors.fatal)
        try:
            messages = list(self._client.poll(timeout_s))
        except KafkaException as exception:
            error = error_of(exception)
            if (
                error.fatal()
            ):  # the client says so once, and then returns nothing for ever
                self._errors.fatal = error
            elif heals(error):
                return []
            raise self._failure(error) from exception
        records = []
        for message in messages:
            failed = message.error()
            if failed is None:
                _, timestamp = message.timestamp()
                records.append(
                    AcquiredRecord(
                        str(message.topic()),
                        int(message.partition() or 0),
                        int(message.offset() or 0),
                        message.key(),
                        message.value(),
                        timestamp,
                        headers_of(message),
                        int(message.delivery_count() or 1),
                    )
                )
            elif not heals(failed):
                raise translated(
                    failed,
                    f"share group {self._group}",
                    self._attempt(message.topic() or ""),
                )
        return records

    def acknowledge(self, record: AcquiredRecord, *, done: bool) -> None:
        """Acknowledge a record as done, or release it for another delivery. The next
        `commit` sends that.

        Raises:
            LogError: this member does not have the record any more: it was removed from
                the group, and joins again.
        """
        try:
            self._client.acknowledge_offset(
                *record.id,
                AcknowledgeType.ACCEPT if done else AcknowledgeType.RELEASE,
            )
        except IllegalStateException as error:
            raise LogError(
                f"share group {self._group}: {error}",
                retryable=True,
            ) from error

    def commit(self, timeout_s: float) -> dict[TopicPartition, str]:
        """Send the acknowledgements; return the partitions for which the broker refused
        them, with the reason.

        The broker delivers the records of those partitions again.

        Raises:
            LogError: no answer: the records may be delivered again.
        """
        try:
            answers = self._client.commit_sync(timeout_s)
        except KafkaException as exception:
            raise translated(
                error_of(exception),
                f"share group {self._group}: acknowledging records",
            ) from exception
        return {
            TopicPartition(at.topic, at.partition): error_of(refused).str()
            for at, refused in answers.items()
            if refused is not None
        }

    def close(self) -> None:
        """Leave the group; unacknowledged records are delivered to others. Idempotent."""
        self._client.close()

    def _failure(self, error: KafkaError) -> LogError:
        """Return the error to raise for this error of the client, with a cure if one is
        known.
        """
        if (cure := _CURES.get(error.code())) is None:
            return translated(error, f"share group {self._group}", self._attempt(""))
        return LogError(
            f"share group {self._group}: {error.str()}. {cure}",
            retryable=heals(error),
        )

    def _attempt(self, topic: str) -> Attempt:
        """Return what an error of access names: this group reads `topic`."""
        return Attempt(self._errors.login, "Read", topic, self._group)

    def _check_writes(self, admin: AdminClient, topics: Collection[str]) -> None:
        """Check that this principal may write these topics; a missing topic passes."""
        if not topics:
            return
        asked = admin.describe_topics(
            TopicCollection(sorted(topics)),
            include_authorized_operations=True,
            request_timeout=_TIMEOUT_S,
        )
        for topic, answer in asked.items():
            what = f'asking whether topic "{topic}" may be written'
            attempt = Attempt(self._errors.login, "Write", topic)
            try:
                allowed = answer.result(_TIMEOUT_S + 5).authorized_operations
            except KafkaException as exception:
                error = error_of(exception)
                if (
                    error.code() in UNKNOWN
                ):  # who writes to it says that it is not there
                    continue
                raise translated(error, what, attempt) from exception
            if (
                allowed and AclOperation.WRITE not in allowed
            ):  # none: the brokers do not say
                raise AccessDeniedError(
                    f"{what}: {attempt.missing('TOPIC_AUTHORIZATION_FAILED')}"
                )

    def _configure(self, admin: AdminClient, group_settings: Mapping[str, str]) -> None:
        """Alter the settings of the group."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in group_settings.items()
        ]
        resource = ConfigResource(
            ResourceType.GROUP,
            self._group,
            incremental_configs=entries,
        )
        try:
            admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT_S)[
                resource
            ].result(_TIMEOUT_S + 5)
        except KafkaException as exception:
            error = error_of(exception)
            if heals(error):
                raise LogError(
                    f"share group {self._group}: altering its settings: {error.str()}",
                    retryable=True,
                ) from exception
            raise LogError(
                f"share group {self._group}: the brokers do not take {dict(group_settings)}: {error.str()}. "
                "Share groups need Apache Kafka 4.2 or later, and the permission to alter the configuration of the "
                "group"
            ) from exception
        self._compare_times(admin)

    def _compare_times(self, admin: AdminClient) -> None:
        """Log a warning if members are removed before the time of their records is
        over. Who may alter the settings of a group may also see them.
        """
        group = ConfigResource(ResourceType.GROUP, self._group)
        asked = admin.describe_configs([group], request_timeout=_TIMEOUT_S)[group]
        try:
            found = asked.result(_TIMEOUT_S + 5)
        except KafkaException as exception:
            raise translated(
                error_of(exception),
                f"share group {self._group}: asking for its settings",
                Attempt(self._errors.login, "DescribeConfigs", "", self._group),
            ) from exception
        lock, session = (
            int(found[name].value) if name in found else 0 for name in (_LOCK, _SESSION)
        )
        if lock > session > 0:
            logger.warning(
                "share group %s: a record is one member's for %d ms, but a member that sends no heartbeat is removed "
                "after %d ms, and its records are delivered again. Set max.gap.wait.ms (of an application "
                "%s) to at most %d, or have the group's %s raised",
                self._group,
                lock,
                session,
                _LOCK,
                session,
                _SESSION,
            )
