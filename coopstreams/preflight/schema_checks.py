"""The schemas of an application: finds their subjects and checks their compatibility
before the first record.

Invariant: while an application runs, all its serdes are bound to its registry. In a
test driver they are bound to the registry in memory. (A schema id of the registry in
memory, written to a topic, would mean another schema there.)
Relies on: `topology.schemas` (binding), `compatibility` (which schemas fit).
Source: Confluent's subject name strategies. As in Kafka Streams, internal topics have
subjects, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from coopstreams.common.config import Config
from coopstreams.log.kafka.schema_registry import registry_of
from coopstreams.topology.errors import ConfigError, LogError, SerdeError
from coopstreams.topology.graph.aggregate_nodes import Suppress
from coopstreams.topology.graph.join_nodes import ForeignKeyAnswer, ForeignKeyAsk
from coopstreams.topology.graph.nodes import (
    DynamicSink,
    Sink,
    Source,
    Structure,
)
from coopstreams.topology.naming import changelog_topic
from coopstreams.topology.schemas import (
    IN_MEMORY,
    Codec,
    RegistryUnavailableError,
    SchemaRegistry,
    SchemaSerde,
)
from coopstreams.topology.serde import Serde, within

S = TypeVar("S", bound=Structure)


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A schema of the keys or of the values (`part`) of a topic.

    `topic` None: a function chooses the topic of each record. `written`: whether the
    application writes such records.
    """

    topic: str | None
    part: Literal["key", "value"]
    codec: Codec
    written: bool

    def subject(self, strategy: str) -> str:
        """Return the subject of the schema in the registry. If a function chooses the
        topic, the subject is the schema's name.
        """
        if self.topic is None or strategy == "RecordNameStrategy":
            return self.codec.name
        return f"{self.topic}-{self.codec.name if strategy == 'TopicRecordNameStrategy' else self.part}"

    def __str__(self) -> str:
        topic = (
            "topics that a function chooses"
            if self.topic is None
            else f'topic "{self.topic}"'
        )
        return f"the {self.part}s of {topic}"


def schema_uses(topology: Structure) -> list[SchemaUse]:
    """Return all uses of schemas in a topology."""
    found: list[SchemaUse] = []
    for topic, key, value, written in _places(topology):
        found += [SchemaUse(topic, "key", codec, written) for codec in _codecs(key)]
        found += [SchemaUse(topic, "value", codec, written) for codec in _codecs(value)]
    known = {use.codec for use in found if use.written}
    found += [
        SchemaUse(topic, "value", codec, written=True)
        for topic, serde in _wrapped(topology)
        for codec in _codecs(serde)
        if codec not in known
    ]
    return list(dict.fromkeys(found))


def _places(
    topology: Structure,
) -> Iterator[tuple[str | None, Serde[Any], Serde[Any], bool]]:
    """Yield the topics of a topology with their serdes of keys and values, and whether
    the application writes them. Topic None: a function chooses it.
    """
    for node in topology.nodes:
        if isinstance(node, Source) and not node.internal:
            for topic in node.topics:
                yield topic, node.key, node.value, False
        elif isinstance(node, Sink):
            yield node.topic, node.key, node.value, True
        elif isinstance(node, DynamicSink):
            yield None, node.key, node.value, True
    for store in topology.stores:
        if store.logged and store.source is None:
            changelog = changelog_topic(topology.application_id, store.name)
            yield changelog, store.key, store.value, True
    for table in topology.global_tables:
        reader = table.update or table.store
        yield table.topic, reader.key, reader.value, False


def _wrapped(topology: Structure) -> Iterator[tuple[str, Serde[Any]]]:
    """Yield internal topics whose values contain other values, with the serdes of the
    inner values.

    These are the rows that a suppression holds, and the right rows in answers of a
    foreign-key join. Of the left rows, the topic has only a hash.
    """
    for part in topology.subtopologies:
        for node in part.nodes:
            if isinstance(node, Suppress):
                yield (
                    changelog_topic(topology.application_id, node.buffer.name),
                    node.value,
                )
            elif isinstance(node, ForeignKeyAsk | ForeignKeyAnswer):
                behind = (
                    sink
                    for sink in part.nodes
                    if isinstance(sink, Sink) and node.name in sink.parents
                )
                yield next(behind).topic, node.value


@contextmanager
def schemas_bound(topology: Structure, config: Config) -> Iterator[None]:
    """Bind the serdes of a topology to the registry of the settings, without a request
    to it.

    Raises:
        ConfigError: there is no registry, or a serde is bound to another one in this
        process.
    """
    if not (uses := schema_uses(topology)):
        yield
        return
    with _bound(uses, registry_of(config), config["subject.name.strategy"]):
        yield


def bind_in_memory(topology: S) -> S:
    """Bind the serdes of a topology to the registry in memory, and return the topology.

    Raises:
        ConfigError: an application in this process runs with these serdes.
    """
    with _bound(schema_uses(topology), IN_MEMORY, "TopicNameStrategy"):
        return topology


def check_schemas(topology: Structure, config: Config) -> None:
    """Check the schemas of an application against those in the registry, and register
    those that it writes.

    Raises:
        ConfigError: a schema does not fit its subject; names the cure.
        LogError: retryable: the registry does not answer.
    """
    uses = schema_uses(topology)
    registry = registry_of(config) if uses else IN_MEMORY
    for step, use in (
        (step, use) for step in (_check, _pin) for use in uses
    ):  # what is refused registers nothing
        subject = use.subject(config["subject.name.strategy"])
        try:
            step(use, subject, registry)
        except RegistryUnavailableError as error:
            raise LogError(f'subject "{subject}": {error}', retryable=True) from error
        except SerdeError as error:
            raise ConfigError(
                f'subject "{subject}", the schema of {use}: {error}. Change the '
                f"schema {use.codec.name} so that it fits (give new fields a default), or write to a new topic"
            ) from error


def _check(
    use: SchemaUse,
    subject: str,
    registry: SchemaRegistry,
) -> None:
    latest = registry.latest(subject)
    if use.part == "key":
        if (
            latest is not None
            and registry.lookup(subject, use.codec.registered()) is None
        ):
            raise SerdeError(
                f"its keys have another schema, {latest}. Equal keys must be equal bytes, and the id is among them: "
                "use that schema"
            )
    elif (
        not use.written
        and latest is not None
        and (why := use.codec.why_unreadable(latest))
    ):
        raise SerdeError(
            f"its latest version cannot be read as {use.codec.name}: {why}"
        )


def _pin(
    use: SchemaUse,
    subject: str,
    _: SchemaRegistry,
) -> None:
    if use.part == "key" or use.written:
        use.codec.pin(subject)


def _codecs(whole: Serde[Any]) -> list[Codec]:
    return [serde.codec for serde in within(whole) if isinstance(serde, SchemaSerde)]


@contextmanager
def _bound(
    uses: list[SchemaUse],
    registry: SchemaRegistry,
    strategy: str,
) -> Iterator[None]:
    with ExitStack() as bound:
        for codec in dict.fromkeys(use.codec for use in uses):
            mine = [
                use
                for use in uses
                if use.codec is codec and (use.written or use.part == "key")
            ]
            bound.enter_context(
                codec.bound(registry, {use.subject(strategy) for use in mine})
            )
        yield
