"""The function of the program that a thread runs now: why the thread does not move.

A function that takes long is the user's own work, which a new process would begin anew.
So `health` names it, and calls the process live, for as long as the group keeps it:
`max.poll.interval.ms`.

Invariant: a thread that stands still in code of coopstreams (a lock, a disk, a broker)
runs no function. Turned down: noting the node at each call (it would cost each record).
The frames of the thread tell it, when asked.
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
"""How the file name of generated code begins."""
PROCESSORS = task_processor.Work.run.__code__.co_filename
"""The module that calls processors."""


def running_function(thread: int | None, nodes: Iterable[Node]) -> str:
    """Return which function a thread of this id runs: its node, and the innermost line
    of the user's code; empty: it runs none.
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
    file = frame.f_code.co_filename
    return not file.startswith(GENERATED) and not is_ours(file)


def _calls_functions(called: Sequence[FrameType], callers: Sequence[FrameType]) -> bool:
    """Whether what was called is a function of the program, although no line of it is
    the user's.
    """
    if not callers:
        return False
    caller = callers[0].f_code.co_filename
    # A loop of the topology room is not stuck in a function, what it calls outside of
    # coopstreams may be.
    return caller.startswith(GENERATED) or (bool(called) and caller == PROCESSORS)


def _place(frames: Sequence[FrameType]) -> str:
    if not frames:
        return ""
    code = frames[0].f_code
    return f" ({code.co_filename}, line {frames[0].f_lineno}, in {code.co_name})"


def _node_of(frames: Iterable[FrameType], nodes: Iterable[Node]) -> str:
    """Return the node whose function is called in the innermost of these frames; empty:
    it is not known.
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
    """Yield the code of a node's functions, as far as they are written in Python."""
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
