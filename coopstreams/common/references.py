"""Secrets in settings: taken from the environment and from files, and not shown.

    ${env:NAME}     the environment variable NAME
    ${file:PATH}    the text of a file, without line ends at its end: as Docker and Kubernetes mount secrets

Invariant: the `repr` of settings has no secret, and so neither has a log line, a
traceback with variables, or a dump.
Source: KIP-297 and KIP-421 (references to config providers in any value); unlike
Kafka's `FileConfigProvider`, whose file has properties, with the key in the reference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coopstreams.common.setting_sources import origin
from coopstreams.topology.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(\w+):([^}]*)\}")
_SECRET = re.compile(
    r"password|passphrase|secret|basic\.auth\.user\.info$|ssl\.key\.pem$|ssl\.keystore\.key$|jaas"
    r"|^http\.token\.|^sasl\.oauthbearer\.config$"
)


class Secret(str):
    """A text that its `repr` does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


def is_secret(name: str) -> bool:
    """Return whether the value of a setting must not be shown. A client's prefix in its
    name makes no difference.
    """
    return _SECRET.search(re.sub(r"^(consumer|producer|admin)\.", "", name)) is not None


def resolved(
    settings: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Return the settings with references replaced, and secrets as `Secret`. A value
    that is a `Secret` already is not changed.

    Raises:
        ConfigError: the variable is not set, the file cannot be read, or there is no
            such kind of reference.
    """
    return {name: resolve(settings, name, environment) for name in settings}


def resolve(
    settings: Mapping[str, Any],
    name: str,
    environment: Mapping[str, str] = os.environ,
) -> Any:
    """Return the value of one setting, with references replaced, and a secret as
    `Secret`.

    Raises:
        ConfigError: see `resolved`.
    """
    value = settings[name]
    if not isinstance(value, str) or isinstance(value, Secret):
        return value

    def read(match: re.Match[str]) -> str:
        try:
            return _read(match[1], match[2], environment)
        except ValueError as error:
            raise ConfigError(
                f"{name} = {match[0]}{origin(settings, name)}: {error}"
            ) from None

    found = _REFERENCE.sub(read, value)
    return Secret(found) if is_secret(name) else found


def _read(
    kind: str,
    where: str,
    environment: Mapping[str, str],
) -> str:
    """Return the text that a reference refers to.

    Raises:
        ValueError: there is none; the message says why.
    """
    if kind == "env":
        if where not in environment:
            raise ValueError(f"the environment variable {where} is not set here")
        return environment[where]
    if kind == "file":
        try:
            return Path(where).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ValueError(f"the file cannot be read: {why}") from None
    raise ValueError(
        f"a reference is ${{env:NAME}} or ${{file:PATH}}, there is no ${{{kind}:…}}"
    )
