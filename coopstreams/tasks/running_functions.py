"""Finds the function of the program that a thread runs now, to tell why the thread does
not move.

A function that takes long is the user's own work, which a new process would begin anew.
So `health` names the function, and calls the process live for as long as the group
keeps the member: `max.poll.interval.ms`.

Invariant: a thread that waits in code of coopstreams (for a lock, a disk, a broker) is
not reported as running a function. Turned down: noting the node at each call (it would
cost each record). The frames of the thread show it, without cost, when asked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import takewhile
from types import CodeType, FrameType

from coopstreams.tasks.failure_handlers import is_ours, is_users
from coopstreams.topology.compile import task_processor
from coopstreams.topology.graph.nodes import Node

GENERATED = "<coopstreams "
"""The beginning of the file name of generated code."""
PROCESSORS = task_processor.Work.run.__code__.co_filename
"""The file of the module that calls processors."""


def running_function(thread: int | None, nodes: Iterable[Node]) -> str:
    """Return which function the thread with this id runs, in words: its node, and the
    innermost line of the user's code. Empty: it runs none.
    """
    frames = list(_frames(thread))
    # What coopstreams has called, and waits for. A function in C has no frame.
    called = list(takewhile(_is_not_ours, frames))
    callers = frames[len(called) :]
    places = [frame for frame in called if is_users(frame.f_code.co_filename)]
    if not places and not _calls_functions(called, callers):
        return ""
    name = _node_of(frames, nodes)
    return f"a function{f' of {name}' if name else ''}{_place(places)}"


def _frames(thread: int | None) -> Iterator[FrameType]:
    """Yield the frames of a thread, the innermost first."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_not_ours(frame: FrameType) -> bool:
    """Return whether a frame is neither coopstreams' code nor generated."""
    file = frame.f_code.co_filename
    return not file.startswith(GENERATED) and not is_ours(file)


def _calls_functions(called: Sequence[FrameType], callers: Sequence[FrameType]) -> bool:
    """Return whether the innermost called code belongs to a function of the program,
    where no line of it is in the user's files.
    """
    if not callers:
        return False
    caller = callers[0].f_code.co_filename
    # A loop of the topology room is not stuck in a function, what it calls outside of
    # coopstreams may be.
    return caller.startswith(GENERATED) or (bool(called) and caller == PROCESSORS)


def _place(frames: Sequence[FrameType]) -> str:
    """Return the place of the innermost of these frames, to end a message."""
    if not frames:
        return ""
    code = frames[0].f_code
    return f" ({code.co_filename}, line {frames[0].f_lineno}, in {code.co_name})"


def _node_of(frames: Iterable[FrameType], nodes: Iterable[Node]) -> str:
    """Return the name of the node whose function the innermost of these frames runs;
    empty if it is not known.
    """
    names = {code: node.name for node in nodes for code in _codes(node)}
    for frame in frames:
        if frame.f_code in names:
            return names[frame.f_code]
        if frame.f_code.co_filename == PROCESSORS:
            work = frame.f_locals.get("self")
            if isinstance(work, task_processor.Work):
                return work.name
    return ""


def _codes(node: Node) -> Iterator[CodeType]:
    """Yield the code of a node's functions that are written in Python."""
    for field in fields(node):
        function = getattr(node, field.name)
        while isinstance(function, partial):
            function = function.func
        function = getattr(function, "__func__", function)
        if not hasattr(function, "__code__") and callable(function):
            function = type(function).__call__
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
