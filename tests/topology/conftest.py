"""Fixtures of the tests of programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coopstreams.log.kafka.native import SETTING


@pytest.fixture(scope="module")
def native_plane() -> Iterator[None]:
    """Run the native data plane, regardless of the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SETTING, "1")
        yield
