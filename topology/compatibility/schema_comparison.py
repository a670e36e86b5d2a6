"""Compares the schemas in two descriptions of a topology: whether the new version reads
what the old version wrote.

A description has these parts of a schema:

    of a class       the part of its JSON Schema that is compared (`json_schema_changes.compared`), and the text in a registry
    of a registry    its kind, its text, those of the schemas that it names, the full name of the record or message,
                     and the name of the serde

Invariant: a schema of a class and one of a registry are not compared: the names of
their serdes differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import orjson

from coopstreams.topology.compatibility import (
    avro_schemas,
    json_schema_changes,
    protobuf_changes,
)
from coopstreams.topology.compatibility.schema import Reference, Schema

_REGISTRY = "registry"
_ANOTHER = "the schema is another one, and its id is part of the bytes"


def of_registry(
    serde: str,
    name: str,
    schema: Schema,
) -> dict[str, Any]:
    """Return the description of a schema that a registry has, as JSON values."""
    return {_REGISTRY: schema.kind, "name": name, "serde": serde, **_texts(schema)}


def why_unreadable(now: Any, was: Any) -> str:
    """Return why values of the schema `was` cannot be read with `now`, with the path;
    empty if they may be.
    """
    if _kind(now) is None and _kind(was) is None:
        return json_schema_changes.why_unreadable(now, was, complete=True)
    if _kind(now) != _kind(was):
        return ""
    return _why(now["name"], _schema(now), _schema(was))


def why_other_bytes(now: Any, was: Any) -> str:
    """Return why equal keys have other bytes with the schema `now` than with `was`;
    empty if no reason is known.
    """
    if _kind(now) is None and _kind(was) is None:
        texts = now.get("text"), was.get("text")
        return json_schema_changes.why_other_bytes(now, was) or (
            _ANOTHER if None not in texts and len({*texts}) > 1 else ""
        )
    if _kind(now) != _kind(was) or _schema(now) == _schema(was):
        return ""
    if now[_REGISTRY] == "PROTOBUF":
        ours = _files(_schema(now))
        theirs = _files(_schema(was))
        if not (ours and theirs) or protobuf_changes.parts_of(
            ours,
            now["name"],
        ) == protobuf_changes.parts_of(theirs, was["name"]):
            return ""  # the id stays, see `Codec.registered`
    return _ANOTHER


def changed_values(now: Any, was: Any) -> str:
    """Return why values of a store or repartition topic cannot be read by the next
    version; empty if they may be.
    """
    pairs = zip(now.schemas, was.schemas, strict=False)
    why = next(filter(None, (why_unreadable(*pair) for pair in pairs)), "")
    read_as = getattr(now, "held", None) or now.value
    return (
        f"its values are read as {read_as}, whose class has changed: {why}"
        if why
        else ""
    )


def changed_keys(now: Any, was: Any) -> str:
    """Return why the next version writes other bytes for equal keys; empty if no reason
    is known.
    """
    pairs = zip(now.key_schemas, was.key_schemas, strict=False)
    why = next(filter(None, (why_other_bytes(*pair) for pair in pairs)), "")
    return (
        f"its keys are written as {now.key}, whose class has changed: {why}"
        if why
        else ""
    )


def why_other_rows(now: Any, was: Any) -> str:
    """Return why the left rows of a foreign-key join have other bytes now than when
    they subscribed; empty if no reason is known.

    Rows in a store keep their bytes; rows of views are serialised again.

    Shape: both are the store of the subscribers, as `outline.Store`.
    """
    if None in (now.asked, was.asked):
        return ""
    if not same_format(now.asked, now.asked_schemas, was.asked, was.asked_schemas):
        return f"its left rows are written as {now.asked}, and were as {was.asked}"
    pairs = (
        zip(now.asked_schemas, was.asked_schemas, strict=False) if now.computed else ()
    )
    why = next(filter(None, (why_other_bytes(*pair) for pair in pairs)), "")
    changed = f"its left rows, which are in no store, are written as {now.asked}, whose class has changed: {why}"
    return changed if why else ""


def same_format(
    now: str,
    schemas: Iterable[Any],
    was: str,
    schemas_before: Iterable[Any],
) -> bool:
    """Whether two serdes, given by their names and schemas, write one format.

    For serdes of a registry, only the kind of schema and the name of the record or
    message count, not the names of classes: their schemas are compared elsewhere.
    """
    return now == was or _format(now, schemas) == _format(was, schemas_before)


def _format(serde: str, schemas: Iterable[Any]) -> str:
    for schema in schemas:
        if kind := _kind(schema):
            serde = serde.replace(
                schema["serde"],
                f"{kind} {'' if kind == 'JSON' else schema['name']}",
            )
    return serde


def _kind(schema: Any) -> str | None:
    return schema.get(_REGISTRY) if isinstance(schema, dict) else None


def _texts(schema: Schema) -> dict[str, Any]:
    references = [
        {"name": each.name, **_texts(each.schema)} for each in schema.references
    ]
    return {"text": schema.text} | ({"references": references} if references else {})


def _schema(described: Any, kind: Any = None) -> Schema:
    kind = kind or described[_REGISTRY]
    references = [
        Reference(each["name"], _schema(each, kind))
        for each in described.get("references", ())
    ]
    return Schema(described["text"], kind, tuple(references))


@cache
def _why(
    name: str,
    now: Schema,
    was: Schema,
) -> str:
    if now.kind == "JSON":
        return json_schema_changes.why_unreadable(
            orjson.loads(now.text),
            orjson.loads(was.text),
        )
    if now.kind == "AVRO":
        try:
            from fastavro import parse_schema
        except ImportError:
            return ""
        return avro_schemas.why_unreadable(
            parse_schema(orjson.loads(now.text)),
            parse_schema(orjson.loads(was.text)),
        )
    reader = _files(now)
    writer = _files(was)
    return (
        protobuf_changes.why_unreadable(reader, writer, name)
        if reader and writer
        else ""
    )


def _files(schema: Schema) -> tuple[Any, ...]:
    """Return the files of a Protobuf schema; empty if they cannot be read here."""
    try:
        return protobuf_changes.files_of(schema)
    except ImportError:
        return ()
