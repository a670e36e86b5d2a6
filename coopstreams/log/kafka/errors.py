"""What librdkafka's errors mean to us: fenced, not delivered, gone, unknown, final, or something that heals.

An error heals unless it is named here as final: what a broker says while it dies, starts or moves leaders is no list
that could be complete, and a process that ends because of one of them is worse than one that asks once more until its
time is over.

Invariant: each message says what was tried, what Kafka answered, and what to do; nobody above this file sees a code of
librdkafka.
Turned down: a list of what heals (`_DESTROY_BROKER` was not on it: three of three workers ended because one broker was
down).
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from coopstreams.log.kafka.settings import ClientErrors
from coopstreams.topology.errors import (
    DeliveryError,
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    RefusedError,
    UnknownTopicError,
)

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
OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
_REFUSED = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError._INVALID_DIFFERENT_RECORD,
})  # fmt: skip
"""For what is in a batch. Which of its records it was, the client does not know: it gives most of them the same code
(measured).
"""
FINAL = FENCED | UNKNOWN | OUT_OF_RANGE | _REFUSED | frozenset({
    # who we are, and what we may do
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
    # what these brokers do not know, or do not allow
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
    # records that nobody can read
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    # a client that was used wrongly, or is of no use any more
    KafkaError._FATAL,
    KafkaError._INVALID_ARG,
    KafkaError._INVALID_TYPE,
    KafkaError._NOT_CONFIGURED,
    KafkaError._READ_ONLY,
    KafkaError._STATE,
    KafkaError._UNKNOWN_PROTOCOL,
})  # fmt: skip
"""What asking again does not cure: somebody must change something. Everything else heals."""
CONSEQUENCES = frozenset({KafkaError._STATE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""What is said of whatever comes after a record that made its transaction fail."""
_NOT_DELIVERED = UNKNOWN | _REFUSED | frozenset({
    KafkaError.POLICY_VIOLATION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,  # the record after one that was refused
    KafkaError._MSG_TIMED_OUT,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
})  # fmt: skip
_CURE = {
    KafkaError.MSG_SIZE_TOO_LARGE: "A record, or a batch (producer.batch.size), has more bytes than the topic's "
    "max.message.bytes or "
    "producer.message.max.bytes: raise these, lower producer.batch.size, or write less.",
    KafkaError.RECORD_LIST_TOO_LARGE: "Raise the topic's segment.bytes, or lower producer.batch.size.",
    KafkaError.INVALID_TIMESTAMP: "Its timestamp is too far in the future or the past: see the topic's "
    "message.timestamp.after.max.ms and before.max.ms.",
    KafkaError.INVALID_RECORD: "A record of the batch has a timestamp too far in the future or the past (the topic's "
    "message.timestamp.after.max.ms "
    "and before.max.ms), or no key although the topic is compacted, or the broker checks more than that: its log says "
    "what.",
    KafkaError._INVALID_DIFFERENT_RECORD: "Another record of the batch was refused: see the topic's "
    "message.timestamp.after.max.ms and cleanup.policy.",
    KafkaError._MSG_TIMED_OUT: "No broker took it in time: is Kafka up, and has the partition a leader?",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Ask for the WRITE or READ permission on it.",
    KafkaError.NOT_ENOUGH_REPLICAS: "Too few replicas of the partition are up for min.insync.replicas.",
}


_FENCED_BROKERS = "fenced"
"""In the message of INVALID_REPLICATION_FACTOR: brokers that are known and at present away; else there never were
enough.
"""

CLIENT_ERRORS = (KafkaException, SystemError)
"""What confluent-kafka raises. A fatal error that meets one of our callbacks on its way becomes the cause of a
SystemError, or is lost.
"""


def error_of(exception: BaseException) -> KafkaError:
    """Return the error that one of `CLIENT_ERRORS` carries: `_FATAL` if it was lost ("returned NULL without setting an
    exception").
    """
    if isinstance(exception, SystemError):
        if not isinstance(exception.__cause__, KafkaException):
            return KafkaError(KafkaError._FATAL, str(exception))
        exception = exception.__cause__
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))


def heals(error: KafkaError) -> bool:
    """Whether the same call may succeed later without anybody changing anything."""
    if error.code() == KafkaError.INVALID_REPLICATION_FACTOR and _FENCED_BROKERS in error.str():
        return True
    return error.code() not in FINAL and not error.fatal()


def translated(error: KafkaError, what: str) -> LogError:
    """Return our exception for an error; `what` says what was tried, with the topic and partition if there is one."""
    code = error.code()
    text = f"{what}: {error.str()} ({error.name()})."
    if code in FENCED:
        return FencedError(
            f"{text} Another writer or a newer generation took over: abort, forget, open again from the log."
        )
    if code in OUT_OF_RANGE:
        return OffsetOutOfRangeError(
            f"{text} The log no longer has this offset: begin at its start, its end, or the group's last commit."
        )
    if code in _NOT_DELIVERED:
        return not_delivered(error, what)
    return LogError(text, retryable=heals(error))


def not_delivered(error: KafkaError, what: str) -> DeliveryError:
    """Return the exception for a record that the broker did not take."""
    cure = "Create the topic first, or correct the name." if error.code() in UNKNOWN else _CURE.get(error.code(), "")
    text = f"{what}: {error.str()} ({error.name()}). {cure}".rstrip()
    if error.code() in _REFUSED:
        return RefusedError(text)
    return DeliveryError(text, retryable=heals(error))


def cause_of(error: KafkaError, transaction: str) -> KafkaError:
    """Return what made a transaction fail, where this error only says that it has. `transaction`: what the client
    logged of it, its name last.
    """
    code = (
        getattr(KafkaError, transaction.rpartition("(")[2].rstrip(")"), None) if error.code() in CONSEQUENCES else None
    )
    return KafkaError(code) if code in _NOT_DELIVERED else error


def unknown_topic(where: str) -> UnknownTopicError:
    """Return the exception for a topic or partition that is asked for and not there."""
    return UnknownTopicError(f"Kafka has no {where}. Create the topic first, or correct the name.")


def away(servers: object, what: str, seconds: float, errors: ClientErrors) -> LogError:
    """Return the exception for a cluster that does not answer: who was asked, what was the last thing heard, what to
    look at.
    """
    last = f" The last thing heard: {errors.last}." if errors.last else ""
    return LogError(
        f"{what}: no Kafka broker at {servers} answered within {seconds:g} s.{last} "
        "Is it running there (`coopstreams dev` starts one here), are bootstrap.servers and security.protocol right, "
        "does a firewall let this host through?",
        retryable=errors.refused is None,
    )
