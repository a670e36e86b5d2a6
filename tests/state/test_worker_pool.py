"""Threads for jobs: the system may have none."""

from __future__ import annotations

import threading

import pytest

from coopstreams.state.worker_pool import Job, WorkerPool, start_daemon


def test_a_thread_that_cannot_be_started_takes_no_place_and_no_job() -> None:
    left = [1]

    def start(job: Job, name: str) -> None:
        if left:
            left.pop()
            raise RuntimeError("can't start new thread")
        start_daemon(job, name)

    done: list[int] = []
    ended, owner = threading.Event(), object()
    pool = WorkerPool("jobs", 1, start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.put(owner, lambda: done.append(1))
    pool.put(owner, lambda: done.append(2))
    pool.put(owner, ended.set)
    assert ended.wait(60)
    assert done == [2]
