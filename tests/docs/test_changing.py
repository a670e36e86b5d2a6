"""The page about changing a topology: its commands print the shown output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.reader import Reader


@pytest.mark.ci
def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {}, {})
    for block in blocks(ROOT / "docs" / "changing.md"):
        reader.type(block)
