"""Distributes tests to processes: a plugin of pytest that `tests/conftest.py` loads,
for `pytest -n`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

APART = {"tests/simulation/test_group.py"}
"""Modules with slow tests that share nothing: each test is assigned by itself."""
ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest first: the tests that need Spark, then the modules that need
    Kafka. A short module comes last, so that no process waits long for another one.
    """
    kafka = {
        item.path for item in items if item.get_closest_marker("broker") is not None
    }
    items.sort(
        key=lambda item: (
            0 if item.path.parent.name == "spark" else 1 if item.path in kafka else 2
        )
    )


@cache
def needs_spark(module: str) -> bool:
    """Whether a module's tests use the session of tests/spark/conftest.py."""
    return (
        module.startswith("tests/spark/")
        and "spark: SparkSession" in (ROOT / module).read_text()
    )


class WholeModules(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns whole modules to processes, so that module fixtures are made once; all
    modules that need Spark go to one process, because a session costs as much as a
    broker and a hundred tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return nodeid if module in APART else "spark" if needs_spark(module) else module

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a process that has ended. Return the test that it ran, which has
        failed; its other tests go to other processes.

        pytest-xdist's own version assigns the finished tests again, which leaves a
        process idle and stalls the run, and the fatal test, which ends the next
        process.
        """
        work = self.assigned_work.pop(node)
        left: list[tuple[str, str]] = [
            (scope, nodeid)
            for scope, unit in work.items()
            for nodeid, done in unit.items()
            if not done
        ]
        if not left:
            return None
        (_, lost), *others = left
        for scope, nodeid in others:
            self.workqueue.setdefault(scope, {})[nodeid] = False
        for other in self.nodes:
            self._reschedule(other)
        return lost


def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> LoadScopeScheduling:
    """Return the scheduler of the tests (pytest-xdist's own groups, `--dist loadgroup`,
    have no effect with pytest 9.2).
    """
    return WholeModules(config, log)
