from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sinks.server import PostgresServer, programs


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Return a server that the tests of a module share: use unique names of tables."""
    if programs() is None:
        pytest.skip("PostgreSQL is not on this machine")
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield server
    server.close()
