"""`coopstreams pack`: packs what the workers of a Spark cluster need into one archive
for spark-submit.

The archive is a virtual environment with coopstreams and the application's libraries.
It does not have PySpark, which each worker has. It has only a link to Python itself, so
a worker needs the same Python at the same path, as with Spark's own recipe.

Turned down: venv-pack (it rewrites the scripts of an environment, which no worker
calls; no release since 2018).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

import coopstreams
from coopstreams.topology.errors import ConfigError

_WITHIN = "environment"
_PACKAGE = Path(coopstreams.__file__).parent


def pack(
    archive: Annotated[
        Path, typer.Argument(metavar="WORKER.tar.gz", help="The archive to write.")
    ],
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="REQUIREMENT",
            help="A further requirement for pip: a name, a folder, a wheel; may be repeated.",
        ),
    ] = None,
) -> None:
    """Pack a Python environment for the workers of a cluster, and print how to submit a
    backfill with it.

    Run it on a machine like the workers: the same operating system, processor and
    Python.
    """
    if not archive.name.endswith(".tar.gz"):
        raise ConfigError(
            f"{archive}: name it .tar.gz, by which Spark knows how to unpack it"
        )
    if not archive.parent.is_dir():
        raise ConfigError(f"{archive}: there is no folder {archive.parent}")
    with tempfile.TemporaryDirectory(prefix="coopstreams-pack-") as folder:
        made = Path(folder) / _WITHIN
        venv.create(made, symlinks=True)
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(made / "bin" / "python"),
            "install",
            "--no-compile",
        ]
        if (
            subprocess.run(
                [*install, _ourselves(Path(folder) / "source"), *(with_ or [])],
                check=False,
            ).returncode
            != 0
        ):
            raise ConfigError(
                "pip could not install the packages of the workers; its output is above"
            )
        with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
            packed.add(made, arcname=".")
    typer.echo(
        f"{archive}: {archive.stat().st_size / 1e6:.0f} MB. Submit a backfill with it:\n\n{command(archive)}"
    )


def _ourselves(folder: Path) -> str:
    """Return the requirement by which pip installs this coopstreams: a release, or a
    copy of this checkout in `folder`.

    It is a copy, because building leaves files behind.
    """
    checkout = _PACKAGE.parent
    if not (checkout / "pyproject.toml").is_file():
        return f"coopstreams[worker]=={version('coopstreams')}"
    shutil.copytree(
        checkout,
        folder,
        ignore=shutil.ignore_patterns(
            ".*",
            "build",
            "*.egg-info",
            "__pycache__",
            "tests",
            "benchmarks",
        ),
    )
    return f"{folder}[worker]"


def command(archive: Path) -> str:
    """Return the command line that runs `coopstreams backfill` on a cluster with this
    archive.

    The archive is also unpacked for the driver, where Spark asks the data source of
    coopstreams for its partitions.
    """
    return (
        f"mkdir -p {_WITHIN} && tar -xzf {archive} -C {_WITHIN} && \\\n"
        f"spark-submit --master MASTER --archives {archive}#{_WITHIN} --conf "
        f"spark.pyspark.driver.python={sys.executable} \\\n"
        f"  --conf spark.pyspark.python=./{_WITHIN}/bin/python --conf spark.speculation=false \\\n"
        f"  {_PACKAGE / 'commands' / 'submit.py'} backfill APP.py --bootstrap-servers HOST:PORT --work URL"
    )
