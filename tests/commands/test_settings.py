"""The common behaviour of commands that contact Kafka: the logging set-up, and messages
when nothing answers.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import socket

import pytest

from coopstreams.commands.cli import run_command
from coopstreams.commands.command_settings import configure_logging, refusals
from coopstreams.commands.http_access import say_waiting
from coopstreams.query.problems import moving
from coopstreams.topology.errors import ConfigError


def test_lines_go_to_the_standard_error_of_the_moment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An earlier command in a test, or in a notebook, used another one, which is
    closed.
    """
    with contextlib.redirect_stderr(io.StringIO()) as captured:
        configure_logging(verbose=False)
    captured.close()
    logging.getLogger("coopstreams.tasks").info("after the command")
    assert capsys.readouterr().err.endswith("INFO    after the command\n")


def test_addresses_that_take_no_connection_are_named_with_what_they_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # no process listens there
        here, nowhere = (
            f"127.0.0.1:{each.getsockname()[1]}" for each in (listening, bound)
        )
        assert refusals(f"PLAINTEXT://{nowhere},x:y") == [
            f"PLAINTEXT://{nowhere}: Connection refused",
            "x:y: invalid literal for int() with base 10: 'y'",
        ]
        assert refusals(f"{nowhere},{here}") == [], "one is enough"


def test_an_address_without_a_port_has_that_of_kafka(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setattr(
            "coopstreams.commands.command_settings.KAFKA_PORT",
            str(listening.getsockname()[1]),
        )
        assert refusals("127.0.0.1") == refusals("PLAINTEXT://127.0.0.1") == []
    assert refusals("127.0.0.1") == ["127.0.0.1: Connection refused"]


def test_why_a_question_is_asked_again_is_said_with_how_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_waiting(30, moving("http://x does not answer. Does the application run?"))
    assert capsys.readouterr().err.endswith(
        "http://x does not answer. Does the application run? Trying again for 30 s; Ctrl-C ends it.\n"
    )


@pytest.mark.parametrize(
    ("watched", "time"),
    [(True, r"\d\d:\d\d:\d\d"), (False, r"[\d-]{10}T[\d:]{8}[+-]\d{4}")],
)
def test_a_log_line_has_date_and_zone_unless_somebody_watches_it(
    capsys: pytest.CaptureFixture[str], watched: bool, time: str
) -> None:
    configure_logging(verbose=False, watched=watched)
    logging.getLogger("coopstreams").info("here")
    assert re.fullmatch(rf"{time} INFO    here\n", capsys.readouterr().err)


def test_a_terminal_obeys_nothing_that_a_record_has_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging(verbose=False, watched=True)
    logging.getLogger("coopstreams").warning("key %s\n  the cure", "\x1b[2J\r")
    assert capsys.readouterr().err.endswith("WARNING key \\x1b[2J\\r\n  the cure\n")

    def refused() -> None:
        raise ConfigError("\x1b[2J")

    with pytest.raises(SystemExit):
        run_command(refused)
    assert "ConfigError: \\x1b[2J" in capsys.readouterr().err
