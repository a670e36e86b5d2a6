"""A headless Chromium that watches the page of an instance and takes pictures of it.
Speaks DevTools over two pipes.

Invariant: the browser ends with the block, and its profile is gone. Turned down:
Selenium (a package and a driver, for four commands), `chromium --screenshot` (a picture
of the moment in which the page was opened: no plots, no moves).
Source: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from coopstreams.topology.errors import DevError

ANSWER_S = 30.0
FLAGS = (
    "--headless",
    "--no-sandbox",  # as root there is no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH = 1200
LEAST_DESCRIPTOR = 10
BECOME = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads commands from descriptor 3 and answers on 4."""


class Browser:
    """One page in one browser, as a context manager."""

    def __init__(self) -> None:
        """Look for the browser.

        Raises:
            DevError: there is none.
        """
        found = next((path for name in NAMES if (path := shutil.which(name))), None)
        if found is None:
            raise DevError(
                f"pictures need Chromium; none of {', '.join(NAMES)} is in PATH"
            )
        self._program = found
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(
            prefix="coopstreams-chromium-", ignore_cleanup_errors=True
        )
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # Duplicate them above 3 and 4, the descriptors that the browser uses: `dup2`
        # would overwrite one of ours there.
        theirs = [
            fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, LEAST_DESCRIPTOR)
            for own in (commands, answers)
        ]
        flags = [*FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BECOME, *map(str, theirs), self._program, *flags],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for own in (commands, answers, *theirs):
            os.close(own)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def open(self, url: str) -> None:
        """Load a page."""
        self.ask("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript, or the value that it
        promises.
        """
        done = self.ask(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        return done["result"].get("value")

    def until(self, expression: str, seconds: float) -> bool:
        """Wait until an expression is true; return whether it is."""
        deadline = time.monotonic() + seconds
        while not (true := bool(self.run(expression))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return true

    def picture(self, path: Path, height: int, *, dark: bool = False) -> None:
        """Save a picture of the page."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme, still])
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=WIDTH,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.run("scrollTo(0, 0)")
        path.write_bytes(
            base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])
        )

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a DevTools command.

        Raises:
            DevError: the browser refuses it, or does not answer.
        """
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == number:
                if "error" in answer:
                    raise DevError(
                        f"the browser refused {method}: {answer['error']['message']}"
                    )
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self) -> bytes:
        """Return the next message of the browser.

        Raises:
            DevError: it does not answer, or has ended.
        """
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], ANSWER_S)[0] or not (
                more := os.read(self._read, 1 << 20)
            ):
                raise DevError(f"{self._program} does not answer")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return message
