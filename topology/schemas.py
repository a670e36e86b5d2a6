"""Reads and writes the wire format of Confluent's serializers: a zero byte, the
schema's id in 4 bytes big-endian, then the record.

A `Codec` writes with one schema, and reads values of any version of it: an unknown
version is fetched from the registry once. The codec fetches its own id for the first
value that it writes, or when an application starts.

A serde that is not bound to an application uses `IN_MEMORY`, so a topology can be
tested without a registry.

Invariant: a codec writes one id as long as it is bound. So equal keys have equal bytes,
and the hash of a key, by which partitions and ranges are chosen, does not depend on
when it was written. Readers of a topic refuse a key with another id (`check_key`),
because it would be another key. Turned down: rewriting such keys when they are read
(the producer has chosen the partition by the bytes it wrote).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from struct import Struct
from typing import Any, Protocol, TypeVar

from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.compatibility.schema_comparison import of_registry
from coopstreams.topology.errors import ConfigError, CoopStreamsError, SerdeError
from coopstreams.topology.serde import Serde

T = TypeVar("T")

_HEAD = Struct(">bI")


class RegistryUnavailableError(SerdeError):
    """The schema registry does not answer, so bytes cannot be read yet. The same call
    may succeed later.
    """


class RegistryNeededError(CoopStreamsError):
    """A schema registry must be asked, but the calling thread must not wait for it."""


class _Asked:
    """A flag that a serde sets when it needs the registry within a call of
    `promptly`.
    """

    __slots__ = ("whether",)

    def __init__(self) -> None:
        self.whether = False


_PROMPT: ContextVar[_Asked | None] = ContextVar("prompt", default=None)
"""The flag of the current call of `promptly`; None outside of such a call."""


def promptly(call: Callable[[], T]) -> T:
    """Return the result of `call`, within which no serde waits for a schema registry.

    If a serde needed a registry, any result or other exception of `call` is discarded:
    it may come from a key that only seemed unreadable.

    Raises:
        RegistryNeededError: a serde needed a registry. Repeat the call on a thread that
            may wait.
    """
    asked = _Asked()
    token = _PROMPT.set(asked)
    try:
        found = call()
    except Exception:
        if asked.whether:
            raise RegistryNeededError("a schema registry must be asked") from None
        raise
    finally:
        _PROMPT.reset(token)
    if asked.whether:
        raise RegistryNeededError("a schema registry must be asked")
    return found


def registry_is_away(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is that the schema registry does
    not answer.
    """
    return error is not None and (
        isinstance(error, RegistryUnavailableError) or registry_is_away(error.__cause__)
    )


class SchemaRegistry(Protocol):
    """A schema registry: schemas by id, and the versions of each subject.

    Raises (all methods):
        RegistryUnavailableError: the registry does not answer, or denies this process
            access.
        SerdeError: the registry refuses the request.
    """

    def latest(self, subject: str) -> Schema | None:
        """Return a subject's latest version, or None if the subject has no version."""
        ...

    def lookup(self, subject: str, schema: Schema) -> int | None:
        """Return the id of a schema if it is a version of a subject, else None."""
        ...

    def register(self, subject: str, schema: Schema) -> int:
        """Add a schema to the versions of a subject and return its id."""
        ...

    def schema(self, number: int) -> Schema:
        """Return the schema with this id."""
        ...


class InMemoryRegistry:
    """A schema registry in this process. Equal schemas have one id, whatever the
    subject. It accepts incompatible versions.
    """

    def __init__(self) -> None:
        self._ids: dict[Schema, int] = {}
        self._numbers = count(1)
        self._subjects: dict[str, list[Schema]] = {}

    def latest(self, subject: str) -> Schema | None:
        """Return the schema that was registered last for a subject; None: there is
        none.
        """
        return next(reversed(self._subjects.get(subject, ())), None)

    def lookup(self, subject: str, schema: Schema) -> int | None:
        """Return the id of a schema if a subject has it, else None."""
        return self._ids[schema] if schema in self._subjects.get(subject, ()) else None

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema for a subject and return its id."""
        number = self._ids.setdefault(
            schema,
            next(self._numbers),
        )  # atomic, as drivers may run on several threads
        self._subjects.setdefault(subject, []).append(schema)
        return number

    def schema(self, number: int) -> Schema:
        """Return the schema with this id."""
        for schema, known in list(self._ids.items()):
            if known == number:
                return schema
        raise SerdeError(f"the registry in memory has no schema with id {number}")


IN_MEMORY = InMemoryRegistry()
"""The registry of test drivers, and of serdes that are not bound to an application."""


class Codec:
    """The writer and reader of records of one schema. All use of the registry is in
    this class.

    `name`: the schema's full name. `write`: writes a value without the head (zero byte
    and id). `reader`: given a writer's schema, returns the function that reads whole
    records of it. `unreadable`: returns why this schema cannot read values of a
    writer's schema; empty if it can. `remade`: the function and arguments that recreate
    the serde. `prefix`: bytes between the head and the record.
    `same`: whether a schema describes the same values as this one. The first text that
    is registered in a subject stays, and may differ in comments, options or further
    messages. If it describes the same values, its id is used. None: the text is the
    user's own, so only an equal text counts.
    """

    def __init__(
        self,
        name: str,
        schema: Schema,
        write: Callable[[Any], bytes],
        reader: Callable[[Schema], Callable[[bytes], Any]],
        unreadable: Callable[[Schema], str],
        remade: tuple[Any, ...],
        prefix: bytes = b"",
        same: Callable[[Schema], bool] | None = None,
    ) -> None:
        self.name = name
        self.schema = schema
        self._same = same
        self._unreadable = unreadable
        self._prefix = prefix
        self._write = write
        self._reader = reader
        self._remade = remade
        self._users: set[object] = set()
        self._registry: SchemaRegistry = IN_MEMORY
        self._subjects: tuple[str, ...] = ()
        self._bind(IN_MEMORY, ())

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value, with the head."""
        return (self._head or self.pin()) + self._write(value)

    def decode(self, data: bytes) -> Any:
        """Return the value of bytes that were written with any version that this schema
        can read.
        """
        return (self._readers.get(data[:5]) or self._learn(data))(data)

    def why_unreadable(self, written: Schema) -> str:
        """Return why this codec cannot read values of a schema, or an empty text if it
        can.
        """
        if written.kind != self.schema.kind:
            return f"it is of type {written.kind}, and this is {self.schema.kind}"
        return self._unreadable(written)

    def check_key(self, data: bytes | None) -> None:
        """Check that a key has the schema id that this codec would write.

        Raises:
            SerdeError: the key has another id.
        """
        if data is not None and data[:5] != (self._head or self.pin())[:5]:
            number = _id_of(data)
            raise SerdeError(
                f"the key has schema id {number}, and this application's keys have {_id_of(self._head)}: equal keys "
                "would have other bytes, and lie in other partitions. Read the topic with key=serdes.raw, and make "
                "the key by select_key"
            )

    def check_form(self, data: bytes | None) -> None:
        """Check that this codec would write a key with the same bytes, by reading and
        rewriting it. For formats that have several forms of equal values.

        Raises:
            SerdeError: the key has another id, or another form.
        """
        self.check_key(data)
        if data is not None and (ours := self.encode(self.decode(data))) != data:
            raise SerdeError(
                f"the key {data[5:]!r} is not written as this application writes it, {ours[5:]!r}: equal keys "
                "would have other bytes, and lie in other partitions. Read the topic with key=serdes.raw, and make "
                "the key by select_key"
            )

    def registered(self) -> Schema:
        """Return the schema as the registry has it for the subjects: this schema, or a
        subject's latest version that describes the same values.
        """
        if self._same is None or any(
            self._registry.lookup(subject, self.schema) is not None
            for subject in self._all()
        ):
            return self.schema
        known = [self._registry.latest(subject) for subject in self._all()]
        kind = self.schema.kind
        return next(
            (each for each in known if each and each.kind == kind and self._same(each)),
            self.schema,
        )

    def pin(self, *subjects: str) -> bytes:
        """Fetch the schema id from the registry and return the head of all records to
        write. The schema is registered in each subject that does not have it.

        `subjects`: further subjects, added to those of the binding.
        """
        self._may_ask()
        self._subjects = tuple(sorted({*self._subjects, *subjects}))
        numbers = []
        schema = self.registered()
        for subject in self._all():
            number = self._registry.lookup(subject, schema)
            numbers.append(
                self._registry.register(subject, schema) if number is None else number
            )
        self._head = (
            _HEAD.pack(0, min(numbers)) + self._prefix
        )  # most registries give a schema one id in all subjects
        return self._head

    @contextmanager
    def bound(
        self,
        registry: SchemaRegistry,
        subjects: Iterable[str],
    ) -> Iterator[None]:
        """Bind the codec to a registry and to subjects, for the block and until it is
        bound to another registry.

        Raises:
            ConfigError: an application in this process uses the codec with another
                registry.
        """
        user = object()
        if self._users and self._registry != registry:
            raise ConfigError(
                f"{self.name}: an application in this process uses its serde with another schema registry. Run them, "
                "and tests beside them, in processes of their own"
            )
        if not self._users:
            self._bind(registry, tuple(sorted(subjects)))
        self._users.add(user)
        try:
            yield
        finally:
            self._users.discard(user)

    def is_bound(self, registry: SchemaRegistry, subjects: tuple[str, ...]) -> bool:
        """Return whether the codec is bound to this registry and these subjects."""
        return (self._registry, self._subjects) == (registry, subjects)

    def _bind(self, registry: SchemaRegistry, subjects: tuple[str, ...]) -> None:
        self._registry = registry
        self._subjects = subjects
        self._head = b""
        self._readers: dict[bytes, Callable[[bytes], Any]] = {}

    def _all(self) -> tuple[str, ...]:
        return self._subjects or (self.name,)

    def _learn(self, data: bytes) -> Callable[[bytes], Any]:
        """Return the function that reads records with the schema id of `data`; fetch
        the schema from the registry.
        """
        number = _id_of(data)
        self._may_ask()
        schema = self._registry.schema(number)
        if schema.kind != self.schema.kind:
            raise SerdeError(
                f"schema {number} is of type {schema.kind}, and {self.name} of type {self.schema.kind}"
            )
        reader = self._readers[data[:5]] = self._reader(schema)
        return reader

    def _may_ask(self) -> None:
        """Check that the registry may be asked now: not within `promptly`, unless it is
        in memory.
        """
        asked = _PROMPT.get()
        if asked is not None and self._registry is not IN_MEMORY:
            asked.whether = True
            raise RegistryNeededError(f"{self.name}: the schema registry must be asked")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments by which pickle recreates the codec. On Spark's workers
        it uses the same registry.
        """
        return _codec, self.remade()

    def remade(self) -> tuple[Any, ...]:
        """Return the arguments with which `_serde` recreates the serde, bound to the
        same registry.
        """
        return (
            *self._remade,
            None if self._registry is IN_MEMORY else (self._registry, self._subjects),
        )


@dataclass(frozen=True, slots=True, repr=False)
class SchemaSerde(Serde[T]):
    """A serde whose schema is in a schema registry.

    `from_json`: reads a value from JSON, for keys in the URL of a query. `of_class`:
    the description by which two versions of a program are compared, if the schema was
    made from a class.
    """

    codec: Codec
    from_json: Callable[[bytes], Any]
    of_class: dict[str, Any] | None = field(default=None, compare=False)

    def read_json(self, data: bytes) -> T:
        """Return the value that a JSON text stands for.

        Raises:
            SerdeError: the text stands for no value of the schema.
        """
        try:
            value: T = self.from_json(data)
        except SerdeError:
            raise
        except Exception as error:
            raise SerdeError(f"{type(error).__name__}: {error}") from error
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The description of the schema by which two versions of a program are
        compared.
        """
        return self.of_class or of_registry(
            self.name,
            self.codec.name,
            self.codec.schema,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments by which pickle recreates the serde."""
        return _serde, self.codec.remade()


def _serde(
    make: Callable[..., SchemaSerde[Any]],
    arguments: tuple[Any, ...],
    binding: Any,
) -> SchemaSerde[Any]:
    serde = make(*arguments)
    if binding is not None and not serde.codec.is_bound(*binding):
        serde.codec._bind(*binding)
    return serde


def _codec(*remade: Any) -> Codec:
    return _serde(*remade).codec


def _id_of(data: bytes) -> int:
    if len(data) < _HEAD.size or data[0]:
        raise SerdeError(
            "there is no schema id: the first byte must be 0, and 4 bytes of the id follow. It was not written by a "
            "serializer that uses a schema registry"
        )
    return int.from_bytes(data[1:5], "big")
