"""The two guarantees as a parameter of tests."""

import pytest

EACH_GUARANTEE = ("exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.slow))
"""For what holds under both: exactly once has to do more, so the other one is among the slow tests. What at least once
does differently is shown by `tests/simulation` and `tests/tasks/test_committer.py`.
"""
