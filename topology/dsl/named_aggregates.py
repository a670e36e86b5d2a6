"""The two ways to call `aggregate`: with functions, or with aggregates by name.

Invariant: a call is one or the other. The options of `aggregate` (`value`, `store`,
`name`, `retention`) are no names of aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coopstreams.topology import serdes
from coopstreams.topology.aggregate_rows import AggregateRows, checked_names, rows_of
from coopstreams.topology.aggregates import AggregateFunction
from coopstreams.topology.dsl.attach import TableFlow
from coopstreams.topology.dsl.attach_views import map_rows
from coopstreams.topology.errors import TopologyError


def named(
    where: str,
    aggregates: Mapping[str, Any],
    functions: Mapping[str, Any],
    **options: Any,
) -> dict[str, AggregateFunction] | None:
    """Return the aggregates by name; None: the call has functions instead.

    `functions`: the arguments that a call with functions has; None if not given.

    Raises:
        TopologyError: the call has both or neither, an aggregate has the name of an
            argument, or something is no aggregate.
    """
    for option, given in {**functions, **options}.items():
        if isinstance(given, AggregateFunction):
            raise TopologyError(
                f"{where}: {option}= is an argument of its own. Give the aggregate {given!r} another name."
            )
    given_functions = [name for name, given in functions.items() if given is not None]
    if not given_functions:
        return checked_names(where, aggregates)
    if aggregates:
        raise TopologyError(
            f"{where}: it is called with functions ({given_functions[0]}=) or with aggregates by name "
            f"({min(aggregates)}=), not with both"
        )
    missing = [name for name, given in functions.items() if given is None]
    if missing == ["value"]:
        raise TopologyError(
            f"{where}: how do the aggregates become bytes? Write value=serdes.… there."
        )
    if missing:
        raise TopologyError(f"{where}: {missing[0]}= is missing")
    return None


def shared_rows(
    where: str,
    parts: Sequence[Mapping[str, AggregateFunction]],
) -> AggregateRows:
    """Return the functions of a table with the aggregates of several streams.
    Aggregates of one name share their state.

    Raises:
        TopologyError: two aggregates of one name are of different kinds.
    """
    found: dict[str, AggregateFunction] = {}
    for part in parts:
        for name, function in part.items():
            known = found.setdefault(name, function)
            if known.kind != function.kind:
                raise TopologyError(
                    f"{where}: {name} is {known!r} of one stream and {function!r} of another, which cannot be added "
                    "up. Give one of them another name."
                )
    return rows_of(found)


def of_table(
    where: str,
    aggregates: Mapping[str, AggregateFunction],
) -> dict[str, AggregateFunction]:
    """Return aggregates that can take values back.

    Raises:
        TopologyError: one of them cannot.
    """
    found = {name: function.for_table() for name, function in aggregates.items()}
    for name, function in found.items():
        if not function.subtracts:
            raise TopologyError(
                f"{where}: {name}={function!r} cannot take back the old value of a row that changes. Of a table there "
                "are count, sum_, mean and quantile. If each update is to count, aggregate the stream of the updates: "
                ".to_stream().group_by(…); or give aggregate() an initializer, an adder and a subtractor."
            )
    return found


def finished(
    table: TableFlow,
    rows: AggregateRows,
    name: str | None,
) -> TableFlow:
    """Return the table of finished values: a view of the table of states."""
    return map_rows(
        table,
        rows.finish,
        serdes.json,
        None,
        None if name is None else f"{name}-values",
        with_key=False,
    )
