"""The wire format of Confluent's serializers: a zero byte, the schema's id in 4 bytes
big-endian, then the record.

A `Codec` writes with one schema, and reads values of any version of it: an unknown
version is fetched from the registry once. It fetches its own id at the first value that
it writes, or when an application starts.

A serde that no application has bound belongs to `IN_MEMORY`: so a topology can be
tested without a registry.

Invariant: a codec writes one id as long as it is bound. So equal keys have equal bytes,
and the hash of a key, by which partitions and ranges are chosen, does not depend on
when it was written. A key with another id is refused where a topic is read
(`check_key`), because it would be another key. Turned down: rewriting such keys when
they are read (the producer has chosen the partition by the bytes it wrote).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from struct import Struct
from typing import Any, Protocol, TypeVar

from coopstreams.topology.compatibility.comparison import of_registry
from coopstreams.topology.compatibility.schema import Schema
from coopstreams.topology.errors import ConfigError, CoopStreamsError, SerdeError
from coopstreams.topology.serde import Serde

T = TypeVar("T")

_HEAD = Struct(">bI")


class RegistryUnavailableError(SerdeError):
    """The schema registry does not answer, so bytes cannot be read yet: the same call
    may succeed later.
    """


class RegistryNeededError(CoopStreamsError):
    """A registry must be asked, and who called must not wait for it."""


class _Asked:
    """Whether a registry would have been asked within a call of `promptly`."""

    __slots__ = ("whether",)

    def __init__(self) -> None:
        self.whether = False


_PROMPT: ContextVar[_Asked | None] = ContextVar("prompt", default=None)
"""Set within a call of `promptly`."""


def promptly(call: Callable[[], T]) -> T:
    """Return what the call returns; no serde asks a registry within it.

    Whatever else the call returns or raises does not count then: it may have taken a
    key for one that cannot be read.

    Raises:
        RegistryNeededError: a serde would have asked one. Call again where it may wait.
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
    """Whether a record cannot be read, or written, because the schema registry does not
    answer.
    """
    return error is not None and (
        isinstance(error, RegistryUnavailableError) or registry_is_away(error.__cause__)
    )


class SchemaRegistry(Protocol):
    """Schemas by id, and the versions of each subject.

    Raises (all methods):
        RegistryUnavailableError: it does not answer, or does not let this process in.
        SerdeError: it refuses.
    """

    def latest(self, subject: str) -> Schema | None:
        """Return a subject's latest version; None: the subject has none."""
        ...

    def lookup(self, subject: str, schema: Schema) -> int | None:
        """Return the id of a schema that is a version of a subject; None: it is not."""
        ...

    def register(self, subject: str, schema: Schema) -> int:
        """Make a schema a version of a subject, and return its id."""
        ...

    def schema(self, number: int) -> Schema:
        """Return the schema with this id."""
        ...


class InMemoryRegistry:
    """A registry in this process. Equal schemas have one id, whatever the subject.
    Nothing is incompatible.
    """

    def __init__(self) -> None:
        self._ids: dict[Schema, int] = {}
        self._numbers = count(1)
        self._subjects: dict[str, list[Schema]] = {}

    def latest(self, subject: str) -> Schema | None:
        """Return the schema that was registered last."""
        return next(reversed(self._subjects.get(subject, ())), None)

    def lookup(self, subject: str, schema: Schema) -> int | None:
        """Return the id of a schema under a subject."""
        return self._ids[schema] if schema in self._subjects.get(subject, ()) else None

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema."""
        number = self._ids.setdefault(
            schema,
            next(self._numbers),
        )  # atomic, as drivers may run on several threads
        self._subjects.setdefault(subject, []).append(schema)
        return number

    def schema(self, number: int) -> Schema:
        """Return a schema."""
        for schema, known in list(self._ids.items()):
            if known == number:
                return schema
        raise SerdeError(f"the registry in memory has no schema with id {number}")


IN_MEMORY = InMemoryRegistry()
"""The registry of test drivers, and of serdes that are used by themselves."""


class Codec:
    """Writes and reads records of one schema; all that depends on the registry is here.

    `write` and `reader` are the format's: a record without the head, and the reader of
    records of a writer's schema, which is called with the whole record. `unreadable`:
    why this schema cannot read values of a writer's schema; empty if it can. `name` is
    the schema's full name. `prefix` stands between the head and each record. `same`:
    whether a schema says of the values what this one says. A subject has the text of
    whoever registered it first, perhaps with comments and options, or without messages
    that have come since; its id is used then. None: users give the text.
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
        """Return the bytes of a value."""
        return (self._head or self.pin()) + self._write(value)

    def decode(self, data: bytes) -> Any:
        """Return the value of bytes that were written with any schema that can be read
        as this one.
        """
        return (self._readers.get(data[:5]) or self._learn(data))(data)

    def why_unreadable(self, written: Schema) -> str:
        """Return why this codec cannot read values of a schema; empty if it can."""
        if written.kind != self.schema.kind:
            return f"it is of type {written.kind}, and this is {self.schema.kind}"
        return self._unreadable(written)

    def check_key(self, data: bytes | None) -> None:
        """Check that this codec would write the key with the same bytes.

        Raises:
            SerdeError: it has another id.
        """
        if data is not None and data[:5] != (self._head or self.pin())[:5]:
            number = _id_of(data)
            raise SerdeError(
                f"the key has schema id {number}, and this application's keys have {_id_of(self._head)}: equal keys "
                "would have other bytes, and lie in other partitions. Read the topic with key=serdes.raw, and make "
                "the key by select_key"
            )

    def check_form(self, data: bytes | None) -> None:
        """Check the same of a format that has several forms for equal values: it reads
        the key and writes it again.

        Raises:
            SerdeError: it has another id, or another form.
        """
        self.check_key(data)
        if data is not None and (ours := self.encode(self.decode(data))) != data:
            raise SerdeError(
                f"the key {data[5:]!r} is not written as this application writes it, {ours[5:]!r}: equal keys "
                "would have other bytes, and lie in other partitions. Read the topic with key=serdes.raw, and make "
                "the key by select_key"
            )

    def registered(self) -> Schema:
        """Return the schema as its subjects have it: as it is here, or the latest
        version of one that says the same.
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
        """Return the head of all records that it writes; fetch the id in its subjects
        and these from the registry.
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
        """Bind the codec to a registry for the block, and until it is bound to another;
        its id is the one in these subjects.

        Raises:
            ConfigError: an application in this process uses it with another registry.
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
        """Whether the serde is bound to this registry and these subjects."""
        return (self._registry, self._subjects) == (registry, subjects)

    def _bind(self, registry: SchemaRegistry, subjects: tuple[str, ...]) -> None:
        self._registry = registry
        self._subjects = subjects
        self._head = b""
        self._readers: dict[bytes, Callable[[bytes], Any]] = {}

    def _all(self) -> tuple[str, ...]:
        return self._subjects or (self.name,)

    def _learn(self, data: bytes) -> Callable[[bytes], Any]:
        """Return the reader of records of a schema that is new here."""
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
        """Check that the registry may be asked now; one in memory answers at once."""
        asked = _PROMPT.get()
        if asked is not None and self._registry is not IN_MEMORY:
            asked.whether = True
            raise RegistryNeededError(f"{self.name}: the schema registry must be asked")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments that recreate the codec; on Spark's workers it asks the
        same registry.
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
    """A serde whose schema is in a registry. `from_json` reads a value's JSON, for keys
    in the URL of a query.

    `of_class`: what two versions are compared by, if the schema is that of a class.
    """

    codec: Codec
    from_json: Callable[[bytes], Any]
    of_class: dict[str, Any] | None = field(default=None, compare=False)

    def read_json(self, data: bytes) -> T:
        """Return the value that JSON stands for.

        Raises:
            SerdeError: it stands for none.
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
        """The schema by which two versions of a program are compared."""
        return self.of_class or of_registry(
            self.name,
            self.codec.name,
            self.codec.schema,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments that recreate the serde."""
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
