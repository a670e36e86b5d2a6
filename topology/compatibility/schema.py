"""A schema as a registry takes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with the schemas that it refers to. A registry returns a Protobuf file
    as a descriptor in base64, or as text.
    """

    text: str
    kind: Kind
    references: tuple[Reference, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema to which another schema refers, by the path of an import or by the full
    name of a type.

    Shape: `subject` and `version` say where the registry has it. Empty and 0: they were
    not asked for, and the subject is the name, as Confluent's serializers choose it.
    """

    name: str
    schema: Schema
    subject: str = field(default="", compare=False)
    version: int = field(default=0, compare=False)
