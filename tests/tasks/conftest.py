import pytest


@pytest.fixture
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the limit of draining, for tests that close tasks during a stuck call."""
    monkeypatch.setattr("tests.tasks.engine.DRAIN_MS", 50)
