"""The same topologies in other frameworks, for a comparison in one run: `python -m
benchmarks.peers` installs them.

Each has a folder of its own in the cache, so none of their dependencies meets ours.
They run with their defaults, except for equal work: they commit each second
(exactly-once: each 100 ms), write logs of errors only, and keep state in RocksDB with a
changelog where they can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from benchmarks.running import Case
from coopstreams.dev.cache import cache_folder

HERE = Path(__file__).parent
JAVA_SOURCES = (HERE / "Nexmark.java", HERE / "Peer.java")
"""The programs in Kafka Streams that are compiled."""
FILTERED = 0.79
"""The share of records that pass the stateless case: amounts are 0 to 99, and 21 to 99
pass.
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another framework: its name for pip or Maven, and the cases that it can run.

    Shape: `outputs` as in `Case`, by case, for one that commits no offsets.
    """

    name: str
    packages: Sequence[str]
    command: Sequence[str]
    cases: Sequence[str]
    commits: bool = True

    @property
    def folder(self) -> Path:
        """The folder of the installation, with its versions in the name: another
        version is installed beside it.
        """
        return (
            cache_folder()
            / "peers"
            / "+".join(package.replace(":", "-") for package in self.packages)
        )

    @property
    def downloaded(self) -> bool:
        """Whether the folder has all packages."""
        return (self.folder / "complete").exists()

    @property
    def classes(self) -> Path:
        """The folder of what `JAVA_SOURCES` compile to, by their content: checkouts share
        the cache.
        """
        text = b"".join(source.read_bytes() for source in JAVA_SOURCES)
        return self.folder / f"classes-{sha256(text).hexdigest()[:16]}"

    @property
    def installed(self) -> bool:
        """Whether the peer can run."""
        return self.downloaded and (self is not JVM or self.classes.exists())

    def start(self, java: Path) -> list[str]:
        """Return the command that runs it, without the name of a case."""
        program = java if self is JVM else self.folder / "bin" / "python"
        words = (
            word.format(folder=self.folder, classes=self.classes)
            for word in self.command
        )
        return [str(program), *words]


JVM = Peer(
    "Kafka Streams",
    ("org.apache.kafka:kafka-streams:4.2.1", "org.slf4j:slf4j-simple:1.7.36"),
    (
        "-cp",
        "{folder}/jars/*:{classes}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "Peer",
    ),
    (
        "stateless",
        "stateless typed",
        "count",
        "count uncached",
        "count exactly-once",
        "windowed sum",
        "windowed field",
        "windowed turnover",
        "session sum",
        "stream join",
    ),
)
PYTHON = (
    Peer(
        "Quix Streams",
        ("quixstreams==3.28.1",),
        (str(HERE / "quix_app.py"),),
        ("stateless", "count uncached", "count exactly-once", "windowed sum"),
    ),
    Peer(
        "Faust",
        ("faust-streaming[rocksdict]==0.15.3",),
        (str(HERE / "faust_app.py"),),
        ("stateless", "count uncached"),
    ),
    Peer(
        "Bytewax",
        ("bytewax[kafka]==0.21.1", "orjson==3.11.4"),
        (str(HERE / "bytewax_app.py"),),
        ("stateless", "count uncached"),
        commits=False,
    ),
)
PEERS = (JVM, *PYTHON)


def peer_cases(
    names: Sequence[str], environment: Mapping[str, str], java: Path
) -> Iterator[tuple[Peer, Case]]:
    """Yield the cases that the installed peers can run."""
    for peer in PEERS:
        for name in peer.cases:
            if peer.installed and name in names:
                outputs = (
                    None
                    if peer.commits
                    else FILTERED
                    if name.startswith("stateless")
                    else 1.0
                )
                yield peer, Case(name, [*peer.start(java), name], environment, outputs)
