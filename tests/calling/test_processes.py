"""Functions that compute in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coopstreams.calling.lanes import Call
from coopstreams.calling.process_pool import MOST_PROCESSES, ProcessCall
from coopstreams.topology.calls import calling
from coopstreams.topology.errors import ProcessingError, TopologyError
from tests.calling.lanes import PATIENCE_S, ended, made_by
from tests.durations import ms


class OddError(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def here(_: int) -> int:
    return os.getpid()


def sometimes(value: int) -> int:
    match value:
        case 1:
            raise ValueError("no such colour")
        case 2:
            raise OddError("very", "odd")
        case 3:
            os._exit(9)
        case 4:
            time.sleep(3600)
    return value * 2


def naps(value: int) -> int:
    time.sleep(1)
    return value


def asks_all_to_end(value: int) -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    return value


def hangs() -> None:
    print("begun", flush=True)
    time.sleep(3600)


class Arriving:
    """An object that leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


async def awaited(value: int) -> int:
    return value


def test_a_function_runs_in_another_process_which_is_kept() -> None:
    pids = {
        ended([Call(here, (1,), b"k")], executor="process")[0].value for _ in range(3)
    }
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_each_call_has_its_own_error_also_if_its_process_dies() -> None:
    calls = [
        Call(sometimes, (number,), b"%d" % number) for number in (0, 1, 2, 3, 5, 6)
    ]
    made_by(calling("f", sometimes, executor="process", timeout=None), calls)
    assert [call.value for call in calls] == [0, None, None, None, 10, 12]
    assert isinstance(calls[1].error, ValueError)
    assert "in sometimes" in calls[1].error.__notes__[0]
    assert str(calls[2].error) == "OddError: very odd"
    assert isinstance(calls[3].error, ProcessingError)
    assert (
        str(calls[3].error) == "the process that made the call has died (exit code 9)"
    )


def test_a_call_that_takes_too_long_is_ended_with_its_process() -> None:
    (call,) = ended([Call(sometimes, (4,), b"k")], executor="process", timeout=ms(1000))
    assert isinstance(call.error, TimeoutError)
    made = [Call(here, (number,), None) for number in range(2 * MOST_PROCESSES)]
    ended(made, executor="process")
    assert all(each.error is None for each in made), (
        "no place is taken by it, and no call meets its process"
    )


def test_a_time_out_does_not_count_the_start_of_a_process_and_what_it_imports(
    tmp_path: Path,
) -> None:
    """It would end each process before it could make a call, and all records would
    fail.
    """
    arrived, begun = tmp_path / "arrived", list[bool]()
    assert (
        ProcessCall(str, (Arriving(arrived),)).make(
            lambda: begun.append(arrived.exists())
        )
        == "None"
    )
    assert begun == [True]


def test_a_process_whose_answer_was_not_taken_makes_no_other_call() -> None:
    with pytest.raises(ZeroDivisionError):
        ProcessCall(abs, (-1,)).make(lambda: 1 // 0)
    assert ProcessCall(abs, (-2,)).make(lambda: None) == 2


def test_what_asks_all_processes_to_end_fails_no_call() -> None:
    """The calls of a service that is stopped drain: their records would be dropped, or
    become dead letters.
    """
    (call,) = ended([Call(asks_all_to_end, (7,), b"k")], executor="process")
    assert (call.value, call.error) == (7, None)


@pytest.mark.parametrize("stop", ["SIGTERM", "SIGINT"])
def test_what_stops_a_service_does_not_stop_a_process_that_begins(stop: str) -> None:
    program = (
        "import multiprocessing, os, signal\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from coopstreams.calling.process_pool import ProcessCall\n"
        "with ThreadPoolExecutor(1) as threads:\n"
        "    value = threads.submit(ProcessCall(abs, (-7,)).make, lambda: None)\n"
        "    while not (children := multiprocessing.active_children()):\n"
        "        pass\n"
        f"    os.kill(children[0].pid, signal.{stop})\n"
        "    print(value.result())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "7\n", done.stderr


@pytest.mark.parametrize("killed", [False, True])
def test_a_process_ends_with_the_one_that_started_it_also_in_the_middle_of_a_call(
    killed: bool,
) -> None:
    program = (
        "import threading\n"
        "from coopstreams.calling.process_pool import ProcessCall\n"
        "from tests.calling.test_processes import hangs\n"
        "begun = threading.Event()\n"
        "threading.Thread(target=ProcessCall(hangs, ()).make, args=(begun.set,), daemon=True).start()\n"
        "begun.wait()\n"
        f"{killed} and threading.Event().wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        if killed:
            assert parent.stdout.readline() == "begun\n"
            parent.kill()
        parent.communicate(timeout=PATIENCE_S)  # until nobody has the pipe any more


def test_a_process_that_multiprocessing_has_made_ends_although_its_calls_outlast_sigterm() -> (
    None
):
    program = (
        "from multiprocessing import get_context\n"
        "from coopstreams.calling.process_pool import ProcessCall\n"
        "made = get_context('fork').Process(target=ProcessCall(abs, (-7,)).make, args=(bool,))\n"
        "made.start()\n"
        f"made.join({PATIENCE_S})\n"
        "made.kill()\n"
        "print(made.exitcode)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "0\n", done.stderr


@pytest.mark.ci
def test_a_call_that_waits_for_a_process_which_calls_of_other_tasks_have_is_not_late() -> (
    None
):
    ended(
        [Call(here, (number,), None) for number in range(MOST_PROCESSES)],
        executor="process",
    )  # they are started
    made = [
        [Call(naps, (number,), None) for number in range(MOST_PROCESSES)]
        for _ in range(4)
    ]
    with ThreadPoolExecutor(len(made)) as tasks:
        how = calling("f", naps, executor="process", timeout=ms(2500))
        list(tasks.map(partial(made_by, how), made))
    assert {call.error for calls in made for call in calls} == {None}


@pytest.mark.parametrize(
    ("function", "executor", "says"),
    [
        (lambda value: value, "process", "that another process can import"),
        (awaited, "process", "runs on the event loop"),
        (here, "gpu", '"thread" or "process"'),
    ],
)
def test_what_cannot_run_in_another_process_is_refused(
    function: Any, executor: Any, says: str
) -> None:
    with pytest.raises(TopologyError, match=says):
        calling("f", function, executor=executor)
