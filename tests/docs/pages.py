"""The pages of the documentation, taken apart: blocks of code, links, headings, tables.

A block is fenced by three backticks; behind them its language and perhaps words for
these tests:

    python            runs, after the blocks before it on the page
    python broker     the same, on a Kafka, and after all the others of the page have run on it too
    python file       is saved under the name in its first line, `# name.py`, as every block with such a line is; not
                      run
    console           commands behind `$ `, and what they print; run on the page of the tutorial
    console terminal-1    the same, in a terminal of its own
    sh, toml, json    read, not run
    text, mermaid     for people
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LANGUAGES = {"python", "console", "sh", "toml", "json", "text", "mermaid"}

_FILE = re.compile(r"# ([\w/]+\.py)\n")
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """A fenced block. `words` are those after the language; `line` is that of its first
    text line.
    """

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file of a Python block, from its first line."""
        found = _FILE.match(self.text)
        return found[1] if found and self.language == "python" else None

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands of a console or shell block, each with its expected output
        lines.
        """
        if self.language == "sh":
            lines = [
                line.partition(" #")[0].strip()
                for line in self.text.replace("\\\n", " ").splitlines()
            ]
            return [
                (part.strip(), [])
                for line in lines
                if line and not line.startswith("#")
                for part in line.split(" && ")
            ]
        commands: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:].strip(), []))
            else:
                commands[-1][1].append(line)
        return commands

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


@dataclass(frozen=True)
class Link:
    """A link to a place in this repository. `anchor` is the part after the hash, or
    empty.
    """

    page: Path
    text: str
    path: str
    anchor: str

    @property
    def file(self) -> Path:
        """The file of the link."""
        return (self.page.parent / self.path).resolve() if self.path else self.page


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return list(_blocks(page))


def links(page: Path) -> list[Link]:
    """Return the links of a page that stay in this repository."""
    found: list[Link] = []

    def target(link: Link) -> str:
        found.append(link)
        return ""

    relinked(page, target)
    return found


def relinked(page: Path, target: Callable[[Link], str]) -> str:
    """Return the text of a page with other targets of the links that stay in this
    repository.
    """

    def linked(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        here = "://" not in match["target"]
        return (
            f"[{match['text']}]({target(Link(page, match['text'], path, anchor))})"
            if here
            else match[0]
        )

    return (
        "\n".join(
            line if fenced else _LINK.sub(linked, line) for fenced, line in _lines(page)
        )
        + "\n"
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub writes them."""
    headings = [
        line.lstrip("#").strip() for line in prose(page) if re.match(r"#+ ", line)
    ]
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


def tables(page: Path) -> list[list[list[str]]]:
    """Return the tables of a page: rows of cells, the heading first."""
    found: list[list[list[str]]] = []
    inside = False
    for line in prose(page):
        if line.startswith("|"):
            cells = [
                cell.strip().replace("\\|", "|")
                for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))
            ]
            if not inside:
                found.append([])
            if not all(set(cell) <= set("-:") for cell in cells):
                found[-1].append(cells)
        inside = line.startswith("|")
    return found


def table_headed(page: Path, *heading: str) -> list[list[str]]:
    """Return the rows of the one table that has this heading."""
    wanted = [table[1:] for table in tables(page) if table[0] == list(heading)]
    assert len(wanted) == 1, f"{page.name} has {len(wanted)} tables headed {heading}"
    return wanted[0]


def code_words(text: str) -> list[str]:
    """Return the texts between backticks."""
    return [word.strip("`") for word in _CODE.findall(text)]


def prose(page: Path) -> Iterator[str]:
    """Yield the lines of a page that are not inside fenced blocks."""
    return (line for fenced, line in _lines(page) if not fenced)


def _lines(page: Path) -> Iterator[tuple[bool, str]]:
    """Yield each line of a page, and whether it belongs to a fenced block."""
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        yield fenced or fence, line
        fenced ^= fence


def _blocks(page: Path) -> Iterator[Block]:
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (number + 1, line.removeprefix("```")), []
        else:
            language, *words = opened[1].split() or [""]
            yield Block(
                page, opened[0], language, tuple(words), "\n".join(lines) + "\n"
            )
            opened = None
    assert opened is None, f"{page}:{opened} is not closed"
