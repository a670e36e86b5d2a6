"""`coopstreams top`, and the bars of key ranges that `coopstreams run` prints as well."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from coopstreams.commands.terminal.bars import (
    MOST_PARTITIONS,
    WIDTH,
    Letters,
    range_bars,
)
from coopstreams.commands.top import picture
from coopstreams.topology.keys import GROUPS, KeyRange
from tests.query.cluster import Cluster


def said(shown: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 closed with the test
    console.print(shown)
    return [
        line.rstrip() for line in console.export_text().splitlines() if line.strip()
    ]


def task(
    partition: int,
    key_range: str,
    rate: float = 1.0,
    state: str = "running",
    **more: Any,
) -> dict[str, Any]:
    place = {
        "id": f"0_{partition}[{key_range}]",
        "subtopology": 0,
        "partition": partition,
        "key_range": key_range,
    }
    return (
        place
        | {"state": state, "rate": rate, "lag": 5, "shared": True, "hot": []}
        | more
    )


def instance(
    id_: str, *tasks: dict[str, Any], state: str = "running", **more: Any
) -> dict[str, Any]:
    about = {
        "id": id_,
        "url": f"http://{id_}:80",
        "state": state,
        "live": True,
        "reasons": [],
        "tasks": list(tasks),
    }
    return about | more


def test_a_bar_has_its_owners_with_their_load_and_what_nobody_has() -> None:
    owners = [
        (Text("A"), [task(0, "0..63", rate=80.0), task(1, "0..255", rate=0.4)]),
        (
            Text("B"),
            [
                task(0, "64..127", rate=10.0),
                task(0, "128..191", state="restoring", rate=0.0),
            ],
        ),
    ]
    one, other = said(range_bars(owners))
    assert one.split()[:2] == ["0_0", "A█████████B▂▂▂▂▂▂▂▂▂B░░░░░░░░░··········"]
    assert one.split()[2:] == ["90/s", "≤5"]
    assert other.split()[1:3] == ["A" + "▁" * (WIDTH - 1), "0.4/s"]
    assert (
        said(range_bars(owners, ascii_only=True))[0].split()[1]
        == "A" * 10 + "B" * 20 + "." * 10
    )


@given(st.integers(1, GROUPS), st.integers(1, 5))
def test_any_cut_of_a_partition_fills_its_bar(pieces: int, owners: int) -> None:
    ranges = [task(0, str(piece)) for piece in KeyRange.split(pieces)]
    [line] = said(
        range_bars([(Text("ABCDE"[n]), ranges[n::owners]) for n in range(owners)])
    )
    bar = line.split()[1]
    assert len(bar) == WIDTH
    assert "·" not in bar


def test_of_many_partitions_those_that_lag_are_shown() -> None:
    tasks = [task(number, "0..255", lag=number) for number in range(30)]
    lines = said(range_bars([(Text("A"), tasks)]))
    assert [line.split()[0] for line in lines] == [
        f"0_{29 - n}" for n in range(MOST_PARTITIONS)
    ] + ["and"]
    assert lines[-1].split() == ["and", "18", "more", "partitions"]


def test_an_instance_keeps_its_letter_and_leaves_it_to_another_when_it_has_gone() -> (
    None
):
    letters = Letters()
    letters.meet(["x", "y"])
    letters.meet(["a", "y"])
    assert [letters.of(name).plain for name in ("a", "y")] == ["A", "B"]


def test_the_picture_fits_a_terminal_and_says_what_is_wrong() -> None:
    hot = {"key_group": 17, "share": 0.4}
    why = {"code": "restoring", "message": "task 0_0[128..255] waits for its state"}
    report = {
        "application": "shop",
        "generation": 7,
        "instances": [
            instance("one", task(0, "0..127", rate=100.0, hot=[hot])),
            instance(
                "two",
                task(0, "128..255", state="restoring", rate=0.0),
                state="rebalancing",
                reasons=[why],
            ),
            instance(
                "three",
                state="unreachable",
                live=False,
                reasons=[{"code": "unreachable", "message": "timed out"}],
            ),
        ],
    }
    lines = said(picture(report, Letters()))
    assert max(map(len, lines)) <= 80
    assert lines[0] == "shop  generation 7, 2 tasks on 1 partitions"
    text = "\n".join(lines)
    for words in (
        "A one:80",
        "C two:80    rebalancing, restoring",
        "hot key groups: 17 of 0_0[0..127]: 40%, 40/s",
        "C restoring: task 0_0[128..255] waits for its state",
        "B unreachable: timed out",
    ):
        assert words in text, text


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 0)]
)
def test_a_signal_gives_the_terminal_back(number: int, status: int) -> None:
    with Cluster(1) as cluster:
        cluster.deal(1, {"counts": {"be": (2, 1)}})
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "coopstreams", "top", cluster["a"].url]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            shown = b""
            while b"generation" not in shown:  # on its own screen
                shown += os.read(ours, 1 << 16)
            process.send_signal(number)
            while b"\x1b[?1049l" not in shown:
                try:
                    shown += os.read(ours, 1 << 16)
                except OSError:  # it has ended
                    break
        os.close(ours)
    assert b"\x1b[?1049h" in shown
    assert b"\x1b[?1049l" in shown
    assert b"Traceback" not in shown
    assert process.returncode == status
