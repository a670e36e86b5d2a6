"""What the tests of programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coopstreams.log.kafka.native import SETTING


@pytest.fixture(scope="module")
def native_plane() -> Iterator[None]:
    """Run the native data plane, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SETTING, "1")
        yield
