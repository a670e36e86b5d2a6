"""Everything on a page is checked: code runs, commands and settings exist, links lead
somewhere.
"""

from __future__ import annotations

import ast
import gc
import itertools
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from coopstreams.common.config import Config
from coopstreams.common.setting_sources import settings_of
from coopstreams.query.openapi import description
from coopstreams.query.parameters import RequestLimits
from tests.command_line import app
from tests.conftest import Kafka
from tests.docs.pages import LANGUAGES, PAGES, ROOT, Block, Link, anchors, blocks, links

EXAMPLES = ROOT / "examples"
BLOCKS = [block for page in PAGES for block in blocks(page)]
RUNNING = [
    page for page in PAGES if any(block.language == "python" for block in blocks(page))
]
WITH_KAFKA = [
    page for page in RUNNING if any("broker" in block.words for block in blocks(page))
]
COMMANDS = [
    (block, command)
    for block in BLOCKS
    if block.language in ("console", "sh")
    for command, _ in block.commands
]

_WORDS = {
    "cd",
    "echo",
    "kill",
    "source",
    "pip",
    "git",
    "mkdir",
    "sha256sum",
    "tar",
    "twine",
}
"""Commands that are checked by name only."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_python(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, kafka: Kafka | None
) -> None:
    """Run the Python blocks of a page, one after the other, with the same names; those
    that need a broker only if there is one.
    """
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    module = ModuleType("page")  # dataclasses look up their module
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page):
        if block.language != "python":
            continue
        text = (
            block.text
            if kafka is None
            else block.text.replace("localhost:9092", kafka.bootstrap)
        )
        if block.file is not None:
            (folder / block.file).write_text(text)
        # Blank lines in front, so that errors name the line of the page.
        code = compile("\n" * (block.line - 1) + text, str(block), "exec")
        if kafka is not None or not ({"broker", "file"} & set(block.words)):
            exec(code, vars(module))
    vars(module).clear()
    # clients of Kafka are not closed on a page; collected now, they do not complain
    # about the broker's end
    gc.collect()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_says_its_language_so_that_somebody_checks_it(block: Block) -> None:
    assert block.language in LANGUAGES
    assert not any(len(line) > 150 for line in block.text.splitlines()), (
        "too long for a page"
    )


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_python(page, tmp_path, monkeypatch, None)


@pytest.mark.ci
@pytest.mark.broker
@pytest.mark.parametrize("page", WITH_KAFKA, ids=name_of)
def test_the_python_of_a_page_runs_on_kafka(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka: Kafka
) -> None:
    run_python(page, tmp_path, monkeypatch, kafka)


@pytest.mark.parametrize(
    ("block", "command"), COMMANDS, ids=lambda given: str(given).partition(" --")[0]
)
def test_a_command_can_be_typed(block: Block, command: str) -> None:
    words = shlex.split(re.sub(r"\$\([^)]*\)", "0", command))
    while "|" in words:
        end = words.index("|")
        can_be_typed(block, words[:end])
        words = words[end + 1 :]
    can_be_typed(block, words)


def can_be_typed(block: Block, words: list[str]) -> None:
    """Check one program with its arguments."""
    command = shlex.join(words)
    program, *arguments = itertools.dropwhile(
        re.compile(r"[A-Z_]+=").match,
        itertools.takewhile(lambda word: word != ">", words),
    )
    if program == "spark-submit":  # its main file takes the arguments of `coopstreams`
        main = next(
            (number for number, word in enumerate(arguments) if word.endswith(".py")),
            None,
        )
        if main is None:
            return
        program, arguments = "coopstreams", arguments[main + 1 :]
    if program == "coopstreams":
        parse(arguments)
    elif program == "make":
        assert arguments[:1] == [] or re.search(
            rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE
        ), command
    elif program == "curl":
        assert known_path(arguments[-1]), f"there is no {arguments[-1]}"
    elif program == "python" and arguments[0] == "-m":
        assert (ROOT / arguments[1].replace(".", "/")).exists(), (
            f"there is no module {arguments[1]}"
        )
    elif program in ("python", "pytest"):
        files = {other.file for other in blocks(block.page)}
        assert arguments[0] in files or (ROOT / arguments[0]).exists(), (
            f"{arguments[0]} is not on the page"
        )
    else:
        assert program in _WORDS, command


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "toml"], ids=str
)
def test_a_configuration_file_is_taken(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for secret in ("ORDERS_PASSWORD", "ORDERS_READ", "ORDERS_OPERATE"):
        monkeypatch.setenv(secret, "a-secret-of-the-orders")
    tomllib.loads(block.text)
    file = tmp_path / "settings.toml"
    file.write_text(block.text)
    Config.of(
        {"bootstrap.servers": "localhost:9092"} | settings_of(file, {}, {}),
        "application",
    )


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "json"], ids=str
)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    def is_there(link: Link) -> bool:
        return (
            link.file.exists()
            and link.file.is_relative_to(ROOT)
            and (not link.anchor or link.anchor in anchors(link.file))
        )

    lost = [link for link in links(page) if not is_there(link)]
    assert [f"[{link.text}]({link.path}#{link.anchor})" for link in lost] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_linked_function_is_in_the_file_that_the_link_names(page: Path) -> None:
    named = [
        link
        for link in links(page)
        if link.text.startswith("`")
        and link.file.suffix == ".py"
        and not link.text.endswith(".py`")
    ]
    lost = [
        f"{link.text} in {link.path}"
        for link in named
        if link.text.strip("`()") not in set(defined(link.file))
    ]
    assert lost == []


def test_the_figures_of_the_readme_are_those_of_the_page_about_performance() -> None:
    beside = (
        (ROOT / "README.md")
        .read_text()
        .split("Beside Kafka Streams")[1]
        .split("\n## ")[0]
    )
    figures = set(re.findall(r"(?<![\d,])\d{1,3}(?:,\d{3})+|\b\d\.\d\d\b", beside))
    assert len(figures) > 5
    assert [
        figure
        for figure in figures
        if figure not in (ROOT / "docs" / "performance.md").read_text()
    ] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    while (
        new := {
            link.file
            for page in reached
            for link in links(page)
            if link.file.suffix == ".md"
        }
        - reached
    ):
        reached |= new
    assert set(PAGES) <= reached


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.file and (EXAMPLES / block.file).exists()],
    ids=str,
)
def test_a_program_of_the_examples_is_shown_as_it_is(block: Block) -> None:
    assert block.file is not None
    assert statements(block.text) == statements((EXAMPLES / block.file).read_text())


def test_the_programs_of_the_examples_that_pages_show_are_found() -> None:
    assert {block.file for block in BLOCKS} >= {"word_count.py", "shop.py"}


def parse(arguments: list[str]) -> None:
    """Let the command line parse arguments, without running anything; an unknown
    command or option raises.
    """
    command: Any = typer.main.get_command(app)
    context = command.make_context("coopstreams", list(arguments))
    while rest := [*getattr(context, "_protected_args", ()), *context.args]:
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def statements(program: str) -> list[str]:
    """Return the statements of a program, without layout and docstring."""
    return [
        ast.dump(node)
        for node in ast.parse(program).body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def known_path(url: str) -> bool:
    """Whether the description of the HTTP interface has a URL's path."""
    path = re.sub(r"^https?://[^/]+", "", url).partition("?")[0]
    patterns = [
        re.sub(r"\{\w+\}", "[^/]+", known)
        for known in description(RequestLimits())["paths"]
    ]
    return any(re.fullmatch(pattern, path) for pattern in patterns)


def defined(file: Path) -> Iterator[str]:
    """Yield the functions, classes, methods (`Class.method`) and constants of a module."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}"
