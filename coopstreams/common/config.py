"""Settings: Kafka's dotted names, checked before anything starts.

They come from a file, the environment and the command line (`setting_sources`).
Connection and security settings carry librdkafka's names and are given once, for all
clients (`security`). Any value may refer to a file or an environment variable
(`references`).

Invariant: a `Config` is complete and consistent, so no code beyond it has defaults.
A new setting is a row of `SETTINGS` and, by `python -m tests.docs.reference`, of
docs/reference/settings.md.
Turned down: an object with a class per client (a user copies dotted names from Kafka's
documentation).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from coopstreams.common.extractors import BY_NAME, FAIL, fail_on_invalid_timestamp
from coopstreams.common.name_suggestions import did_you_mean
from coopstreams.common.references import Secret, resolve, resolved
from coopstreams.common.security import Security, is_security
from coopstreams.common.setting_sources import flat, origin
from coopstreams.common.setting_values import (
    boolean,
    fraction,
    integer,
    one_of,
    positive_fraction,
    reachable,
    servers,
    static_id,
    text,
)
from coopstreams.topology.credentials import without_credentials
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.offset_resets import EARLIEST, parse_reset
from coopstreams.topology.graph.optimization import parse_optimization
from coopstreams.topology.keys import GROUPS
from coopstreams.topology.stores import store_type_of

log = logging.getLogger(__name__)

AT_LEAST_ONCE = "at_least_once"
EXACTLY_ONCE = "exactly_once_v2"
MOST_TOKENS = 8
"""The most tokens of a role, and of a request: instances send all of theirs."""
HANDLERS = ("fail", "continue", "dead-letter")


def handler(value: Any) -> Any:
    """Return a failure handler: one of `HANDLERS`, or a function, given as itself or as
    `package.module:function`.
    """
    if value in HANDLERS:
        return value
    return function(
        value,
        f"one of {', '.join(HANDLERS)}, or a function, package.module:function",
    )


def function(value: Any, expected: str = "a function, package.module:function") -> Any:
    """Return a function that is given as itself or as `package.module:function`."""
    if callable(value):
        return value
    module, colon, name = str(value).partition(":")
    if not colon:
        raise ValueError(expected)
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"a function that can be imported: {error}") from None
    if not callable(found):
        raise ValueError(f"a function; {value} is a {type(found).__name__}")
    return found


def _extractor(value: Any) -> Any:
    """Return `FAIL` or a timestamp extractor, which is given as itself, by its name in
    `BY_NAME`, or as `package.module:function`.
    """
    if value is fail_on_invalid_timestamp:
        return FAIL
    name = str(value).removeprefix("org.apache.kafka.streams.processor.")
    if name in BY_NAME:
        return BY_NAME[name]
    return function(
        value,
        f"{', '.join(BY_NAME)}, or a function, package.module:function",
    )


def _optimization(value: Any) -> str:
    parse_optimization(str(value))
    return str(value)


def _listen(value: Any) -> str:
    if value and (":" not in str(value) or not str(value).rpartition(":")[2].isdigit()):
        raise ValueError(
            "HOST:PORT (port 0 takes a free one), or an empty text for no server"
        )
    return str(value or "")


def _tokens(value: Any) -> tuple[str, ...]:
    """Return the bearer tokens (RFC 6750) of a text with commas between them."""
    tokens = tuple(Secret(token.strip()) for token in str(value).split(","))
    if len(tokens) > MOST_TOKENS:
        raise ValueError(f"at most {MOST_TOKENS} tokens, separated by commas")
    if not all(re.fullmatch(r"[A-Za-z0-9._~+/-]{16,}=*", token) for token in tokens):
        raise ValueError(
            "at least 16 letters, digits or -._~+/ (`openssl rand -hex 32` makes one); several separated by commas"
        )
    return tokens


def _hosts(value: Any) -> tuple[str, ...]:
    """Return the host names of a text with commas between them: names, `*`, or `*.` in
    front of a name.
    """
    names = tuple(name.strip().lower() for name in str(value).split(","))
    if not all(re.fullmatch(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*", name) for name in names):
        raise ValueError(
            "names of hosts without ports, separated by commas; `*.example.org` for all below a name, `*` for any"
        )
    return names


def _registry_url(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.startswith(("http://", "https://"))
        or "@" in value
    ):
        raise ValueError(
            "http(s)://HOST:PORT; credentials go into schema.registry.basic.auth.user.info"
        )
    return value


SETTINGS: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "bootstrap.servers": (
        servers,
        None,
        "The Kafka brokers, HOST:PORT separated by commas.",
    ),
    "application.id": (
        text,
        None,
        "The consumer group and the prefix of internal topics; the topology says it. If it is set, too, it must be the "
        "same.",
    ),
    "state.dir": (
        text,
        "coopstreams-state",
        "Folder of the local state, one sub-folder an application and instance.",
    ),
    "snapshots.dir": (
        text,
        None,
        "Folder or URL of published snapshots: state that is not in `state.dir` comes from there, not from changelogs.",
    ),
    "snapshots.interval.ms": (
        integer(1000),
        None,
        "Time between snapshots that the running application publishes at `snapshots.dir`: each process writes the state "
        "of its tasks that has changed. Default: it publishes none. The same in all processes.",
    ),
    "instance": (
        integer(0),
        0,
        "Number of this process among those that share `state.dir` on this host.",
    ),
    "group.instance.id": (
        static_id,
        None,
        "Makes this a static member of the group: started again within `session.timeout.ms`, it has its tasks again, and "
        "nothing moves. Each process needs an id of its own: `{instance}`, `{host}` and `{ordinal}` (the number at "
        "the end of the host's name, as of a StatefulSet) stand for what differs.",
    ),
    "default.dsl.store": (
        store_type_of,
        "rocksDB",
        "The engine of stores that name none: `rocksDB`; `in_memory`, restored from the changelogs at every start; "
        "or `package.module:Class`, an engine of yours.",
    ),
    "num.stream.threads": (
        integer(1, 64),
        1,
        "Threads that run tasks in one process: for functions that wait. Processes are for functions that compute.",
    ),
    "ranges.per.partition": (
        integer(1, GROUPS),
        1,
        "Least number of key ranges a partition is split into; more when threads outnumber partitions.",
    ),
    "allow.individual.commit": (
        boolean,
        True,
        "Whether partitions may be shared, and records that wait for calls let others pass. False: the application "
        "restricts itself as `accept.individual.commit=false` of the cluster does.",
    ),
    "num.standby.replicas": (
        integer(0, 100),
        0,
        "Standbys of each task with logged stores: other processes that follow its changelogs, and take it over without "
        "a long restore. On another `client.rack` than the owner's where there is one. The same in all processes.",
    ),
    "max.warmup.replicas": (
        integer(1),
        2,
        "Moves of tasks with logged stores that are prepared at a time: the process that is to get a partition's tasks "
        "restores them first, and their owner keeps them meanwhile.",
    ),
    "acceptable.recovery.lag": (
        integer(0),
        10_000,
        "Changelog records, over all stores of a task, with which a process may take it over. Tasks with no more move at "
        "once.",
    ),
    "ranges.before.windows": (
        boolean,
        False,
        "Whether partitions are split, too, whose records go through a repartition topic into joins, windows or other "
        "state that expires, and these have no clock. Ranges that read a backlog at different speeds make each other's "
        "records late there.",
    ),
    "repartition.idle.ms": (
        integer(1),
        5000,
        "Silence of a source partition in front of a repartition topic whose readers have a clock, after which the "
        "others' time counts for it, too: records that come later may be late.",
    ),
    "max.time.skew.ms": (
        integer(0),
        None,
        "How far a source partition in front of a repartition topic whose readers have a clock may be ahead of the "
        "slowest: above that it is not read on. Default: any distance. Then windows keep what comes in between, and "
        "what is taken in the order of births waits.",
    ),
    "time.mark.interval.ms": (
        integer(0),
        200,
        "Least time between two marks by which a task tells the readers of a repartition topic that have a clock how "
        "far its time has come.",
    ),
    "processing.guarantee": (
        one_of(AT_LEAST_ONCE, EXACTLY_ONCE),
        AT_LEAST_ONCE,
        "at_least_once or exactly_once_v2.",
    ),
    "commit.interval.ms": (
        integer(1),
        None,
        "Time between commits. Default 100 under exactly_once_v2, else 1000. State, outputs and queries move with "
        "commits.",
    ),
    "statestore.cache.max.bytes": (
        integer(0),
        64 << 20,
        "Record cache of one process. 0: every update of a table is forwarded by itself.",
    ),
    "max.bytes.key.range.cache": (
        integer(1 << 20),
        209_715_200,
        "Bound on records fetched but not yet processed, per process.",
    ),
    "auto.offset.reset": (
        parse_reset,
        EARLIEST,
        "Where a source without a position begins: `earliest`, `latest`, or `by_duration:PT1H` (ISO 8601), at the "
        "first record that is not older. `reset=` of a source takes its place.",
    ),
    "share.record.lock.duration.ms": (
        integer(1000),
        30_000,
        'With `order="none"`: for how long no other member gets a record. A setting of the share group; brokers take '
        "15 to 60 seconds unless told otherwise.",
    ),
    "max.task.idle.ms": (
        integer(-1),
        0,
        "How long a task with several sources waits for new records of one, from when it has read that to the end; "
        "meanwhile it takes none of the others. 0: only for what the broker has; -1: not at all.",
    ),
    "default.timestamp.extractor": (
        _extractor,
        FAIL,
        "The time of records whose source has no `timestamp=`. `FailOnInvalidTimestamp`: Kafka's; a negative one (none, "
        "or before 1970) fails. `LogAndSkipOnInvalidTimestamp` drops it, `UsePartitionTimeOnInvalidTimestamp` takes the "
        "partition's; `WallclockTimestampExtractor`, or package.module:function.",
    ),
    "metadata.max.age.ms": (
        integer(100),
        300_000,
        "Time between checks for new topics that match a pattern of the topology.",
    ),
    "ensure.explicit.internal.resource.naming": (
        boolean,
        False,
        "Refuse to start when an internal topic has a generated name.",
    ),
    "topology.optimization": (
        _optimization,
        "none",
        "`none`, `all`, or a list of `reuse.ktable.source.topics`, `single.store.self.join`, "
        "`merge.repartition.topics` (always done).",
    ),
    "topology.change.accepted": (
        text,
        None,
        "The word that a start was refused with because a new version of the topology loses or mixes state: this "
        "change may.",
    ),
    "replication.factor": (
        integer(-1),
        -1,
        "Replicas of internal topics; -1: the broker's default.",
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
    "max.poll.interval.ms": (
        integer(1000),
        300_000,
        "A stream thread that makes no progress for so long takes its process out of the group.",
    ),
    "transaction.timeout.ms": (
        integer(1000),
        15_000,
        "The broker aborts a transaction that is open for longer.",
    ),
    "max.revoke.delay.ms": (
        integer(0),
        60_000,
        "How long a task that moves to another process or ends with its own waits for its calls that are under way; "
        "those that take longer are made again.",
    ),
    "deserialization.exception.handler": (
        handler,
        "fail",
        "For records whose bytes do not parse: `fail`, `continue`, `dead-letter`, or package.module:function.",
    ),
    "processing.exception.handler": (
        handler,
        "fail",
        "For records on which a function of the topology raises, likewise.",
    ),
    "production.exception.handler": (
        handler,
        "fail",
        "For results that cannot be serialised, or that Kafka refuses, likewise.",
    ),
    "errors.dead.letter.queue.topic.name": (
        text,
        None,
        "Where `dead-letter` puts records, with headers that say why.",
    ),
    "http.listen": (
        _listen,
        "127.0.0.1:0",
        "HOST:PORT of the query server; port 0 takes a free one; empty: none.",
    ),
    "application.server": (
        reachable,
        None,
        "HOST:PORT or URL under which other instances reach the query server. Default: where it listens.",
    ),
    "http.allowed.hosts": (
        _hosts,
        None,
        "Names by which clients reach the query server without tokens or TLS, separated by commas; `*.example.org`; `*` "
        "any. Default: addresses, names without a dot, the names of the machine, of its Kubernetes namespace and of "
        "`application.server`.",
    ),
    "http.token.read": (
        _tokens,
        None,
        "Bearer token that queries of the state need; `old,new` while one replaces another. Default: anybody may ask.",
    ),
    "http.token.operate": (
        _tokens,
        None,
        "Likewise for status, metrics and the topology. Default: `http.token.read`.",
    ),
    "http.ssl.certificate.location": (
        text,
        None,
        "PEM file with the certificate of the query server and its chain: it answers over HTTPS.",
    ),
    "http.ssl.key.location": (
        text,
        None,
        "PEM file with the key. Default: it is in the file of the certificate.",
    ),
    "http.ssl.key.password": (text, None, "Password of that key."),
    "http.ssl.ca.location": (
        text,
        None,
        "PEM file with the authorities of the other instances' certificates. Default: the system's.",
    ),
    "http.ssl.client.auth": (
        one_of("none", "required"),
        "none",
        "`required`: who asks needs a certificate of `http.ssl.ca.location`; instances show their own.",
    ),
    "http.max.connections": (
        integer(8, 100_000),
        512,
        "The most connections to the query server at a time.",
    ),
    "http.cpu.share": (
        positive_fraction,
        None,
        "Of the time of one core, how much queries of the state may take while records wait. Default: no bound.",
    ),
    "processor.wrapper": (
        function,
        None,
        "A function, or package.module:function, that wraps each operator: see the guide on processors.",
    ),
    "tracing.ratio": (
        fraction,
        None,
        "OpenTelemetry: trace records with a sampled `traceparent`, and this share of those without. Default: none.",
    ),
    "schema.registry.url": (
        _registry_url,
        None,
        "The schema registry of `serdes.avro`, `protobuf` and `json_schema`, with Confluent's REST interface. A "
        "topology with schemas needs it.",
    ),
    "schema.registry.basic.auth.user.info": (
        text,
        None,
        "USER:PASSWORD for the registry.",
    ),
    "schema.registry.ssl.ca.location": (
        text,
        None,
        "PEM file with the authorities of the registry's certificate. Default: those that come with Python's certifi.",
    ),
    "schema.registry.ssl.certificate.location": (
        text,
        None,
        "PEM file with this process's certificate for it.",
    ),
    "schema.registry.ssl.key.location": (
        text,
        None,
        "PEM file with the key of that certificate.",
    ),
    "schema.registry.ssl.key.password": (text, None, "Password of that key."),
    "auto.register.schemas": (
        boolean,
        True,
        "Whether schemas that the application writes are registered at start; false: they must be there.",
    ),
    "subject.name.strategy": (
        one_of("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"),
        "TopicNameStrategy",
        "The subject of a schema: TOPIC-key and TOPIC-value, the record's name, or TOPIC-NAME.",
    ),
    "windowstore.changelog.additional.retention.ms": (
        integer(0),
        24 * 60 * 60 * 1000,
        "How much longer than its store a changelog of windows keeps records, in stream time.",
    ),
    "repartition.purge.interval.ms": (
        integer(1000),
        30_000,
        "Time between deletions of repartition records that are done, and of expired windows from changelogs.",
    ),
    "connect.timeout.ms": (
        integer(1000),
        60_000,
        "How long to look for the brokers at start before giving up.",
    ),
}
"""Every setting of coopstreams: its parser, its default, its meaning."""

_PASSED_ON = (
    "consumer.",
    "producer.",
    "admin.",
    "socket.",
    "client.",
    "broker.",
    "metadata.",
    "topic.metadata.",
    "reconnect.",
)
"""Prefixes of the settings of connections and of single clients, which are passed on to
librdkafka. So are security settings.
"""


@dataclass(frozen=True, slots=True)
class Config:
    """Checked settings.

    Shape: `values` has every name of `SETTINGS`; `client` has the settings of the Kafka
    clients, in librdkafka's names.
    """

    values: Mapping[str, Any]
    client: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def exactly_once(self) -> bool:
        """Whether processing is exactly-once; else it is at-least-once."""
        return bool(self.values["processing.guarantee"] == EXACTLY_ONCE)

    @property
    def extractor(self) -> Callable[..., Any] | None:
        """The timestamp extractor of sources that name none; None: they keep Kafka's
        timestamps, and a negative one fails.
        """
        extractor = self.values["default.timestamp.extractor"]
        return extractor if callable(extractor) else None

    @property
    def commit_interval_s(self) -> float:
        """The seconds between commits."""
        return float(self.values["commit.interval.ms"]) / 1000

    def ends_s(self, *, calls: bool) -> float:
        """Return the longest time that a process needs to end in good order. `calls`: its
        program has asynchronous operators. Units: seconds.
        """
        waits_ms = self.values["max.revoke.delay.ms"] if calls else 0
        return float(self.values["transaction.timeout.ms"] + waits_ms) / 1000

    def static_member(self, host: str) -> str | None:
        """Return the id of the process on a host as a static member of its group; None:
        it is not static.

        Raises:
            ConfigError: the id needs the host's ordinal, and the host's name ends
                without a number.
        """
        pattern = self.values["group.instance.id"]
        if pattern is None:
            return None
        ordinal = re.search(r"\d+$", host)
        if "{ordinal}" in pattern and ordinal is None:
            raise ConfigError(
                f'group.instance.id "{pattern}" has the number at the end of the host\'s name, and "{host}" ends without '
                "one. Use {instance} or {host}, or name the process."
            )
        return str(
            pattern.format(
                instance=self.values["instance"],
                host=host,
                ordinal=ordinal and ordinal[0],
            )
        )

    @staticmethod
    def of(
        settings: Config | Mapping[str, Any],
        application_id: str | None = None,
    ) -> Config:
        """Return the checked settings, with defaults for those that are missing.
        `application_id`: the topology's.

        Shape: dotted names, or tables that nest into them, as `tomllib` reads a file.

        Raises:
            ConfigError: an unknown name (the message suggests the nearest), an invalid
                value, or two values that contradict each other.
        """
        if isinstance(settings, Config):
            _check_application(settings["application.id"], application_id)
            return settings
        values, client = _read_all(flat(settings))
        if values["bootstrap.servers"] is None:
            raise ConfigError(
                "bootstrap.servers is not set: say where Kafka is (--bootstrap-servers HOST:PORT), or start one with "
                "`coopstreams dev`"
            )
        client["bootstrap.servers"] = values["bootstrap.servers"]
        check_security(client)
        _check_application(values["application.id"], application_id)
        values["application.id"] = values["application.id"] or application_id
        if values["application.id"] is not None:
            # librdkafka asks for the coordinator of a reader's group, and an ACL may
            # allow this one only.
            client.setdefault("consumer.group.id", values["application.id"])
        _check_together(values)
        if values["commit.interval.ms"] is None:
            values["commit.interval.ms"] = (
                100 if values["processing.guarantee"] == EXACTLY_ONCE else 1000
            )
        return Config(values, client)


def _read_all(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of all settings of coopstreams, and the settings of clients."""
    values = {name: default for name, (_, default, _) in SETTINGS.items()}
    client: dict[str, Any] = {}
    for name, value in resolved(settings).items():
        if name in SETTINGS:
            values[name] = _read(name, value, origin(settings, name))
        elif name.startswith(_PASSED_ON) or is_security(name):
            client[name] = value
        else:
            near = did_you_mean(name, SETTINGS) or "."
            raise ConfigError(
                f'unknown setting "{name}"{origin(settings, name)}{near} Settings of one client carry its prefix: '
                "consumer., producer., admin."
            )
    return values, client


def http_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked `http.*` settings with defaults, for a command that queries an
    application.

    Raises:
        ConfigError: an invalid value.
    """
    values = {
        name: default
        for name, (_, default, _) in SETTINGS.items()
        if name.startswith("http.")
    }
    given = settings.keys() & values.keys()
    return values | {
        name: _read(name, resolve(settings, name), origin(settings, name))
        for name in given
    }


def check_heartbeat(values: Mapping[str, Any]) -> None:
    """Check that the session survives a lost heartbeat.

    Raises:
        ConfigError: the heartbeat interval is too long for the session time-out.
    """
    if values["heartbeat.interval.ms"] * 3 > values["session.timeout.ms"]:
        raise ConfigError(
            "heartbeat.interval.ms must be at most a third of session.timeout.ms, or one lost heartbeat costs the "
            "membership"
        )


def check_security(client: Mapping[str, Any]) -> None:
    """Check that all clients can use the security settings; log warnings of insecure
    combinations.

    Raises:
        ConfigError: a value cannot work, or is missing.
    """
    for warning in Security.of(client).warnings:
        log.warning(warning)


def _check_application(given: str | None, of_topology: str | None) -> None:
    """Check that the application id of the settings is the topology's, which is in the
    names of its internal topics.
    """
    if given is not None and of_topology is not None and given != of_topology:
        raise ConfigError(
            f'application.id is "{given}", but the topology was built as "{of_topology}", and its internal topics are '
            "named so. "
            f'Leave the setting out, or build the topology with StreamsBuilder("{given}")'
        )


def check_http(values: Mapping[str, Any]) -> None:
    """Check that the settings on access over HTTP fit each other.

    Raises:
        ConfigError: they contradict each other, or leave access unprotected that needs
        a token or certificate.
    """
    if values["http.token.operate"] and not values["http.token.read"]:
        raise ConfigError(
            "http.token.operate is set and http.token.read is not: anybody could read the state. Set both"
        )
    needed = {"http.ssl.key.location", "http.ssl.key.password", "http.ssl.ca.location"}
    given = sorted(name for name in needed if values[name])
    if values["http.ssl.client.auth"] == "required":
        given.append("http.ssl.client.auth")
        if not values["http.ssl.ca.location"]:
            raise ConfigError(
                "http.ssl.client.auth = required: whose certificates? Set http.ssl.ca.location"
            )
    if given and not values["http.ssl.certificate.location"]:
        raise ConfigError(
            f"{', '.join(given)}: without http.ssl.certificate.location, queries are not encrypted"
        )


def _check_together(values: Mapping[str, Any]) -> None:
    check_heartbeat(values)
    check_http(values)
    handlers = [
        f"{phase}.exception.handler"
        for phase in ("deserialization", "processing", "production")
    ]
    if (
        any(values[h] == "dead-letter" for h in handlers)
        and values["errors.dead.letter.queue.topic.name"] is None
    ):
        raise ConfigError(
            "a handler says dead-letter, but errors.dead.letter.queue.topic.name is not set: name the topic"
        )
    if values["snapshots.interval.ms"] and values["snapshots.dir"] is None:
        raise ConfigError(
            "snapshots.interval.ms is set and snapshots.dir is not: say where the snapshots go"
        )
    interval = values["commit.interval.ms"]
    if (
        values["processing.guarantee"] == EXACTLY_ONCE
        and interval is not None
        and interval * 2 > values["transaction.timeout.ms"]
    ):
        raise ConfigError(
            "commit.interval.ms must be at most half of transaction.timeout.ms, or the broker aborts transactions that "
            "are still wanted"
        )


def _read(
    name: str,
    value: Any,
    where_from: str,
) -> Any:
    try:
        return SETTINGS[name][0](value)
    except (ValueError, TypeError) as error:
        given = without_credentials(value) if type(value) is str else value
        raise ConfigError(f"{name} = {given!r}{where_from}: must be {error}") from None
