"""A real headless Chromium for the tests of the page. Without one, the tests that ask for it are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)
WAIT_S = 120
"""The longest wait for what a page has to show. For machines that stand still; no test is about it."""

CURE = "install Debian's chromium and chromium-driver (apt-get install chromium chromium-driver)"


@contextmanager
def chromium(folder: Path, width: int = 1280, height: int = 1000) -> Iterator[Any]:
    """Start a browser with an empty profile in this folder; skip the test if the machine has none."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip(f"no chromium or no chromedriver here: {CURE}")
    webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium, which the extra check has")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield Page(opened)
    finally:
        opened.quit()


class Page:
    """What a person sees of a page, and what they can do."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page; what one before has complained of is forgotten."""
        self.driver.get("about:blank")
        self.complaints()
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a function body in JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: object) -> Any:
        """Return what an expression in JavaScript is as soon as it is true."""
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, WAIT_S, 0.05).until(
            lambda _: self.run(f"return {script}", *arguments), script
        )

    def text(self, selector: str) -> str:
        """Return what an element shows."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """Return the errors and warnings in the console since the last call: refused by the policy, or raised."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def ranges(self) -> dict[str, tuple[str, float, float]]:
        """Return the owner of each range that is drawn, and where it begins and ends in its bar, in parts of it."""
        drawn = self.run(
            "return [...document.querySelectorAll('.range')].map(one => { const bar = one.parentElement"
            ".getBoundingClientRect(), box = one.getBoundingClientRect(); return [one.dataset.task, one.dataset.owner, "
            "(box.left - bar.left) / bar.width, (box.right - bar.left) / bar.width] })"
        )
        return {task: (owner, start, end) for task, owner, start, end in drawn}

    def screenshot(self, path: Path, *, width: int = 1280, height: int = 1000, dark: bool = False) -> None:
        """Save a picture of the page at this size."""
        say = self.driver.execute_cdp_cmd
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        say("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        say("Emulation.setDeviceMetricsOverride", size)
        self.driver.save_screenshot(str(path))
        say("Emulation.clearDeviceMetricsOverride", {})
