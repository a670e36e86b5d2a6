"""Two processes on copies of one state folder: each says so, and the cure that the
message names is one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.broker.counting import Counting, await_running, await_table, reasons
from tests.broker.waiting import eventually
from tests.conftest import Kafka

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(40)]


@pytest.mark.ci
def test_two_processes_on_copies_of_one_state_folder_say_so(
    kafka: Kafka, tmp_path: Path
) -> None:
    counting = Counting.make(kafka, partitions=2)
    with counting.app(
        tmp_path / "first", processing_guarantee="exactly_once_v2"
    ) as app:
        written = counting.write(KEYS)
        await_table(app, written)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    with counting.app(
        tmp_path / "first", processing_guarantee="exactly_once_v2"
    ) as app:
        with counting.app(
            tmp_path / "copy", processing_guarantee="exactly_once_v2"
        ) as other:
            twin = "same-process-id"
            eventually(
                lambda: twin in reasons(app) and twin in reasons(other),
                60,
                lambda: f"{reasons(app)} {reasons(other)}",
            )
        eventually(lambda: reasons(app) == [], 60, lambda: str(reasons(app)))
        (copied,) = (tmp_path / "copy").rglob("process-id")
        copied.unlink()
        with counting.app(
            tmp_path / "copy", processing_guarantee="exactly_once_v2"
        ) as other:
            written += counting.write(KEYS)
            await_running([app, other])
            await_table(app, written)
            eventually(
                lambda: reasons(app) == reasons(other) == [],
                60,
                lambda: f"{reasons(app)} {reasons(other)}",
            )
    assert counting.counts() == written
