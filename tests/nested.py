"""Runs of pytest inside a test, with the plugins named and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_pytest(
    folder: Path, plugins: Sequence[str], *options: str
) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder in several processes; return the output of the run."""
    loaded = [
        word
        for plugin in ("xdist", *plugins, "no:cacheprovider")
        for word in ("-p", plugin)
    ]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *loaded,
            "--dist",
            "loadscope",
            *options,
            "--rootdir",
            folder,
            folder,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
