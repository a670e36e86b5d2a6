"""The documentation site is complete: all pages are in the navigation, and all links
have a target.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PAGES, ROOT, links
from tests.docs.site import MODULES, site_page, write_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_pages(folder)
    return folder


def test_every_page_is_in_the_navigation_once_and_nothing_else() -> None:
    named = list(
        named_in(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    )
    reference = [f"reference/{module}.md" for module in MODULES]
    assert sorted(named) == sorted(
        [*reference, *(site_page(page).as_posix() for page in PAGES)]
    )


def test_every_link_of_the_site_leads_to_one_of_its_pages(pages: Path) -> None:
    written = [page for page in pages.rglob("*.md") if "source" not in page.parts]
    lost = [
        f"{page}: {link.path}"
        for page in written
        for link in links(page)
        if not link.file.is_file()
    ]
    assert lost == []
    assert sum(len(links(page)) for page in written) > 300


def test_a_block_names_its_language_alone(pages: Path) -> None:
    fences = [
        line
        for page in pages.glob("**/*.md")
        for line in page.read_text().splitlines()
        if re.match("```\\w", line)
    ]
    assert len(fences) > 50
    assert [fence for fence in fences if " " in fence] == []


def test_the_reference_has_every_public_name(pages: Path) -> None:
    shown = re.findall(
        r"^::: ([\w.]+)$",
        "\n".join(
            (pages / "reference" / f"{module}.md").read_text() for module in MODULES
        ),
        re.MULTILINE,
    )
    assert {
        "coopstreams.KStream",
        "coopstreams.testing.TopologyTestDriver",
        "coopstreams.topology.errors.TopologyError",
    } <= set(shown)


def named_in(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of a navigation."""
    for entry in nav:
        inside = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(inside, str):
            yield inside
        else:
            yield from named_in(inside)
