"""A check that a user's engine fulfils `coopstreams.Engine`: random writes, compared
with dictionaries.

Invariant: only behaviour on which stores rely is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

from coopstreams.state.engine import Change, Engine
from coopstreams.topology.errors import StateError

_FAMILIES = ("one", "two/2")
_ALPHABET = (0, 1, 97, 255)
_WRITES = 60

Rows: TypeAlias = dict[bytes, bytes]
Families: TypeAlias = dict[str, Rows]


def check_engine(
    new_engine: Callable[[Path], Engine],
    folder: Path,
    *,
    seed: int = 1,
) -> None:
    """Check that an engine fulfils `Engine`. `folder`: an empty folder for the engine's
    files.

    Raises:
        AssertionError: it does not; the message has the call, its result, and the
            expected result.
    """
    rng = Random(seed)
    engine = new_engine(folder)
    model: Families = {}
    for family in _FAMILIES:
        engine.create(family)
        model[family] = {}
    moments = [_copy(model)]
    for number in range(_WRITES):
        begun = [
            (family, engine.scan(family, b"", None), sorted(model[family].items()))
            for family in _FAMILIES
        ]
        _write(engine, model, rng, number)
        for family, rows, before in begun:
            _same(
                f'scan("{family}") that was begun before write {number}',
                list(rows),
                before,
            )
        for family in _FAMILIES:
            _check_reads(engine, family, model[family], rng, f"after write {number}")
        moments.append(_copy(model))
    _check_families(engine, model)
    moments.append(_copy(model))
    _check_closed(engine)
    _check_reopened(new_engine(folder), moments)


def _write(
    engine: Engine,
    model: Families,
    rng: Random,
    number: int,
) -> None:
    changes = []
    for family in rng.sample(_FAMILIES, rng.randint(1, 2)):
        rows = model[family]
        keys = sorted({_key(rng) for _ in range(rng.randint(0, 12))})
        values: list[bytes | None] = [
            None if rng.random() < 0.3 else b"%d" % number * rng.randint(0, 3)
            for _ in keys
        ]
        vanishing = [_bounds(rng)] if rng.random() < 0.2 else []
        for start, end in vanishing:
            for key in _within(rows, start, end):
                del rows[key]
        for key, value in zip(keys, values, strict=True):
            rows.pop(key, None)
            if value is not None:
                rows[key] = value
        changes.append(Change(family, keys, values, vanishing))
    engine.write(changes)


def _within(
    rows: Rows,
    start: bytes,
    end: bytes | None,
) -> list[bytes]:
    """Return the keys from `start` to `end`, ascending. Shape: half-open; `end` None:
    no upper bound.
    """
    return sorted(key for key in rows if start <= key and (end is None or key < end))


def _check_reads(
    engine: Engine,
    family: str,
    rows: Rows,
    rng: Random,
    when: str,
) -> None:
    get = engine.getter(family)
    for key in {*rows, _key(rng), b"", b"no such key"}:
        _same(f'getter("{family}")({key!r}) {when}', get(key), rows.get(key))
    for start, end in (b"", None), _bounds(rng), _bounds(rng):
        within = [(key, rows[key]) for key in _within(rows, start, end)]
        _same(
            f'scan("{family}", {start!r}, {end!r}) {when}',
            list(engine.scan(family, start, end)),
            within,
        )
        _same(
            f'scan("{family}", {start!r}, {end!r}, reverse=True) {when}',
            list(engine.scan(family, start, end, reverse=True)),
            within[::-1],
        )


def _check_families(engine: Engine, model: Families) -> None:
    first, second = _FAMILIES
    _same("families()", sorted(engine.families()), sorted(_FAMILIES))
    engine.create(first)
    _same(
        f'scan("{first}") after create() of what exists',
        list(engine.scan(first, b"", None)),
        sorted(model[first].items()),
    )
    try:
        engine.write(
            [
                Change(first, [b"new"], [b"1"]),
                Change("no such family", [b"new"], [b"1"]),
            ]
        )
    except Exception:  # noqa: BLE001 whatever it raises: nothing may be written
        _same(
            "a key of a write to a family that does not exist",
            engine.getter(first)(b"new"),
            model[first].get(b"new"),
        )
    else:
        raise AssertionError("write() to a family that does not exist: it must raise")
    engine.write([Change(second, [b"k"], [b"1"])])
    get = engine.getter(second)
    engine.drop(second)
    _same(f'getter("{second}") of a family that was dropped', get(b"k"), None)
    _same("families() after drop()", engine.families(), [first])
    engine.create(second)
    _same(
        f'scan("{second}") of a family that was dropped and made again',
        list(engine.scan(second, b"", None)),
        [],
    )
    model[second] = {}


def _check_closed(engine: Engine) -> None:
    get = engine.getter(_FAMILIES[0])
    engine.close()
    engine.close()
    asked: Sequence[tuple[str, Callable[[], object]]] = (
        ("a getter", lambda: get(b"k")),
        ("scan()", lambda: list(engine.scan(_FAMILIES[0], b"", None))),
        ("count()", lambda: engine.count(_FAMILIES[0])),
        ("write()", lambda: engine.write([Change(_FAMILIES[0], [b"k"], [b"1"])])),
    )
    for what, ask in asked:
        try:
            ask()
        except (StateError, KeyError):
            continue
        raise AssertionError(
            f"{what} after close(): it must raise a StateError, or a store would take it for empty"
        )


def _check_reopened(engine: Engine, moments: Sequence[Families]) -> None:
    try:
        found = {
            family: dict(engine.scan(family, b"", None)) for family in engine.families()
        }
        if any(found.values()) and found not in moments:
            raise AssertionError(
                f"opened again: it has what no number of writes, from the first on, has left: {found}"
            )
    finally:
        engine.close()


def _same(
    what: str,
    found: object,
    expected: object,
) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, should be {expected!r}")


def _copy(model: Families) -> Families:
    return {family: dict(rows) for family, rows in model.items()}


def _key(rng: Random) -> bytes:
    return bytes(rng.choices(_ALPHABET, k=rng.randint(0, 3)))


def _bounds(rng: Random) -> tuple[bytes, bytes | None]:
    return _key(rng), None if rng.random() < 0.3 else _key(rng)
