"""Stores of one task in several engines, on real Kafka: restarts and moves leave each of them as its changelog says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.broker.counting import Counting, await_table
from tests.conftest import Kafka
from tests.state.sqlite_engine import NAME

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(2000)]


def test_all_stores_in_an_engine_of_the_users_by_a_setting(kafka: Kafka, tmp_path: Path) -> None:
    app = Counting.make(kafka)
    written = app.write(KEYS[:200])
    settings: dict[str, Any] = {"default_dsl_store": NAME}
    for _ in range(2):
        with app.app(tmp_path, **settings) as running:
            await_table(running, written)
        written += app.write(KEYS[:100])
    assert not list(tmp_path.rglob("CURRENT")), "nothing of it is in RocksDB"
