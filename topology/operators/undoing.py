"""Undoes what an aggregator has changed in its aggregate before it raised.

A store hands out its rows as live objects, and an aggregator may change them in place.
Where a record that fails may be dropped, so that others go on, the bytes of a value
that can change are kept before each call *(about 1 us for a small dict)*. If the call
raises, the row gets the value back that it had; where there are no bytes of it, the
task ends.

Invariant: an aggregation that fails for a record leaves the row as it was before the
record, as in Kafka Streams, where each call reads the row from its bytes. Turned down:
a value read from bytes for each call (twice the cost); copies of flat dicts (the same
cost).
"""

from __future__ import annotations

from collections.abc import Sequence

from coopstreams.topology.operators.codegen import Function
from coopstreams.topology.operators.compiler import Compiler
from coopstreams.topology.operators.windowing import UNCHANGEABLE
from coopstreams.topology.stores import StoreSpec


def undo_of(
    compiler: Compiler, function: Function, store: StoreSpec, entry: str, before: str
) -> Sequence[str]:
    """Generate code before a call that may change the value of a row; return the lines
    that undo the change.

    Both are empty where each failure ends the task.
    """
    if not compiler.may_drop:
        return ()
    kept = function.fresh("kept")
    unit = compiler.unit
    encode, decode = (
        unit.constant(f"{way}_value", getattr(store.value, way))
        for way in ("encode", "decode")
    )
    changeable = (
        f"if {before}.__class__ not in {unit.constant('unchangeable', UNCHANGEABLE)}:"
    )
    function.line(f"{kept} = None")
    with function.block(changeable):
        with function.block("try:"):
            function.line(f"{kept} = {encode}({before})")
        with function.block("except Exception:"):
            function.line(
                "pass  # it has no bytes: the next commit names it and ends the task, if it is still so"
            )
    return (
        changeable,
        f"    if {kept} is None:",
        "        raise  # nothing tells what the row was: dropping the record could leave a part of it",
        f"    {entry}.value = {decode}({kept})",
    )
