"""Settings of the Kafka clients: given once, in librdkafka's names, with defaults
chosen for speed and safety.

A name with a prefix (`consumer.`, `producer.`, `admin.`) is for that client only and
wins over the plain one, which wins over the defaults here. Settings that correctness
depends on cannot be given.

Invariant: no client is a member of the group, commits by itself, chooses an offset, or
partitions differently from Java.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from confluent_kafka import KafkaError, ThrottleEvent

from coopstreams.common.acl_errors import Login
from coopstreams.common.security import Security, is_security
from coopstreams.log.kafka import outage
from coopstreams.topology.errors import ConfigError, LogError

Kind = Literal["consumer", "producer", "admin"]

logger = logging.getLogger(__name__)

_EVERYWHERE: dict[str, Any] = {
    "client.id": "coopstreams",
    "socket.nagle.disable": True,  # as the Java client: small requests are sent at once
    "socket.keepalive.enable": True,
    # Rebootstrapping forgets the transaction coordinator and never looks for it again:
    # after a broker's restart, one abort in twenty hung for 30 s; without it none of
    # fifty (measured). A client without brokers is replaced by its reader, writer or
    # log.
    "metadata.recovery.strategy": "none",
    # A broker that hangs holds a request for this long; by then, its partitions have
    # another leader (broker.session.timeout.ms: 9 s).
    "socket.timeout.ms": 10_000,
    # A client without a request under way at a lost broker learns of the new leader
    # from this alone. It is a hundredth of a reader's requests.
    "topic.metadata.refresh.interval.ms": 1_000,
    # a broker that comes back is found within a second, not ten
    "reconnect.backoff.max.ms": 1_000,
    "log.connection.close": False,
}
_DEFAULTS: dict[Kind, dict[str, Any]] = {
    "consumer": {
        "group.id": "coopstreams",  # librdkafka requires one; it is never joined
        # with 1000, the default, the next fetch waits that long once the queue is empty
        "fetch.queue.backoff.ms": 2,
        "queued.min.messages": 200_000,
        "queued.max.messages.kbytes": 262_144,
        "fetch.message.max.bytes": 8 << 20,
        # A partition that is assigned or sought waits for the running fetch, and its
        # end is reported by an empty one. Once all partitions have ended, native
        # fetches are longer (native/src/pace.rs).
        "fetch.wait.max.ms": 10,
        "fetch.error.backoff.ms": 100,
        "topic.metadata.propagation.max.ms": 10_000,
    },
    "producer": {
        "linger.ms": 5,
        # Requests to a lost broker, also for metadata, move to others before its
        # partitions have another leader. And a request to a living leader that waits
        # until that broker is out of sync (9 s as well) is repeated, not given up just
        # before its answer.
        "socket.timeout.ms": 6_000,
        # the first request after a commit waits for it: 100, the default, costs 100 ms
        # a transaction (measured)
        "retry.backoff.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 524_288,
        "topic.metadata.propagation.max.ms": 10_000,
        "allow.auto.create.topics": False,
    },
    "admin": {"allow.auto.create.topics": False},
}
_OURS: dict[Kind, dict[str, Any]] = {
    "consumer": {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    },
    "producer": {"enable.idempotence": True, "partitioner": "murmur2_random"},
    "admin": {},
}
_NEVER = {
    "transactional.id",
    "isolation.level",
    "delivery.report.only.error",
    "group.instance.id",
    "enable.gapless.guarantee",
    "acks",
    "request.required.acks",
}
_PREFIXES = ("consumer.", "producer.", "admin.")

TRANSACTION_TIMEOUT_MS = 15_000
LONGEST_TRANSACTION_MS = 900_000
"""The longest transaction that brokers allow by default: `transaction.max.timeout.ms`.
"""
REPEAT_S = 60.0
HELD_BACK_S = 1.0
"""The shortest throttle time of a request that is logged."""
_FATAL = "Fatal transaction error"
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"
"""A part of an error that librdkafka reports as refused credentials, although no broker
was asked: the source of tokens may answer later.
"""
AWAY = frozenset({"FAIL", "REQTMOUT"})
"""Facilities in librdkafka's log that report brokers which are unreachable or do not
answer.
"""


def login_of(settings: Mapping[str, Any]) -> Login:
    """Return the login of clients with these settings."""
    return Security.of(settings).login


def client_settings(settings: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the settings of one kind of client.

    Raises:
        ConfigError: a setting that correctness depends on is given: remove it. Or a
            security setting cannot be used.
    """
    if "bootstrap.servers" not in settings:
        raise ConfigError(
            '"bootstrap.servers" is missing: say where Kafka is, as HOST:PORT, separated by commas'
        )
    security = Security.of(settings)
    settings = {
        name: value for name, value in settings.items() if not is_security(name)
    }
    plain = {
        name: value
        for name, value in settings.items()
        if not name.startswith(_PREFIXES)
    }
    own = {
        name.removeprefix(f"{kind}."): value
        for name, value in settings.items()
        if name.startswith(f"{kind}.")
    }
    fixed = _NEVER | _OURS["consumer"].keys() | _OURS["producer"].keys()
    if refused := sorted(fixed & (plain.keys() | own.keys())):
        raise ConfigError(
            f"{', '.join(refused)}: coopstreams sets this itself, for exactly-once and for key ranges. Take it out of "
            "the settings."
        )
    return (
        _EVERYWHERE
        | _DEFAULTS[kind]
        | plain
        | own
        | security.librdkafka()
        | _OURS[kind]
    )


def consumer_settings(
    settings: Mapping[str, Any],
    *,
    committed_only: bool,
) -> dict[str, Any]:
    """Return librdkafka's settings for a reader. `committed_only`: whether it gets
    committed records only (`read_committed`), or those of open and aborted transactions
    as well.
    """
    return client_settings(settings, "consumer") | {
        "isolation.level": "read_committed" if committed_only else "read_uncommitted"
    }


def producer_settings(
    settings: Mapping[str, Any],
    transactional_id: str | None,
) -> dict[str, Any]:
    """Return the settings of a writer. Delivery of a record times out no later than its
    transaction.
    """
    found = client_settings(settings, "producer")
    found.pop("group.id", None)
    timeout_ms = int(found.pop("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
    if transactional_id is None:
        # Call back for failures only; without a callback they would be dropped
        # silently.
        return found | {"delivery.report.only.error": True}
    found["message.timeout.ms"] = min(
        int(
            found.pop(
                "delivery.timeout.ms",
                found.get("message.timeout.ms", timeout_ms),
            )
        ),
        timeout_ms,
    )
    found["socket.timeout.ms"] = min(
        int(found["socket.timeout.ms"]),
        timeout_ms,
    )  # librdkafka refuses a longer one
    return found | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
    }


class ClientErrors:
    """The errors that a client has reported, for messages. It is the client's
    `error_cb` and its logger.

    After a fatal error the client's next call raises, but may lose the error itself
    (see `kafka_errors.error_of`). The log of a transactional producer has it, one line
    before.
    """

    def __init__(self, login: Login) -> None:
        self.login = login
        """The client's login."""
        self.fatal: KafkaError | None = None
        """The error that made the client unusable; None: it is usable."""
        self.refused: KafkaError | None = None
        """The error by which the broker rejected the credentials, which waiting does
        not cure.
        """
        self.shut_out: KafkaError | None = None
        """The error of TLS, or of a login with a token. It is final at the start; later
        a new token may succeed.
        """
        self.transaction = ""
        """The log line on the error that made the transaction fail. Later calls report
        only the consequence.
        """
        self._last: KafkaError | None = None
        self._said: dict[str, float] = {}
        self._held_back = 0.0, float("-inf")
        """For how long (s) brokers throttled this client, and when they said so
        (`time.monotonic`).
        """

    def __call__(self, error: KafkaError) -> None:
        """Keep an error. librdkafka calls this while the client is polled."""
        if error.code() == KafkaError._AUTHENTICATION and not self.login.by_token:
            self.refused = error
        elif error.code() == KafkaError._SSL or (
            error.code() == KafkaError._AUTHENTICATION and _NO_TOKEN not in error.str()
        ):
            self.shut_out = error
        if (
            error.code() != KafkaError._ALL_BROKERS_DOWN
        ):  # the error before it is more specific
            self._last = error

    def log(
        self,
        level: int,
        text: str,
        facility: str,
        client: str,
        said: str,
    ) -> None:
        """Log a line of librdkafka. All clients report the same outages: `outage` logs
        one line for all.

        Repeated lines, retries, and errors that a transaction's exceptions carry as
        well are logged at debug level.
        """
        what = said.partition(" (after ")[0]
        now = time.monotonic()
        repeated = now - self._said.get(what, -REPEAT_S) < REPEAT_S
        if not repeated:
            self._said[what] = now
        if facility in AWAY:
            outage.heard(said)
        quiet = (
            repeated
            or facility in AWAY
            or facility == "TXNERR"
            or said.endswith(": retrying")
        )
        logger.log(logging.DEBUG if quiet else level, text, facility, client, said)
        if facility == "TXNERR":
            line = said.partition("]: ")[2]
            self.transaction = self.transaction or line
            if line.startswith(_FATAL):
                self.fatal = KafkaError(code_in(line) or KafkaError._FATAL, fatal=True)

    def throttled(self, event: ThrottleEvent) -> None:
        """Note that a broker throttles this client. librdkafka calls this while the
        client is polled.
        """
        if event.throttle_time < HELD_BACK_S:
            return
        now = time.monotonic()
        told = self.held_back
        self._held_back = event.throttle_time, now
        if not told:
            logger.warning("%s", self.held_back)

    @property
    def held_back(self) -> str:
        """A message that a quota throttles this client; empty: none did lately."""
        seconds, at = self._held_back
        if time.monotonic() - at > max(seconds, REPEAT_S):
            return ""
        return (
            f"the brokers hold this process back ({seconds:.0f} s for its last request): a quota of its user or "
            "client.id (producer_byte_rate, request_percentage) is less than it needs; have that raised"
        )

    @property
    def last(self) -> str:
        """The text of the last error; empty if there was none."""
        return "" if self._last is None else self._last.str()


def code_in(line: str) -> int | None:
    """Return the error code whose name, in brackets, ends a line of librdkafka's log on
    a transaction; None: no code has that name.
    """
    code: int | None = getattr(KafkaError, line.rpartition("(")[2].rstrip(")"), None)
    return code


def make_client(
    make: Callable[[dict[str, Any]], Any],
    settings: dict[str, Any],
    errors: ClientErrors,
) -> Any:
    """Return a client of confluent-kafka. `make`: its class.

    Raises:
        ConfigError: librdkafka does not know a setting, or refuses its value.
        LogError: retryable: there is no token to log in with.
    """
    try:
        return make(settings | {"error_cb": errors, "logger": errors})
    except SystemError as error:
        # confluent-kafka has waited for a first token, and does not report why there is
        # none
        raise LogError(
            f"no token for OAUTHBEARER: {_why_no_token(settings)}",
            retryable=True,
        ) from error
    except (
        Exception
    ) as error:  # KafkaException, ValueError or TypeError, depending on the setting
        raise ConfigError(
            f"the Kafka client refuses its settings: {error}. The names are librdkafka's: see its CONFIGURATION.md"
        ) from error


def _why_no_token(settings: Mapping[str, Any]) -> str:
    try:
        settings["oauth_cb"]("")
    except Exception as error:  # noqa: BLE001 a user's function may raise anything
        return str(error)
    return "oauth_cb took too long"
