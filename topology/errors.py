"""Every exception of coopstreams, in one place, so that a user can catch the right one.

    CoopStreamsError
    ├── ConfigError              a setting is unknown, missing or wrong
    ├── TopologyError            the program is wrong; raised while it is built, before any connection
    │   └── TopologyChangedError a version of it would lose or mix what the one before has left
    ├── SerdeError               bytes that do not become a value, or a value that does not become bytes
    ├── ProcessingError          a user function raised; names task, topic, partition, offset
    ├── LogError                 Kafka (or the in-memory log) refused something
    │   ├── UnknownTopicError    a topic that does not exist
    │   ├── OffsetOutOfRangeError  a position that the log no longer has
    │   ├── DeliveryError        a record that could not be written
    │   └── FencedError          another producer or a newer generation took over; the transaction is void
    ├── GroupError               membership
    │   ├── MembershipLostError  the group went on without this member; what is uncommitted is void
    │   ├── CommitConflictError  a commit that expected another offset
    │   └── AssignmentError      key ranges that overlap or leave a hole
    ├── IndividualCommitError    sharing a partition, or committing out of order, is not allowed or not possible;
    │                            carries a `code`
    │   ├── IndividualCommitNotAllowedError     88  the cluster's policy, or the consumer's own setting
    │   ├── TopicRangeFetchNotAllowedError      89  the topic's policy
    │   ├── ConsumerRangeFetchNotAcceptedError  90  this consumer does not share
    │   ├── IndividualCommitTooOldError         91  a commit behind the stable offset; says where that is
    │   └── MaxIndividualCommitReachedError     92  too many done offsets above one that is not
    ├── DevError                 Java, the development Kafka or the examples' data could not be had
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
    """The root: whatever coopstreams raises on purpose."""


class ConfigError(CoopStreamsError):
    """A setting is unknown, missing, or has a value that cannot work."""


class TopologyError(CoopStreamsError):
    """The topology cannot run as written. Raised while it is built, before any connection."""


class TopologyChangedError(TopologyError):
    """A version of the topology would lose, mix or misread what the last one has left, and nothing would show it. Says
    what, and the cures.
    """


class SerdeError(CoopStreamsError):
    """Bytes that do not become a value, or a value that does not become bytes."""


class ProcessingError(CoopStreamsError):
    """A record could not be processed and the handler said `fail`. The message names task, topic, partition, offset."""


class LogError(CoopStreamsError):
    """Kafka (or the in-memory log) refused something.

    `retryable` says whether the same call may succeed later without anybody changing anything.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class UnknownTopicError(LogError):
    """A topic that the cluster does not have. Create it, or correct the name in the topology."""


class OffsetOutOfRangeError(LogError):
    """A position that the log no longer has (retention deleted it, or the topic was made anew)."""


class DeliveryError(LogError):
    """A record that the broker did not take. Nothing of this commit counts."""


class RefusedError(DeliveryError):
    """The broker refused a batch for what is in it: some record has a time, a size or a key that the topic does not
    allow.
    """


class FencedError(LogError):
    """A newer producer or a newer generation took over. Abort, forget, open again from the log."""


class GroupError(CoopStreamsError):
    """Something about the membership in the consumer group."""


class ApplicationStoppedError(GroupError):
    """An instance of the application met an error and had all of them stop; says which instance, and why."""


class MembershipLostError(GroupError):
    """The group went on without this member: whatever it has not committed is void."""


class CommitConflictError(GroupError):
    """A commit named the offset that it expected to be committed, and it is another. Nothing was committed; look at
    `committed`.
    """


class AssignmentError(GroupError):
    """Key ranges that overlap or leave a hole. A bug in an assignor, never the user's fault."""


class IndividualCommitError(CoopStreamsError):
    """Sharing a partition by key range, or committing out of order, is not allowed or not possible.

    Shape: `code` is the proposal's number. It is for programs and logs and never travels: Apache Kafka uses 88 to 92
    for other things.
    """

    code = -1


class IndividualCommitNotAllowedError(IndividualCommitError):
    """Individual commits are turned off. Cure: `coopstreams policy set accept.individual.commit=true`; in the consumer,
    `allow.individual.commit`.
    """

    code = 88


class TopicRangeFetchNotAllowedError(IndividualCommitError):
    """The topic keeps the order of its partitions: no parts of them. Cure: `coopstreams policy set
    accept.range.fetch=true --topic TOPIC`.
    """

    code = 89


class ConsumerRangeFetchNotAcceptedError(IndividualCommitError):
    """A consumer that does not share was to read a part of a partition. Cure: allow it to (`allow.individual.commit`,
    `allow_key_share`).
    """

    code = 90


class IndividualCommitTooOldError(IndividualCommitError):
    """A commit lies behind the stable offset: everything there is committed already. Go on from
    `last_stable_offset`.
    """

    code = 91

    def __init__(self, message: str, *, last_stable_offset: int) -> None:
        super().__init__(message)
        self.last_stable_offset = last_stable_offset


class MaxIndividualCommitReachedError(IndividualCommitError):
    """As many done offsets above one that is not as may be kept. Finish the oldest records; a member that hangs should
    leave.
    """

    code = 92


class DevError(CoopStreamsError):
    """Java, the development Kafka, or the data of the examples could not be had; the message says why and what cures
    it.
    """


class StateError(CoopStreamsError):
    """Something about the local state folder."""


class StateLockedError(StateError):
    """The folder is in use by another process. Stop it, or give this one another instance number or `state.dir`."""


class StateCorruptError(StateError):
    """The folder cannot be used as it is; the message says whether deleting it is safe (a changelog restores it)."""


class SnapshotError(StateError):
    """A snapshot that cannot be written, read or used here: damaged, missing, of a newer format, of another topic or
    store. Names it.
    """


class QueryError(CoopStreamsError):
    """An interactive query that has no answer now.

    Shape: `code` is the word in the JSON body, `status` the HTTP status; `retryable` and `retry_after_ms` tell a client
    what to do; `details` are further fields of the body (the owner's url, the epoch of a "not found").
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
