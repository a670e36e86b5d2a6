"""Release 0.1 reads what this release writes beside it, and refuses the rest with the
cure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.earlier_release import is_in_history, release_0_1
from tests.formats import golden_reader
from tests.formats.golden import FILE, golden


def read_by(folder: Path) -> dict[str, str]:
    """Return what a release says of each format and version that it was given."""
    said = subprocess.run(
        [sys.executable, golden_reader.__file__, FILE],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(line.split(": ", 1) for line in said.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.skipif(not is_in_history(), reason="a clone without release 0.1")
def test_release_0_1_reads_all_but_what_a_group_writes_that_has_changed_over() -> None:
    said = read_by(release_0_1())
    assert said.keys() == {
        f"{name} {version}"
        for name, versions in golden().items()
        if name in golden_reader.READERS
        for version in versions
    }
    refused = {each: why for each, why in said.items() if why != "read"}
    # Commits in the order of births are written behind timed topics only, and these
    # begin with the level that the record has.
    assert refused.keys() == {"commit value 3", "topology record 2"}
    assert "use the newer coopstreams" in refused["topology record 2"]
