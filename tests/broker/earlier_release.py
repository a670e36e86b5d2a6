"""Release 0.1 of coopstreams, as a wheel built from history, to run beside this tree.

The last commit before timed topics counts as release 0.1. Its wheel is built once and
kept, unpacked, in the cache folder, under the commit and the SHA-256 of its modules.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from coopstreams.dev.cache import cache_folder, locked

COMMIT = "e97f6858417b86f682ef89807d2606b85879a12d"
SHA256 = "da41d339686cc4b7fa033374b29c840e22e8355214870568ca90da5d4568f0e0"
"""The digest of the wheel's modules: see `digest`."""
ROOT = Path(__file__).resolve().parent.parent.parent


def is_in_history() -> bool:
    """Return whether this checkout has the commit: a shallow clone does not."""
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return found.returncode == 0


def release_0_1() -> Path:
    """Return the folder with the unpacked wheel of release 0.1; build it first if there
    is none.
    """
    folder = cache_folder() / "releases" / f"0.1-{COMMIT[:12]}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                made = _unpacked(_wheel(Path(work)), Path(work) / "unpacked")
                made.rename(folder)
    found = digest(folder)
    assert found == SHA256, f"{folder} is not release 0.1: {found}. Delete it"
    return folder


def digest(folder: Path) -> str:
    """Return the SHA-256 of all modules of a folder, in the order of their names. What
    a build tool adds is not included.
    """
    told = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        told.update(path.relative_to(folder).as_posix().encode() + b"\0")
        told.update(path.read_bytes() + b"\0")
    return told.hexdigest()


def _wheel(work: Path) -> Path:
    """Build the wheel of the commit by pip, as a user would; return its file."""
    archive = subprocess.run(
        ["git", "archive", COMMIT], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(work / "source", filter="data")
    options = ["--quiet", "--no-deps", "--wheel-dir", str(work), str(work / "source")]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options], check=True)
    (wheel,) = work.glob("coopstreams-*.whl")
    return wheel


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder
