"""A real headless Chromium for the tests of the page, which are skipped without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coopstreams.topology.errors import DevError
from examples.demo.browser import Browser

WAIT_S = 120
"""The longest wait for an element of the page: long, because a busy machine may pause;
no test depends on it.
"""
KEYS = {"ArrowRight": 39, "ArrowDown": 40}
COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown")


@contextmanager
def chromium() -> Iterator[Page]:
    """Start a browser with an empty profile; skip the test if the machine has none."""
    try:
        page = Page()
    except DevError as error:
        pytest.skip(f"{error}: apt-get install chromium")
    with page:
        yield page


class Page(Browser):
    """A page as a person sees and uses it."""

    def __init__(self) -> None:
        super().__init__()
        self._complaints: list[str] = []

    def open(self, url: str) -> None:
        """Load a page; forget earlier complaints."""
        for domain in ("Log", "Runtime"):
            self.ask(f"{domain}.enable")
        super().open("about:blank")
        self.complaints()
        super().open(url)

    def shows(self, expression: str) -> None:
        """Wait until an expression in JavaScript is true."""
        assert self.until(f"!!({expression})", WAIT_S), expression

    def text(self, selector: str) -> str:
        return str(
            self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        )

    def press(self, *keys: str) -> None:
        """Press keys at the current focus."""
        for key in keys:
            for kind in ("rawKeyDown", "keyUp"):
                self.ask(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=KEYS[key],
                )

    def complaints(self) -> list[str]:
        """Return the errors and warnings in the console since the last call: refused by
        the policy, or raised.
        """
        self.run("0")  # earlier messages have been read when this returns
        told, self._complaints = self._complaints, []
        return told

    def ranges(self) -> dict[str, tuple[str, float, float]]:
        """Return the owner of each drawn range, and its bounds as parts of the bar."""
        drawn = self.run(
            "[...document.querySelectorAll('.range')].map(one => { const bar = one.parentElement"
            ".getBoundingClientRect(), box = one.getBoundingClientRect(); return [one.dataset.task, one.dataset.owner, "
            "(box.left - bar.left) / bar.width, (box.right - bar.left) / bar.width] })"
        )
        return {task: (owner, start, end) for task, owner, start, end in drawn}

    def _next(self) -> bytes:
        message = super()._next()
        if json.loads(message).get("method") in COMPLAINTS:
            self._complaints.append(message.decode())
        return message
