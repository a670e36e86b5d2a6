"""The pinned files of a Kafka version, with size and SHA-256: the lines of
`kafka-VERSION.jars` beside this module.

The broker is `kafka_2.13` with its runtime dependencies, and slf4j-simple, the smallest
writer for its log messages. The list is pinned and not resolved on each machine: a
download then asks for jars only, in parallel, and a repository or mirror cannot slip in
another file.

`make pin KAFKA=4.2.2` writes the list of another version: jgo, a Maven client on PyPI,
resolves the dependencies.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coopstreams.topology.errors import DevError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgo.maven import Artifact

SCALA = "2.13"
FOLDER = Path(__file__).parent
"""The folder of the lists."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned file of a Kafka version. Units: `size` in bytes."""

    group: str
    artifact: str
    version: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """The file's name, in a Maven repository and in the cache."""
        return f"{self.artifact}-{self.version}.jar"

    def is_content_of(self, path: Path) -> bool:
        """Return whether a file has the pinned content."""
        return path.stat().st_size == self.size and _sha256(path) == self.sha256


def pins(version: str) -> list[Pin]:
    """Return the files of a version of Kafka.

    Raises:
        DevError: the version is not pinned. Pin it in a checkout: `make pin KAFKA=…`.
    """
    try:
        lines = _list_of(version).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        known = ", ".join(
            sorted(
                path.stem.removeprefix("kafka-") for path in FOLDER.glob("kafka-*.jars")
            )
        )
        raise DevError(
            f"Kafka {version} is not pinned, only {known}. In a checkout, run: make pin KAFKA={version}"
        ) from None
    return [_parsed(line) for line in lines]


def write_pins(version: str) -> Path:
    """Resolve a version with jgo, download its files, and write the list of them;
    return the path of the list.
    """
    from jgo.maven import MavenContext

    with tempfile.TemporaryDirectory() as cache:
        context = MavenContext(repo_cache=Path(cache), local_repos=[], timeout=30)
        wanted = (
            f"org.apache.kafka:kafka_{SCALA}:{version}",
            "org.slf4j:slf4j-simple:1.7.36",
        )
        asked, transitive = context.resolver.resolve(
            [context.create_dependency(each) for each in wanted]
        )
        lines = _lines(dependency.artifact for dependency in (*asked, *transitive))
    path = _list_of(version)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _lines(artifacts: Iterable[Artifact]) -> list[str]:
    lines = []
    for artifact in artifacts:
        path = artifact.resolve()
        coordinates = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
        lines.append(f"{coordinates} {path.stat().st_size} {_sha256(path)}")
    return sorted(lines)


def _parsed(line: str) -> Pin:
    coordinates, size, sha256 = line.split()
    group, artifact, version = coordinates.split(":")
    return Pin(group, artifact, version, int(size), sha256)


def _list_of(version: str) -> Path:
    return FOLDER / f"kafka-{version}.jars"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    print(write_pins(sys.argv[1]))
