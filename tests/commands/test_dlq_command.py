"""The table of dead letters: what it shows of records that are as strange as those that
fail.
"""

from __future__ import annotations

import pytest

from coopstreams.admin.dead_letters import DeadLetter
from coopstreams.commands.dlq import letters_table
from coopstreams.commands.terminal.figures import plain_console
from coopstreams.topology.columns import TopicPartition


def shown(value: bytes | None, timestamp: int = 0) -> str:
    why = {
        "topic": "in",
        "partition": "0",
        "offset": "7",
        "exception": "ValueError",
        "message": "no [number]",
    }
    console = plain_console()
    console.width = 200
    with console.capture() as told:
        console.print(
            letters_table(
                [
                    DeadLetter(
                        TopicPartition("dead", 0), 3, timestamp, b"key", value, [], why
                    )
                ]
            )
        )
    return told.get()


@pytest.mark.parametrize(
    "value", ["[a, b]", "[/INST] no tag was opened", "[red]text", "user:key:1", r"\[b]"]
)
def test_a_value_is_shown_as_it_is(value: str) -> None:
    assert value in shown(value.encode())
    assert "ValueError: no [number]" in shown(value.encode())


@pytest.mark.parametrize(
    ("value", "as_shown"),
    [
        (b"\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        (b"one\r\ntwo\tthree", r"one\r\ntwo\tthree"),
        ("right to left \u202e".encode(), r"right to left \u202e"),
        ("Zoë 日本".encode(), "Zoë 日本"),
    ],
)
def test_a_terminal_does_not_obey_a_value(value: bytes, as_shown: str) -> None:
    assert as_shown in shown(value)


@pytest.mark.parametrize(
    ("timestamp", "time"),
    [
        (1_700_000_000_000, "2023-11-14 22:13:20"),
        (-1, "unknown"),
        (1_700_000_000_000_000, "1700000000000000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
    ],
)
def test_a_time_is_shown_even_if_it_is_none_of_the_calendar(
    timestamp: int, time: str
) -> None:
    assert time in shown(b"x", timestamp)
