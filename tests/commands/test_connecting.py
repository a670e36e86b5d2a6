"""The message of a command when no broker accepts connections."""

from __future__ import annotations

import socket

import pytest

from coopstreams.commands.settings import refusals, say_waiting
from coopstreams.query.problems import moving


def test_addresses_that_take_no_connection_are_named_with_what_they_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # no process listens there
        here, nowhere = (f"127.0.0.1:{each.getsockname()[1]}" for each in (listening, bound))
        assert refusals(f"PLAINTEXT://{nowhere},x:y") == [
            f"PLAINTEXT://{nowhere}: Connection refused",
            "x:y: invalid literal for int() with base 10: 'y'",
        ]
        assert refusals(f"{nowhere},{here}") == [], "one is enough"


def test_why_a_question_is_asked_again_is_said_with_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    say_waiting(30, moving("http://x does not answer. Does the application run?"))
    assert capsys.readouterr().err.endswith(
        "http://x does not answer. Does the application run? Trying again for 30 s; Ctrl-C ends it.\n"
    )
