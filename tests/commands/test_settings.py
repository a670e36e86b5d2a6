"""The logging set-up of commands that contact Kafka."""

from __future__ import annotations

import contextlib
import io
import logging

import pytest

from coopstreams.commands.settings import configure_logging


def test_lines_go_to_the_standard_error_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that runs in a test, or in a notebook, has had another one, which is closed since."""
    with contextlib.redirect_stderr(io.StringIO()) as captured:
        configure_logging(verbose=False)
    captured.close()
    logging.getLogger("coopstreams.tasks").info("after the command")
    assert capsys.readouterr().err.endswith("INFO    after the command\n")
