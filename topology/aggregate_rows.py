"""Makes the functions of a table with several aggregates: one that takes in a record,
others that merge rows, subtract, and finish a row; and the serde of its rows.

A row is a tuple of the states of all aggregates, one or two items each. What the table
shows is a dict with the finished values, in the order in which the aggregates were
named; a view behind the aggregation makes it (`finish`).

The functions are source code, put together of the lines of `aggregates`: a record costs
one call, whatever the number of aggregates. Arguments that several aggregates share are
computed once.

Invariant: a row is never changed: each record makes a new tuple. Only a quantile is
changed in place, and only by the last lines of a function, which cannot raise.
Shape of a row's bytes: MessagePack, a map by names. A name that the bytes do not have
is the state of no records, and one that the program does not have is left out: so
aggregates can be added and removed. A kind that changes under its name is found by the
comparison of two versions (`schema`).
Turned down: rows as dicts (three times the memory, and a look-up for each state).
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from typing import Any, TypeAlias

import msgspec

from coopstreams.topology import aggregates
from coopstreams.topology.aggregates import AggregateFunction, Lines
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.fields import field as part_of
from coopstreams.topology.generated_source import executed
from coopstreams.topology.serde import Serde

Row: TypeAlias = tuple[Any, ...]
Named: TypeAlias = Mapping[str, AggregateFunction]
"""Aggregates by name."""


@dataclass(frozen=True, slots=True, repr=False)
class RowSerde(Serde[Row]):
    """The serde of the rows of a table with several aggregates."""

    functions: tuple[tuple[str, AggregateFunction], ...] = field(kw_only=True)
    """The aggregates by name, in the order of the states in a row."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments by which pickle recreates the serde."""
        return _serde_of, (self.functions,)


@dataclass(frozen=True, slots=True)
class AggregateRows:
    """The functions of a table with several aggregates.

    Shape: `initial()` returns the row of no records, `merge(key, one, other)` that of
    two rows, `finish(row)` what the table shows.
    """

    functions: dict[str, AggregateFunction]
    initial: Callable[[], Row]
    merge: Callable[[Any, Row, Row], Row]
    finish: Callable[[Row], dict[str, Any]]
    serde: RowSerde

    def folding(self, named: Named) -> Callable[[Any, Any, Row], Row]:
        """Return the function `(key, value, row) -> row` that takes in a record, with
        these of the table's aggregates. The others stay as they are.
        """
        return _function(self.functions, named, "fold")

    def subtracting(self, named: Named) -> Callable[[Any, Any, Row], Row]:
        """Return the function that takes a value out of a row again."""
        return _function(self.functions, named, "subtract")


def rows_of(functions: Named) -> AggregateRows:
    """Return the functions of a table with these aggregates."""
    kept = dict(functions)
    serde = _serde_of(tuple(kept.items()))
    assert serde.shown is not None
    return AggregateRows(kept, _initial(kept), _merge(kept), serde.shown, serde)


def checked_names(where: str, named: Mapping[str, Any]) -> dict[str, AggregateFunction]:
    """Return the aggregates, if each is one and has a legal name.

    Raises:
        TopologyError: there are none, or one of them is no aggregate; or a name is no
            identifier.
    """
    if not named:
        raise TopologyError(
            f'{where}: give an initializer and an aggregator, or aggregates by name as total=sum_("amount"), n=count()'
        )
    for name, given in named.items():
        if not isinstance(given, AggregateFunction):
            called = getattr(given, "__name__", None)
            known = getattr(aggregates, str(called), None) is given
            cure = f"{name}={called}(…)" if known else f'{name}=sum_("amount"), count()'
            raise TopologyError(
                f"{where}: {name}= must be an aggregate, not {given!r}. Write {cure}, …"
            )
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise TopologyError(
                f'{where}: an aggregate needs a name of letters, digits and "_" that begins with a letter, not {name!r}'
            )
    return dict(named)


class _Source:
    """The source of one function, while it is written."""

    def __init__(self, name: str, arguments: str) -> None:
        self.lines = [f"def {name}({arguments}):"]
        self.known: dict[str, Any] = {}
        self._name = name

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def constant(self, label: str, known: Any) -> str:
        """Make an object known to the code; return its name."""
        for name, one in self.known.items():
            if one is known:
                return name
        name = f"{label.strip('_')}_{len(self.known)}"
        self.known[name] = known
        return name

    def function(self) -> Callable[..., Any]:
        """Return the function."""
        text = "\n".join([*self.lines, ""])
        names = executed(f"aggregates: {self._name}", text, self.known)
        made: Callable[..., Any] = names[self._name]
        return made


def _slots(functions: Named) -> dict[str, list[str]]:
    """Return the variables of each aggregate's state, by its name."""
    numbers = count()
    return {
        name: [f"state_{next(numbers)}" for _ in range(function.slots)]
        for name, function in functions.items()
    }


def _all(slots: Mapping[str, Sequence[str]], prefix: str = "") -> str:
    """Return the code of a tuple of the states of all aggregates. `slots`: the
    variables of each; `prefix`: what stands in front of each variable.
    """
    return f"({''.join(f'{prefix}{slot}, ' for slot in chain(*slots.values()))})"


def _initial(functions: Named) -> Callable[[], Row]:
    source = _Source("initial", "")
    slots = _slots(functions)
    states = [
        state
        for name, function in functions.items()
        for state in function.initial(Lines(slots[name], (), source.constant))
    ]
    source.line(f"return ({''.join(f'{state}, ' for state in states)})")
    return source.function()


def _merge(functions: Named) -> Callable[[Any, Row, Row], Row]:
    source = _Source("merge", "_key, one, other")
    slots = _slots(functions)
    source.line(f"{_all(slots)} = one")
    source.line(f"{_all(slots, 'other_')} = other")
    for name, function in functions.items():
        for line in function.merge(Lines(slots[name], (), source.constant)):
            source.line(line)
    source.line(f"return {_all(slots)}")
    return source.function()


def _finish(functions: Named) -> Callable[[Row], dict[str, Any]]:
    source = _Source("finish", "row")
    slots = _slots(functions)
    source.line(f"{_all(slots)} = row")
    source.line("return {")
    for name, function in functions.items():
        code = function.finish(Lines(slots[name], (), source.constant))
        source.line(f"    {name!r}: {code},")
    source.line("}")
    return source.function()


def _function(
    functions: Named,
    named: Named,
    way: str,
) -> Callable[[Any, Any, Row], Row]:
    """Return the function that adds a record (`way` "fold") or takes it out
    ("subtract").
    """
    source = _Source(way, "key, value, row")
    slots = _slots(functions)
    values = _arguments(source, named)
    source.line(f"{_all(slots)} = row")
    # What is changed in place comes last: the lines before may raise.
    ordered = sorted(named, key=lambda name: named[name].changes_in_place)
    for name in ordered:
        lines = Lines(slots[name], values[name], source.constant)
        for line in getattr(named[name], way)(lines):
            source.line(line)
    source.line(f"return {_all(slots)}")
    return source.function()


def _arguments(source: _Source, named: Named) -> dict[str, list[str]]:
    """Generate the code that computes the arguments of all aggregates, each once;
    return their variables by the names of the aggregates.

    The arguments of a record without a value are null.
    """
    variables: dict[Any, str] = {}
    functions: dict[str, Any] = {}
    found: dict[str, list[str]] = {}
    checks: dict[str, str] = {}
    for name, function in named.items():
        found[name] = []
        for at, argument in enumerate(function.of):
            same = argument.name if isinstance(argument, part_of) else id(argument)
            variable = variables.setdefault(same, f"value_{len(variables)}")
            functions[variable] = argument
            if function.numbers and not at:
                variable = _checked(source, function, variable, checks)
            found[name].append(variable)
    if functions:
        _computed(source, functions)
    for line in checks.values():
        source.line(line)
    return found


def _computed(source: _Source, functions: Mapping[str, Any]) -> None:
    """Generate the code that computes arguments. `functions`: what computes each, by
    its variable.
    """
    calls = {}
    parts = {}
    for variable, argument in functions.items():
        given = "key, value" if aggregates.takes_key(argument) else "value"
        calls[variable] = f"{source.constant('of', argument)}({given})"
        if type(argument) is part_of and type(argument.name) is str:
            parts[variable] = f"value[{argument.name!r}]"
    if parts:
        source.line("if value.__class__ is dict:")
        for variable, call in calls.items():
            source.line(f"    {variable} = {parts.get(variable, call)}")
    source.line("elif value is None:" if parts else "if value is None:")
    source.line(f"    {' = '.join(functions)} = None")
    source.line("else:")
    for variable, call in calls.items():
        source.line(f"    {variable} = {call}")


def _checked(
    source: _Source,
    function: AggregateFunction,
    variable: str,
    checks: dict[str, str],
) -> str:
    """Return the variable that has an argument of an aggregate as a number, and add the
    line that sets it to `checks`.
    """
    kind = "finite" if function.finite else "number"
    checked = f"{kind}_{variable}"
    usual = f"{variable}.__class__ is int or {variable}.__class__ is float"
    check = aggregates.number_of
    if function.finite:
        most = aggregates.LARGEST
        usual = f"({usual}) and -{most!r} <= {variable} <= {most!r}"
        check = aggregates.finite_of
    call = f"{source.constant(kind, check)}({variable}, {repr(function)!r})"
    line = f"{checked} = {variable} if {usual} else {call}"
    checks.setdefault(checked, line)
    return checked


def _serde_of(functions: tuple[tuple[str, AggregateFunction], ...]) -> RowSerde:
    """Return the serde of rows with these aggregates."""
    named = dict(functions)
    slots = _slots(named)
    state: Any = msgspec.defstruct(
        "State",
        [
            (name, function.serialised, _default(function.empty))
            for name, function in functions
        ],
    )
    encode = _Source("encode", "row")
    encode.line(f"{_all(slots)} = row")
    states = [
        function.encode(Lines(slots[name], (), encode.constant))
        for name, function in functions
    ]
    pack = encode.constant("pack", msgspec.msgpack.Encoder().encode)
    encode.line(
        f"return {pack}({encode.constant('State', state)}({', '.join(states)}))"
    )
    decode = _Source("decode", "data")
    decode.line(
        f"state = {decode.constant('unpack', msgspec.msgpack.Decoder(state).decode)}(data)"
    )
    for name, function in functions:
        lines = Lines(slots[name], (), decode.constant)
        for line in function.decode(lines, f"state.{name}"):
            decode.line(line)
    decode.line(f"return {_all(slots)}")
    kinds = {name: {"enum": [function.kind]} for name, function in functions}
    return RowSerde(
        "aggregates",
        encode.function(),
        decode.function(),
        immutable=not any(function.changes_in_place for _, function in functions),
        schema={"type": "object", "properties": kinds},
        shown=_finish(named),
        functions=functions,
    )


def _default(empty: Any) -> Any:
    """Return the default of a field whose state of no records this is."""
    return (
        msgspec.field(default_factory=partial(_spread, empty))
        if isinstance(empty, tuple)
        and empty
        and any(isinstance(e, list) for e in empty)
        else empty
    )


def _spread(empty: Sequence[Any]) -> Any:
    return tuple(list(part) if isinstance(part, list) else part for part in empty)
