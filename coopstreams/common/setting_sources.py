"""Reads settings from a TOML file, then the environment
(`COOPSTREAMS_COMMIT_INTERVAL_MS`), then the command line. A later source wins.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coopstreams.topology.errors import ConfigError

_PREFIX = "COOPSTREAMS_"
_RESERVED = frozenset({"COOPSTREAMS_CACHE", "COOPSTREAMS_NATIVE"})


class Given(dict[str, Any]):
    """Settings with the origin of each. An error names it, because many settings come
    from an environment that nobody typed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origins: dict[str, str] = {}

    def take(self, settings: Iterable[tuple[str, Any, str]]) -> None:
        """Add settings, each with name, value and origin."""
        for name, value, where in settings:
            self[name] = value
            self.origins[name] = where


def origin(settings: Mapping[str, Any], name: str) -> str:
    """Return the words by which a message says where a setting comes from; empty if it
    is not known.
    """
    where = settings.origins.get(name) if isinstance(settings, Given) else None
    return "" if where is None else f" (from {where})"


def settings_of(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
) -> Given:
    """Return the settings of a TOML file, the environment (`COOPSTREAMS_…`) and flags.
    A later source wins.

    Shape: TOML tables nest into dotted names: `[commit] interval.ms = 100` is
    `commit.interval.ms`.

    Raises:
        ConfigError: the file is missing or not TOML; the message says where.
    """
    settings = Given()
    if file is not None:
        settings.take(
            (name, value, str(file)) for name, value in _flat(_toml(file)).items()
        )
    settings.take(
        (
            name.removeprefix(_PREFIX).lower().replace("_", "."),
            value,
            f"the environment variable {name}",
        )
        for name, value in environment.items()
        if name.startswith(_PREFIX) and name not in _RESERVED
    )
    settings.take(
        (name, value, "the command line")
        for name, value in flags.items()
        if value is not None
    )
    return settings


def flat(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings by dotted names. Nested tables, as of a TOML file, become part of
    the names.

    Invariant: `settings_of` and the API read a file's settings alike.
    """
    if not any(isinstance(value, Mapping) for value in settings.values()):
        return settings
    return _flat(settings)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {file}: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = value
    return out
