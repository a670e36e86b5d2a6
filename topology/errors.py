"""Defines every exception of coopstreams, so that a user can catch the right one.

    CoopStreamsError
    ├── ConfigError              a setting is unknown, missing or wrong
    ├── TopologyError            the topology is wrong; raised while it is built, before any connection
    │   └── TopologyChangedError a new version of the topology would lose or mix state of the previous version
    ├── SerdeError               bytes that cannot be deserialised, or a value that cannot be serialised
    ├── ProcessingError          a user function raised; names task, topic, partition, offset
    ├── LogError                 Kafka (or the in-memory log) refused something
    │   ├── UnknownTopicError    a topic that does not exist
    │   ├── OffsetOutOfRangeError  a position that the log no longer has
    │   ├── AccessDeniedError    Kafka refuses this process's login, or an ACL is missing; names it
    │   ├── DeliveryError        a record that could not be written
    │   │   └── RefusedError     a record that the topic does not allow
    │   ├── SinkUnavailableError  an external sink is unreachable
    │   └── FencedError          another producer or a newer generation took over; the transaction is void
    ├── GroupError               membership
    │   ├── ApplicationStoppedError  an instance made all instances of the application stop
    │   ├── MembershipLostError  the group has removed this member; uncommitted work is void
    │   ├── CommitConflictError  a commit that expected another offset
    │   └── AssignmentError      key ranges that overlap or leave a hole
    ├── IndividualCommitError    sharing a partition, or committing out of order, is not allowed or not possible;
    │                            carries a `code`
    │   ├── IndividualCommitNotAllowedError     88  the cluster's policy or the consumer's own setting forbids it
    │   ├── TopicRangeFetchNotAllowedError      89  the topic's policy forbids it
    │   ├── ConsumerRangeFetchNotAcceptedError  90  the consumer does not share partitions
    │   ├── IndividualCommitTooOldError         91  a commit below the stable offset; says where that is
    │   └── MaxIndividualCommitReachedError     92  too many done runs above an offset that is not done
    ├── DevError                 Java, the development Kafka or the examples' data is not available
    ├── StateError               local state
    │   ├── StateLockedError     the folder is in use by another process
    │   ├── StateCorruptError    the folder cannot be used as it is
    │   └── SnapshotError        a snapshot that cannot be written, read or used
    └── QueryError               an interactive query; carries an HTTP status, a code and whether to retry

Each message says what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping


class CoopStreamsError(Exception):
    """The base class of everything that coopstreams raises on purpose."""


class ConfigError(CoopStreamsError):
    """A setting is unknown, missing, or has a value that cannot work."""


class TopologyError(CoopStreamsError):
    """The topology cannot run as written. Raised while it is built, before any
    connection.
    """


class TopologyChangedError(TopologyError):
    """A new version of the topology would silently lose, mix or misread the state or
    records of the previous version.

    The message names the state or records, and the cures.
    """


class SerdeError(CoopStreamsError):
    """Bytes that cannot be deserialised, or a value that cannot be serialised."""


class ProcessingError(CoopStreamsError):
    """A record could not be processed and the exception handler answered `fail`. The
    message names task, topic, partition and offset.
    """


class InvalidTimestampError(ProcessingError):
    """A record has a negative timestamp: it has no time, or a time before 1970."""

    def __init__(self, timestamp: int) -> None:
        super().__init__(
            f"its timestamp is {timestamp}. Windows and joins have no place for a record without a time, or of before "
            "1970. Say default.timestamp.extractor=LogAndSkipOnInvalidTimestamp to drop such records, "
            "=UsePartitionTimeOnInvalidTimestamp to give them the time of the partition; or let timestamp= of the "
            "source take the time from the record"
        )


class LogError(CoopStreamsError):
    """Kafka (or the in-memory log) refused a request. `retryable`: the same call may
    succeed later, unchanged.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class UnknownTopicError(LogError):
    """The cluster does not have the topic. Create it, or correct the name in the
    topology.
    """


class OffsetOutOfRangeError(LogError):
    """The log no longer has this position: retention deleted it, or the topic was
    deleted and created again.
    """


class AccessDeniedError(LogError):
    """Kafka refuses this process's login, or one of its requests: the message names
    user, mechanism and ACL.
    """


class DeliveryError(LogError):
    """The broker did not accept a record, so the whole commit has failed."""


class RefusedError(DeliveryError):
    """The broker refused a batch because the topic does not allow the timestamp, the
    size or the key of a record.
    """


class SinkUnavailableError(LogError):
    """An external sink is unreachable. The position stored in the sink says whether the
    records sent last are applied.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class FencedError(LogError):
    """A newer producer or a newer generation took over. Abort, discard uncommitted
    work, and reopen the tasks from the log.
    """


class GroupError(CoopStreamsError):
    """An error of the membership in the consumer group."""


class ApplicationStoppedError(GroupError):
    """An instance met an error and made all instances of the application stop. The
    message names the instance and the reason.
    """


class MembershipLostError(GroupError):
    """The group has removed this member: all its uncommitted work is void."""


class CommitConflictError(GroupError):
    """A commit expected another committed offset than the group has, so nothing was
    committed. `committed` of the consumer returns the offset.
    """


class AssignmentError(GroupError):
    """Key ranges overlap or leave a hole: a bug in an assignor, never the user's fault."""


class IndividualCommitError(CoopStreamsError):
    """Sharing a partition by key range, or committing out of order, is not allowed or
    not possible.

    Shape: `code` is the error code of the proposal. It is meant for programs and logs
    and is never sent to Kafka, which uses 88 to 92 for other errors.
    """

    code = -1


class IndividualCommitNotAllowedError(IndividualCommitError):
    """Individual commits are turned off.

    Cure: `coopstreams policy set accept.individual.commit=true`; in the consumer,
    `allow.individual.commit`.
    """

    code = 88


class TopicRangeFetchNotAllowedError(IndividualCommitError):
    """The topic keeps the order within its partitions, so they cannot be read by key
    range.

    Cure: `coopstreams policy set accept.range.fetch=true --topic TOPIC`.
    """

    code = 89


class ConsumerRangeFetchNotAcceptedError(IndividualCommitError):
    """The group assigned a key range of a partition to a consumer that does not share
    partitions.

    Cure: allow sharing (`allow.individual.commit`, `allow_key_share`).
    """

    code = 90


class IndividualCommitTooOldError(IndividualCommitError):
    """A commit lies below the stable offset, where everything is committed. Continue
    from `last_stable_offset`.
    """

    code = 91

    def __init__(self, message: str, *, last_stable_offset: int) -> None:
        super().__init__(message)
        self.last_stable_offset = last_stable_offset


class MaxIndividualCommitReachedError(IndividualCommitError):
    """Too many separate done runs lie above an offset that is not done.

    Finish the oldest records first. If a member hangs, remove it from the group.
    """

    code = 92


class DevError(CoopStreamsError):
    """Java, the development Kafka, or the data of the examples is not available. The
    message names the reason and the cure.
    """


class StateError(CoopStreamsError):
    """An error of the local state folder."""


class StateLockedError(StateError):
    """The folder is in use by another process. Stop it, or give this one another
    instance number or `state.dir`.
    """


class StateCorruptError(StateError):
    """The state folder cannot be used as it is. The message says whether it may be
    deleted and restored from the changelog.
    """


class SnapshotError(StateError):
    """A snapshot cannot be written, read or used here. The message names the snapshot.

    It is damaged, missing, in a newer format, or of another topic or store.
    """


class QueryError(CoopStreamsError):
    """An interactive query cannot be answered now.

    Shape: `code` is the error word in the JSON body, `status` the HTTP status.
    `retryable` and `retry_after_ms` tell a client whether and when to repeat the query.
    `details` are further fields of the body (the owner's url, the epoch of a "not
    found").
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.details: Mapping[str, object] = details or {}
