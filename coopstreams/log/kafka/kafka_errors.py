"""Classifies librdkafka's errors: fenced, not delivered, offset out of range, unknown
topic, final, or transient ("heals").

An error is transient unless it is listed here as final. A list of the errors of a
broker that dies, starts or moves leaders is never complete, and ending a process for
one of them is worse than retrying until the time limit.

Invariant: each message names the attempt, Kafka's answer and the cure; no module above
this one sees a code of librdkafka. Turned down: a list of errors that heal
(`_DESTROY_BROKER` was not on it: three of three workers ended because one broker was
down).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from coopstreams.common.acl_errors import NEEDS_NOTHING, Attempt, Login
from coopstreams.common.topic_settings import setting_command
from coopstreams.log.kafka.client_settings import ClientErrors, code_in
from coopstreams.topology.errors import (
    AccessDeniedError,
    ConfigError,
    DeliveryError,
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    RefusedError,
    UnknownTopicError,
)
from coopstreams.topology.naming import COMMIT_TOPIC

T = TypeVar("T")

FENCED = frozenset({
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
})  # fmt: skip
UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
OUT_OF_RANGE = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._LOG_TRUNCATION,
    }
)
_TIMED = frozenset(
    {
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
"""The errors of a broker that refused a batch, perhaps for its timestamps."""
_REFUSED = _TIMED | frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
})  # fmt: skip
"""The errors of a broker that refused the records of a batch.

The client does not know which record was bad: it gives most of the batch the same code
(measured).
"""
FINAL = FENCED | UNKNOWN | OUT_OF_RANGE | _REFUSED | frozenset({
    # authentication and authorisation
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError.SECURITY_DISABLED,
    KafkaError.DELEGATION_TOKEN_EXPIRED,
    KafkaError.DELEGATION_TOKEN_NOT_FOUND,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    # unsupported or forbidden by these brokers
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._NOT_IMPLEMENTED,
    KafkaError.INVALID_REQUEST,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_GROUP_ID,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_REPLICA_ASSIGNMENT,
    KafkaError.INVALID_REQUIRED_ACKS,
    KafkaError.INVALID_SESSION_TIMEOUT,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.GROUP_MAX_SIZE_REACHED,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.TOPIC_DELETION_DISABLED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    # unreadable records
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    # a client that was used wrongly
    KafkaError._INVALID_ARG,
    KafkaError._INVALID_TYPE,
    KafkaError._NOT_CONFIGURED,
    KafkaError._READ_ONLY,
    KafkaError._STATE,
    KafkaError._UNKNOWN_PROTOCOL,
})  # fmt: skip
"""Errors that a retry does not cure: a user must change something. All others heal."""
CONSEQUENCES = frozenset(
    {
        KafkaError._STATE,
        KafkaError._FATAL,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    }
)
"""Errors of every call after a record made its transaction fail: they do not name the
cause.
"""
_NOT_DELIVERED = UNKNOWN | _REFUSED | frozenset({
    KafkaError.POLICY_VIOLATION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,  # the record after a refused one
    KafkaError._MSG_TIMED_OUT,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
})  # fmt: skip
_CURE = {
    KafkaError.MSG_SIZE_TOO_LARGE: "A record, or a batch (producer.batch.size), has more bytes than the topic's "
    "max.message.bytes or producer.message.max.bytes: raise these, lower producer.batch.size, or write less.",
    KafkaError.RECORD_LIST_TOO_LARGE: "Raise the topic's segment.bytes, or lower producer.batch.size.",
    KafkaError.INVALID_TIMESTAMP: "Its timestamp is too far in the future or the past: see the topic's "
    "message.timestamp.after.max.ms and before.max.ms.",
    KafkaError.INVALID_RECORD: "A record of the batch has a timestamp too far in the future or the past (the topic's "
    "message.timestamp.after.max.ms and before.max.ms), or no key although the topic is compacted, or the broker "
    "checks more than that: its log says what.",
    KafkaError._INVALID_DIFFERENT_RECORD: "Another record of the batch was refused: see the topic's "
    "message.timestamp.after.max.ms and cleanup.policy.",
    KafkaError._MSG_TIMED_OUT: "No broker took it in time: is Kafka up, and has the partition a leader?",
    KafkaError.NOT_ENOUGH_REPLICAS: "Too few replicas of the partition are up for min.insync.replicas.",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "Set transaction.timeout.ms to at most the brokers' "
    "transaction.max.timeout.ms, or have that raised.",
    KafkaError.INVALID_REPLICATION_FACTOR: "Set replication.factor to at most the number of brokers; -1, the default, "
    "is their default.replication.factor.",
    KafkaError.POLICY_VIOLATION: "The brokers have a policy for topics (create.topic.policy.class.name): set "
    "replication.factor to what it asks for, or have its owner create the topic, with the settings that "
    "docs/reference/topics.md lists.",
    KafkaError.TOPIC_DELETION_DISABLED: "The brokers have delete.topic.enable=false: have that changed, or begin anew "
    "under another application id.",
    KafkaError.OFFSET_METADATA_TOO_LARGE: "Have the brokers' offset.metadata.max.bytes raised, to its default of 4096.",
}
_CURE_CLOCK = (
    "It is dated by the clock of this host, which must be far ahead of the brokers' clocks: set it right (NTP). Or let "
    f"brokers date these records: {setting_command(COMMIT_TOPIC, 'message.timestamp.type', 'LogAppendTime')}."
)

_LOGIN = frozenset({
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
})  # fmt: skip
_CURE_LOGIN = (
    "The brokers do not let in {}: check sasl.mechanism, and the user with its password, token or certificate, against "
    "what the brokers know."
)
_CURE_TLS = (
    "Check ssl.ca.location (the authority that signed the brokers' certificates), that bootstrap.servers has the names "
    "that are in them, and, if the brokers ask for one, ssl.certificate.location."
)

_FENCED_BROKERS = "fenced"
"""A word in the message of INVALID_REPLICATION_FACTOR if known brokers are down;
without it there are too few.
"""

CLIENT_ERRORS = (KafkaException, SystemError)
"""The exceptions of confluent-kafka.

A fatal error raised through one of our callbacks becomes the cause of a SystemError, or
is lost.
"""


def error_of(exception: BaseException) -> KafkaError:
    """Return the error in one of `CLIENT_ERRORS`; `_FATAL` if the client has lost the
    error.

    confluent-kafka then raises "returned NULL without setting an exception".
    """
    if isinstance(exception, SystemError):
        if not isinstance(exception.__cause__, KafkaException):
            return KafkaError(KafkaError._FATAL, str(exception))
        exception = exception.__cause__
    error = exception.args[0] if exception.args else None
    return (
        error
        if isinstance(error, KafkaError)
        else KafkaError(KafkaError._FAIL, str(exception))
    )


def heals(error: KafkaError, login: Login = NEEDS_NOTHING.login) -> bool:
    """Whether the same work may succeed later without any change by a user.

    `login`: the refused login, if the error is a refusal. A fatal error ends the
    client, not the work: a writer aborts with a new producer (seen: a broker that was
    killed and one that was paused left a producer's sequence numbers out of order; its
    worker ended).
    """
    if (
        error.code() == KafkaError.INVALID_REPLICATION_FACTOR
        and _FENCED_BROKERS in error.str()
    ):
        return True
    return error.code() not in FINAL or (login.by_token and error.code() in _LOGIN)


def refuses_records(error: KafkaError) -> bool:
    """Whether an error means that a record is not accepted as it is, or that its topic
    or partition does not exist.
    """
    return error.code() in _REFUSED | UNKNOWN


def translated(
    error: KafkaError,
    what: str,
    attempt: Attempt = NEEDS_NOTHING,
) -> LogError:
    """Return the exception of coopstreams for an error of librdkafka.

    `what` names the attempt in the message, with topic and partition if there is one.
    `attempt`: the operations that need ACLs.
    """
    code = error.code()
    text = f"{what}: {error.str()} ({error.name()})."
    if code in _LOGIN:
        denied = f"{text} {_CURE_LOGIN.format(attempt.login)}"
        return (
            LogError(denied, retryable=True)
            if attempt.login.by_token
            else AccessDeniedError(denied)
        )
    if code == KafkaError._SSL:
        return AccessDeniedError(f"{text} {_CURE_TLS}")
    if missing := attempt.missing(error.name()):
        return AccessDeniedError(f"{text} {missing}")
    if code in FENCED:
        return FencedError(
            f"{text} Another writer or a newer generation took over: abort, forget, open again from the log."
        )
    if code in OUT_OF_RANGE:
        return OffsetOutOfRangeError(
            f"{text} The log does not have this offset: records were deleted before they were processed (retention, or "
            "by hand), or it ends before it. The next start says what is lost; `coopstreams group reset` sets another "
            "position."
        )
    if code in _NOT_DELIVERED:
        return not_delivered(error, what, attempt)
    return LogError(f"{text} {_CURE.get(code, '')}".rstrip(), retryable=heals(error))


def not_delivered(
    error: KafkaError,
    what: str,
    attempt: Attempt = NEEDS_NOTHING,
) -> DeliveryError | AccessDeniedError:
    """Return the exception for a record that the broker refused.

    `what` names the attempt in the message. `attempt`: the operations that need ACLs.
    """
    cure = (
        _cure_unknown(what) if error.code() in UNKNOWN else _CURE.get(error.code(), "")
    )
    text = f"{what}: {error.str()} ({error.name()})."
    if missing := attempt.missing(error.name()):
        return AccessDeniedError(f"{text} {missing}")
    if (
        error.code() in _TIMED and COMMIT_TOPIC in what
    ):  # no record of the program is at fault
        return DeliveryError(f"{text} {_CURE_CLOCK}")
    text = f"{text} {cure}".rstrip()
    if error.code() in _REFUSED:
        return RefusedError(text)
    return DeliveryError(text, retryable=heals(error))


def cause_of(error: KafkaError, transaction: str) -> KafkaError:
    """Return the error that made a transaction fail, if `error` is only its
    consequence; otherwise `error`.

    `transaction`: the client's log line on the failed transaction, which ends with the
    name of the error.
    """
    code = code_in(transaction) if error.code() in CONSEQUENCES else None
    return KafkaError(code) if code in _NOT_DELIVERED else error


def made_again(make: Callable[[], T]) -> T:
    """Return a new client that replaces one with the same settings.

    Raises:
        LogError: retryable: it cannot be made now. The settings are good, so a file
            that they name is being exchanged.
    """
    try:
        return make()
    except ConfigError as error:
        raise LogError(str(error), retryable=True) from error


def unknown_topic(where: str) -> UnknownTopicError:
    """Return the exception for a topic or partition that does not exist."""
    return UnknownTopicError(f"Kafka has no {where}. {_cure_unknown(where)}")


def _cure_unknown(what: str) -> str:
    cure = "Create the topic first, or correct the name."
    if (
        "-changelog" in what or "-repartition" in what
    ):  # an empty one would hide what is lost
        cure += (
            " But if it is one of the application's own that was deleted, do not create it. The next start says what "
            "is lost, and the cures."
        )
    return cure


def away(
    servers: object,
    what: str,
    seconds: float,
    errors: ClientErrors,
) -> LogError:
    """Return the exception for a cluster that does not answer: with its address, the
    last error and what to check. If a quota throttles this client, the exception says
    that instead.
    """
    if errors.held_back:
        return LogError(
            f"{what}: not done after {seconds:g} s: {errors.held_back}",
            retryable=True,
        )
    last = f" The last thing heard: {errors.last.rstrip('.')}." if errors.last else ""
    return LogError(
        f"{what}: no Kafka broker at {servers} answered within {seconds:g} s.{last} "
        "Is it running there (`coopstreams dev` starts one here), are bootstrap.servers and security.protocol right, "
        "does a firewall let this host through?",
        retryable=errors.refused is None,
    )
