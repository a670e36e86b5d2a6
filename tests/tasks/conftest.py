import pytest


@pytest.fixture
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tasks that are closed while a call is stuck."""
    monkeypatch.setattr("coopstreams.tasks.draining.DRAIN_S", 0.05)
