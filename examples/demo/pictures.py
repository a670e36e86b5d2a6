"""The pictures of the demo's story: the page of the first process, as people would see
it meanwhile.

Invariant: a picture that cannot be made ends the demo with an error; it is never one of
something else.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from coopstreams.topology.errors import DevError
from examples.demo.browser import Browser

PAGE_S = 60.0
PICTURES = {
    "shared": (
        "overview",
        900,
        False,
        "document.querySelectorAll('.range.running').length >= 6",
    ),
    "topology": (
        "topology",
        1260,
        False,
        "document.querySelectorAll('.graph .operator').length > 0",
    ),
    "killed": ("overview", 900, True, "document.querySelector('.range.unreachable')"),
    "stores": (
        "stores",
        620,
        False,
        "document.querySelectorAll('#stores tbody tr').length > 0",
    ),
}
"""Name -> view of the page, height, whether in dark colours, and the condition in
JavaScript that it waits for.
"""


class Pictures:
    """Watches the page and takes pictures into a folder, as a context manager; without
    a folder it does nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._browser = None if folder is None else Browser()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._folder is not None and self._browser is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(self._browser)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def watch(self, url: str) -> None:
        """Open the page, which collects the values of its plots from now on."""
        if self._browser is not None:
            self._browser.open(f"{url}/")

    def take(self, name: str) -> None:
        """Take a picture when its condition holds.

        Raises:
            DevError: it does not hold in time.
        """
        if self._browser is None or self._folder is None:
            return
        view, height, dark, seen = PICTURES[name]
        self._browser.run(f"location.hash = '{view}'")
        if not self._browser.until(
            f"!document.body.classList.contains('stale') && {seen}", PAGE_S
        ):
            raise DevError(f"the page did not show {seen} within {PAGE_S:.0f} s")
        self._browser.picture(self._folder / f"{name}.png", height, dark=dark)
        self._browser.run("location.hash = 'overview'")
