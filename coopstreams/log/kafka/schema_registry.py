"""A client of schema registries with Confluent's REST interface: Confluent's,
Apicurio's, Karapace, Redpanda's.

Invariant: a `RegistryClient` is a value: equal settings are the same registry, and it
can be sent to another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from operator import methodcaller
from time import monotonic
from typing import Any, TypeVar

from coopstreams.common.config import Config
from coopstreams.topology.compatibility.schema import Reference, Schema
from coopstreams.topology.errors import ConfigError, SerdeError
from coopstreams.topology.schemas import RegistryUnavailableError

R = TypeVar("R")

PREFIX = "schema.registry."
_TIMEOUT_S = 5.0
REFUSED_S = 5.0
"""How long a missing schema id is remembered: a topic may be full of such records."""
_MOST_REFUSED = 10_000
AWAY_S = 1.0
"""How long an outage of the registry is remembered: a reader extracts timestamps of
whole batches.
"""
_NOT_FOUND = 404
_CONFLICT = 409
_INVALID = 422
_NO_SUCH = range(40400, 40500)
"""The error codes by which a registry says that a subject, version or schema does not
exist. A 404 without such a code comes from something else, such as a proxy whose
registry is away. If it counted as the registry's, records that can be read a moment
later would be dropped.
"""


_refused: dict[tuple[RegistryClient, int], float] = {}
"""The time (`monotonic`) until which an id counts as unknown."""
_away: dict[RegistryClient, tuple[float, str]] = {}
"""The time until which a registry counts as away, and the error of the last request."""


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """A `SchemaRegistry` over HTTP. `settings`: the settings of confluent-kafka's
    client.
    """

    url: str
    settings: tuple[tuple[str, Any], ...] = field(repr=False)
    registers: bool
    """Whether schemas may be registered."""

    def latest(self, subject: str) -> Schema | None:
        """Return the latest version of a subject; None: the subject does not exist."""
        found = self._ask(lambda client: client.get_latest_version(subject), _NOT_FOUND)
        return None if found is None else self._ours(found.schema)

    def lookup(self, subject: str, schema: Schema) -> int | None:
        """Return the id of a schema under a subject; None: it is not registered."""
        found = self._registered(subject, schema)
        return None if found is None else int(found.schema_id)

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema, and return its id. Schemas that it refers to are
        registered first, each under its own name.

        Raises:
            SerdeError: the schema is incompatible with the subject's versions, or this
                client may not register schemas.
        """
        if not self.registers:
            raise SerdeError(
                f'subject "{subject}" has no such schema, and auto.register.schemas is false. Register it: {schema}'
            )
        for each in schema.references:
            if self._place(each) is None:
                self.register(each.name, each.schema)
        theirs = self._theirs(schema)
        number = self._ask(
            lambda client: client.register_schema(
                subject,
                theirs,
                normalize_schemas=_normal(schema),
            )
        )
        assert number is not None
        return int(number)

    def schema(self, number: int) -> Schema:
        """Return the schema with this id. A missing schema is remembered for
        `REFUSED_S`, an outage for `AWAY_S`.

        Raises:
            RegistryUnavailableError: the registry does not answer.
            SerdeError: the registry has no schema with this id.
        """
        now = monotonic()
        (away_until, said) = _away.get(self, (0.0, ""))
        if _refused.get((self, number), 0.0) > now:
            raise self._unknown(number)
        if away_until > now:
            raise RegistryUnavailableError(said)
        try:
            found = self._ask(lambda client: client.get_schema(number), _NOT_FOUND)
            ours = None if found is None else self._ours(found)
        except RegistryUnavailableError as error:
            _away[self] = monotonic() + AWAY_S, str(error)
            raise
        if ours is None:
            if len(_refused) >= _MOST_REFUSED:
                _refused.clear()
            _refused[self, number] = monotonic() + REFUSED_S
            raise self._unknown(number)
        return ours

    def _ours(self, schema: Any) -> Schema:
        references = []
        for each in schema.references or ():
            found = self._ask(
                methodcaller("get_version", each.subject, each.version),
                _NOT_FOUND,
            )
            if found is None:
                raise SerdeError(
                    f'a schema names "{each.name}", and the schema registry {self.url} has no version {each.version} '
                    f'of subject "{each.subject}": it must keep each that another schema names'
                )
            references.append(
                Reference(
                    each.name,
                    self._ours(found.schema),
                    each.subject,
                    each.version,
                )
            )
        return Schema(str(schema.schema_str), schema.schema_type, tuple(references))

    def _theirs(self, schema: Schema) -> Any:
        """Return a schema in the form of confluent-kafka; None: a schema that it refers
        to is not registered.
        """
        from confluent_kafka import schema_registry

        places = [self._place(each) for each in schema.references]
        return (
            None
            if None in places
            else schema_registry.Schema(schema.text, schema.kind, places)
        )

    def _place(self, reference: Reference) -> Any:
        """Return the registry's subject and version of a schema that another one refers
        to; None: it is not registered.
        """
        from confluent_kafka.schema_registry import SchemaReference

        if reference.version:
            return SchemaReference(reference.name, reference.subject, reference.version)
        found = self._registered(reference.name, reference.schema)
        return (
            None
            if found is None
            else SchemaReference(reference.name, reference.name, found.version)
        )

    def _registered(self, subject: str, schema: Schema) -> Any:
        """Return a schema as it is registered under a subject; None: it is not."""
        if (theirs := self._theirs(schema)) is None:
            return None
        return self._ask(
            lambda client: client.lookup_schema(
                subject,
                theirs,
                normalize_schemas=_normal(schema),
            ),
            _NOT_FOUND,
        )

    def _unknown(self, number: int) -> SerdeError:
        return SerdeError(
            f"the schema registry {self.url} has no schema with id {number}: it must keep each that a value was "
            "written with"
        )

    def _ask(self, request: Callable[[Any], R], absent: int | None = None) -> R | None:
        """Return the answer of the registry; None if it says, with the HTTP status
        `absent`, that the object does not exist.
        """
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return request(_client(self.settings))
        except SchemaRegistryError as error:
            if error.http_status_code == absent and error.error_code in _NO_SUCH:
                return None
            said = f"the schema registry {self.url} answers {error.http_status_code}: {error.error_message}"
            if error.http_status_code in (_CONFLICT, _INVALID):
                raise SerdeError(said) from error
            raise RegistryUnavailableError(said) from error
        except Exception as error:
            # the type of the HTTP library's exceptions depends on the client's version
            raise RegistryUnavailableError(
                f"the schema registry {self.url} cannot be reached: {type(error).__name__}: {error}"
            ) from error


def registry_of(config: Config) -> RegistryClient:
    """Return the registry of the settings.

    Raises:
        ConfigError: no registry is set, or the extra is not installed.
    """
    if (url := config[f"{PREFIX}url"]) is None:
        raise ConfigError(
            "the topology has serdes with schemas: set schema.registry.url"
        )
    if missing := [
        name
        for name in ("authlib", "cachetools", "fastavro", "httpx2")
        if find_spec(name) is None
    ]:
        raise ConfigError(
            f'schema.registry.url needs {", ".join(missing)}: pip install "coopstreams[registry]"'
        )
    given = {
        name.removeprefix(PREFIX): value
        for name, value in config.values.items()
        if name.startswith(PREFIX) and value is not None
    }
    client = RegistryClient(
        url,
        tuple(sorted(given.items())),
        config["auto.register.schemas"],
    )
    try:
        _client(client.settings)
    except (OSError, ValueError) as error:
        raise ConfigError(f"schema.registry.*: {error}") from error
    return client


def _normal(schema: Schema) -> bool:
    """Whether the registry should compare the meaning of a schema and not its text: one
    Protobuf file can be written as many texts.
    """
    return schema.kind == "PROTOBUF"


@cache
def _client(settings: tuple[tuple[str, Any], ...]) -> Any:
    """Return the HTTP client, which caches schemas. It makes no retries: its caller
    does.
    """
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient.new_client(
        {**dict(settings), "timeout": _TIMEOUT_S, "max.retries": 0}
    )
