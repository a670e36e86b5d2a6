"""`print`: each record as a line, on standard output, in a file, or to any object with
`write`.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from coopstreams.testing import TopologyTestDriver
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import ProcessingError, TopologyError

LINES = "[seen]: ann, 1\n[seen]: None, 2\n[seen]: bob, None\n"


def run(*arguments: Any, ranges: int = 1, **options: Any) -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.int64, name="source").print(
        *arguments, **options
    )
    with TopologyTestDriver(builder.build(), ranges) as driver:
        for key, value in [("ann", 1), (None, 2), ("bob", None)]:
            driver.input("in", serdes.text, serdes.int64).send(key, value)


@pytest.mark.parametrize("ranges", [1, 4])
def test_on_standard_output_unless_it_is_told_otherwise(
    capsys: pytest.CaptureFixture[str], ranges: int
) -> None:
    run(label="seen", ranges=ranges)
    assert capsys.readouterr().out == LINES


def test_into_what_can_be_written_to() -> None:
    out = io.StringIO()
    run(out, label="seen")
    assert out.getvalue() == LINES


@pytest.mark.parametrize("kind", [str, Path])
def test_at_the_end_of_a_file(tmp_path: Path, kind: type[str] | type[Path]) -> None:
    file = tmp_path / "seen.txt"
    run(kind(file), label="seen")
    run(kind(file), label="seen", ranges=4)
    assert file.read_text() == LINES * 2


def test_the_label_is_the_node_above_if_none_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(name="the-printer")
    assert capsys.readouterr().out.startswith("[source]: ann, 1\n")


def test_what_is_no_unicode_is_printed_all_the_same(tmp_path: Path) -> None:
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).map_values(
        lambda value: value + "\ud800"
    ).print(tmp_path / "out", label="odd")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.text, serdes.text).send("k", "v")
    assert (tmp_path / "out").read_text() == "[odd]: k, v\\ud800\n"


def test_a_file_that_cannot_be_written_fails_the_record_at_its_node(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ProcessingError,
        match=r"the-printer: FileNotFoundError.*processing\.exception\.handler",
    ):
        run(tmp_path / "no-folder" / "file", name="the-printer")


def test_what_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"print\(\): to=3"):
        run(3)
