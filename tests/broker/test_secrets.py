"""Nothing that an application prints or serves contains a secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.broker.counting import Counting
from tests.broker.processes import Workers
from tests.broker.secured import SecuredKafka, printed
from tests.broker.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def commands(app: Path, config: Path, url: str, application: str) -> list[list[str]]:
    """Return the commands that an operator types."""
    return [
        ["status", url],
        ["describe", str(app)],
        ["check", str(app), str(app)],
        ["group", "describe", application, "--config", str(config)],
        ["query", url, "counts", "a"],
    ]


def test_no_secret_is_printed_or_served(secured: SecuredKafka, tmp_path: Path) -> None:
    counting = Counting.make(secured)
    acls = printed(counting.topology, processing_guarantee="exactly_once_v2")
    user = secured.user(counting.application, acls)
    password = user.pop("sasl.password")
    (tmp_path / "password").write_text(password)
    app, config = tmp_path / "app.py", tmp_path / "settings.toml"
    app.write_text(counting.program)
    told = user | {
        "sasl.password": f"${{file:{tmp_path / 'password'}}}",
        "processing.guarantee": "exactly_once_v2",
    }
    config.write_text("".join(f'{name} = "{value}"\n' for name, value in told.items()))
    workers = Workers(
        app, secured.bootstrap, tmp_path, {}, {}, ["--config", str(config), "--verbose"]
    )
    try:
        workers.start(0)
        eventually(lambda: workers.url(0) is not None, 60, workers.logs)
        url = workers.url(0)
        counting.write(["a", "b"])
        with httpx.Client(base_url=str(url)) as client:
            eventually(
                lambda: client.get("/health/ready").status_code == 200, 60, workers.logs
            )
            paths = [
                path
                for path in client.get("/openapi.json").json()["paths"]
                if "{" not in path
            ]
            served = [client.get(path).text for path in paths]
        typed = [
            subprocess.run(
                [sys.executable, "-m", "coopstreams", *each],
                capture_output=True,
                text=True,
                check=False,
            )
            for each in commands(app, config, str(url), counting.application)
        ]
        shown = [
            *served,
            *(done.stdout + done.stderr for done in typed),
            Path(f"/proc/{workers.running[0].pid}/cmdline").read_text(),
        ]
        assert workers.terminate(0) == 0
    finally:
        workers.clean_up()
    shown.append(workers.log(0))
    assert len(served) > 5
    assert "generation 1" in workers.log(0)
    assert not [text for text in shown if password in text]
