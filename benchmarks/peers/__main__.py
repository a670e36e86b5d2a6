"""Installs the frameworks that `make bench` compares coopstreams with: `python -m
benchmarks.peers [NAME …]`.

Kafka Streams comes from Maven and needs a JDK; the others come from PyPI, each into a
virtual environment of its own. What is installed already stays. They are in the cache
folder (COOPSTREAMS_CACHE); remove its folder `peers` to be rid of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import venv
from pathlib import Path

from rich.console import Console

from benchmarks.peers import JAVA_SOURCES, JVM, PEERS, Peer
from coopstreams.common.java import find_java
from coopstreams.dev.jars import REPOSITORY, maven


def install(peer: Peer) -> None:
    """Install a peer into its folder; an incomplete folder is made again. Of Kafka
    Streams, programs that have changed are compiled again.

    Raises:
        SystemExit: no JDK; or a download or a compiler has failed, with a message.
    """
    if not peer.downloaded:
        _download(peer)
    if peer is JVM:
        _compile(peer)


def _download(peer: Peer) -> None:
    shutil.rmtree(peer.folder, ignore_errors=True)
    peer.folder.mkdir(parents=True)
    if peer is JVM:
        _jars(peer)
    else:
        venv.create(peer.folder, with_pip=True)
        _run(
            str(peer.folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            *peer.packages,
        )
    (peer.folder / "complete").touch()


def _jars(peer: Peer) -> None:
    jars = peer.folder / "jars"
    jars.mkdir()
    context = maven(peer.folder / "maven", os.environ.get(REPOSITORY))
    asked, transitive = context.resolver.resolve(
        [context.create_dependency(each) for each in peer.packages]
    )
    for dependency in (*asked, *transitive):
        path = dependency.artifact.resolve()
        path.rename(jars / path.name)
    shutil.rmtree(peer.folder / "maven")


def _compile(peer: Peer) -> None:
    compiler = Path(find_java().executable).with_name("javac")
    if not compiler.exists():
        raise SystemExit(
            f"Kafka Streams needs a JDK: there is no {compiler}. Install one, and point JAVA_HOME to it."
        )
    # A name of its own until it is whole: another checkout may compile the same now.
    with tempfile.TemporaryDirectory(dir=peer.folder) as folder:
        made = Path(folder) / "classes"
        _run(
            str(compiler),
            "-cp",
            f"{peer.folder}/jars/*",
            "-d",
            str(made),
            *map(str, JAVA_SOURCES),
        )
        if not peer.classes.exists():
            made.rename(peer.classes)


def _run(*command: str) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}")


def main() -> None:
    """Install the peers with these names, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=", ".join(peer.name for peer in PEERS)
    )
    names = parser.parse_args().names
    if unknown := set(names) - {peer.name for peer in PEERS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    console = Console()
    for peer in PEERS:
        if names and peer.name not in names:
            continue
        if not peer.installed:
            with console.status(f"{peer.name}: {', '.join(peer.packages)}"):
                install(peer)
        console.print(f"{peer.name}: {peer.folder}")


if __name__ == "__main__":
    main()
