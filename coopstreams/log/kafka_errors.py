"""What librdkafka's errors mean to us: fenced, not delivered, gone, unknown, or something that heals.

Invariant: each message says what was tried, what Kafka answered, and what to do; nobody above this file sees a code of librdkafka.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from coopstreams.log.kafka_settings import ClientErrors
from coopstreams.topology.errors import DeliveryError, FencedError, LogError, OffsetOutOfRangeError, UnknownTopicError

FENCED = frozenset({
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
})  # fmt: skip
UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_ID})
OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
AWAY = frozenset({
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
})  # fmt: skip
"""Nobody answered in time. Asking again may help."""
_NOT_DELIVERED = UNKNOWN | frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
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
    KafkaError.MSG_SIZE_TOO_LARGE: "Raise the topic's max.message.bytes and producer.message.max.bytes, or write less.",
    KafkaError.RECORD_LIST_TOO_LARGE: "Raise the topic's segment.bytes, or lower producer.batch.size.",
    KafkaError.INVALID_TIMESTAMP: "Its timestamp is too far in the future or the past: see the topic's message.timestamp.after.max.ms and before.max.ms.",
    KafkaError.INVALID_RECORD: "A compacted topic takes no record without a key.",
    KafkaError._MSG_TIMED_OUT: "No broker took it in time: is Kafka up, and has the partition a leader?",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Ask for the WRITE or READ permission on it.",
    KafkaError.NOT_ENOUGH_REPLICAS: "Too few replicas of the partition are up for min.insync.replicas.",
}


CLIENT_ERRORS = (KafkaException, SystemError)
"""What confluent-kafka raises. A fatal error that meets one of our callbacks on its way becomes the cause of a SystemError, or is lost."""


def error_of(exception: BaseException) -> KafkaError:
    """Return the error that one of `CLIENT_ERRORS` carries: `_FATAL` if it was lost ("returned NULL without setting an exception")."""
    if isinstance(exception, SystemError):
        if not isinstance(exception.__cause__, KafkaException):
            return KafkaError(KafkaError._FATAL, str(exception))
        exception = exception.__cause__
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))


def heals(error: KafkaError) -> bool:
    """Whether the same call may succeed later without anybody changing anything."""
    return bool(error.retriable() or error.code() in AWAY) and not error.fatal()


def translated(error: KafkaError, what: str) -> LogError:
    """Return our exception for an error; `what` says what was tried, with the topic and partition if there is one."""
    code = error.code()
    text = f"{what}: {error.str()} ({error.name()})."
    if code in FENCED:
        return FencedError(f"{text} Another writer or a newer generation took over: abort, forget, open again from the log.")
    if code in OUT_OF_RANGE:
        return OffsetOutOfRangeError(f"{text} The log no longer has this offset: begin at its start, its end, or the group's last commit.")
    if code in _NOT_DELIVERED:
        return not_delivered(error, what)
    return LogError(text, retryable=heals(error))


def not_delivered(error: KafkaError, what: str) -> DeliveryError:
    """Return the exception for a record that the broker did not take."""
    cure = "Create the topic first, or correct the name." if error.code() in UNKNOWN else _CURE.get(error.code(), "")
    return DeliveryError(f"{what}: {error.str()} ({error.name()}). {cure}".rstrip(), retryable=error.code() == KafkaError._MSG_TIMED_OUT)


def unknown_topic(where: str) -> UnknownTopicError:
    """Return the exception for a topic or partition that is asked for and not there."""
    return UnknownTopicError(f"Kafka has no {where}. Create the topic first, or correct the name.")


def away(servers: object, what: str, seconds: float, errors: ClientErrors) -> LogError:
    """Return the exception for a cluster that does not answer: who was asked, what was the last thing heard, what to look at."""
    last = f" The last thing heard: {errors.last}." if errors.last else ""
    return LogError(
        f"{what}: no Kafka broker at {servers} answered within {seconds:g} s.{last} "
        "Is it running there (`coopstreams dev` starts one here), are bootstrap.servers and security.protocol right, does a firewall let this host through?",
        retryable=errors.refused is None,
    )
