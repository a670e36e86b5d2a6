"""The cache folder and its locks."""

import threading
from pathlib import Path

import pytest

from coopstreams.dev.cache import cache_folder, locked


def test_the_cache_folder_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COOPSTREAMS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/coopstreams")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_folder() == Path("/var/cache/coopstreams")
    monkeypatch.setenv("COOPSTREAMS_CACHE", "~/here")
    assert cache_folder() == Path("/home/somebody/here")


def test_one_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with locked(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "lock"):
        thread.start()
        assert waiting.wait(60)
        thread.join(0.2)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
