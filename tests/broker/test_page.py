"""The page of a running application shows the content of `/v1/metadata`, while
processes are killed and ranges cut again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.broker.processes import Workers
from tests.broker.waiting import eventually
from tests.conftest import Kafka
from tests.query.chromium import Page, chromium
from tests.query.test_page import same_as_metadata

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def owners(page: Page) -> int:
    return len({owner for owner, _, _ in page.ranges().values()})


def test_the_bars_are_what_the_metadata_says_through_a_kill_and_a_new_cut(
    kafka: Kafka, workers: Callable[..., Workers]
) -> None:
    environment = {
        "TEST_APPLICATION": kafka.unique("seen"),
        "TEST_INPUT": kafka.topic("in", partitions=2),
        "TEST_OUTPUT": kafka.topic("out"),
    }
    group = workers(
        "counting_app.py",
        kafka.bootstrap,
        environment,
        session_timeout_ms=6000,
        ranges_per_partition=4,
    )
    for number in (0, 1):
        group.start(number)
    eventually(lambda: None not in (group.url(0), group.url(1)), 120, group.logs)
    url = group.url(0)
    assert url is not None
    with chromium() as page:
        page.open(url + "/")

        def settled(instances: int) -> bool:
            nothing = page.run(
                "document.querySelectorAll('.gap, .range:not(.running)').length === 0"
            )
            return (
                owners(page) == instances
                and bool(nothing)
                and same_as_metadata(page, url)
            )

        def seen() -> str:
            return f"{page.ranges()}\n{page.text('#happened')}\n{group.logs()}"

        eventually(lambda: settled(2), 120, seen)
        group.kill(1)
        page.shows("document.querySelector('.range.unreachable')")
        eventually(lambda: settled(1), 120, seen)
        group.start(2)
        eventually(lambda: settled(2), 120, seen)
        assert "does not answer any more" in page.text("#happened")
        assert page.complaints() == []
