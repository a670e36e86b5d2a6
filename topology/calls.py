"""Checks the options of asynchronous calls (`map_values_async` and its variants): how
calls are made and retried.

    orders.map_values_async(price_of, value=serdes.json, max_in_flight=500,
                            timeout=timedelta(seconds=2), retry=Retry(times=3,
                            on=(ConnectionError, TimeoutError)))

Many calls of a task run at a time, outside of the stream thread. Their results pass
through the program in the order of the partition, so the nodes below get the same
records as from a synchronous function.

Relies on: `calling.lanes` (makes the calls), `tasks.pending_calls` and
`compile.call_order` (the order of records).
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypedDict,
    Unpack,
    get_args,
    get_type_hints,
)

from coopstreams.topology.durations import Duration, checked_ms
from coopstreams.topology.errors import TopologyError

CallOrder: TypeAlias = Literal["key", "partition", "none"]
"""Which calls of a task wait for an earlier call.

    key         a call waits for those of records with the same key and lower offsets
    partition   a call waits for all earlier calls: one runs at a time
    none        no call waits
"""


@dataclass(frozen=True, slots=True)
class Retry:
    """The rule by which failed calls are retried: after which exceptions, how often,
    and after which pauses.

    Shape: `times` does not count the first call. `on`: the exceptions after which a
    call is made again; a time-out is a `TimeoutError`. The first pause is `backoff`,
    each next one twice as long, at most `longest`. Each pause is shortened at random by
    up to `jitter` of itself, so that callers that failed together do not retry
    together.

    Raises:
        TopologyError: an invalid number or duration.
    """

    times: int = 3
    backoff: Duration = timedelta(milliseconds=100)
    longest: Duration = timedelta(seconds=10)
    jitter: float = 0.5
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if type(self.times) is not int or self.times < 1:
            raise TopologyError(
                f"Retry: times must be a whole number from 1 on, not {self.times!r}"
            )
        if not 0.0 <= self.jitter <= 1.0:
            raise TopologyError(
                f"Retry: jitter must be between 0 and 1, not {self.jitter!r}"
            )
        checked_ms(self.backoff, "Retry: backoff")
        checked_ms(self.longest, "Retry: longest")
        _check_exceptions("Retry", self.on)

    def again(self, failed: int, error: Exception) -> bool:
        """Return whether a call that has failed `failed` times is retried after
        `error`.
        """
        return failed <= self.times and isinstance(error, self.on)

    def pause_s(self, failed: int, chance: float) -> float:
        """Return the pause before the next call. `failed`: how often the call has
        failed. `chance`: a random number from 0 to 1.
        """
        backoff_ms = checked_ms(self.backoff, "backoff")
        longest_ms = checked_ms(self.longest, "longest")
        return (
            min(backoff_ms << min(failed - 1, 30), longest_ms)
            / 1000
            * (1 - self.jitter * chance)
        )


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """The rule by which calls pause while the service behind them fails.

    Shape: after `failures` attempts in a row that failed with one of `on`, counted over
    all records, no attempt is begun for `pause`. Then a single attempt is begun. If it
    succeeds, calls continue; if it fails, they wait for another `pause`.

    Raises:
        TopologyError: an invalid number or duration.
    """

    failures: int = 10
    pause: Duration = timedelta(seconds=5)
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if type(self.failures) is not int or self.failures < 1:
            raise TopologyError(
                f"CircuitBreaker: failures must be a whole number from 1 on, not {self.failures!r}"
            )
        checked_ms(self.pause, "CircuitBreaker: pause", 1)
        _check_exceptions("CircuitBreaker", self.on)

    @property
    def pause_s(self) -> float:
        """The pause in seconds."""
        return checked_ms(self.pause, "pause") / 1000


def _check_exceptions(where: str, on: object) -> None:
    """Check that `on` is a tuple of exception classes, for callers without a type
    checker.
    """
    if not isinstance(on, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in on
    ):
        raise TopologyError(
            f"{where}: on must be a tuple of exception classes, not {on!r}"
        )


Executor: TypeAlias = Literal["thread", "process"]
"""Where a function runs that is not a coroutine function.

    thread    on a thread of the process: it waits, or calls a library that computes without holding Python's lock
    process   in a process of its own: it computes in Python
"""


class CallOptions(TypedDict, total=False):
    """The options with which `map_values_async` and its variants make their calls.

    Each task has up to `max_in_flight` (100) calls under way. `order`: see `CallOrder`;
    the default is "key". `timeout`: the limit of one attempt, 30 seconds by default,
    None for no limit. `retry`: which failed calls are retried; none by default.
    `dead_letters`: a topic for the records whose last attempt failed; without it, the
    processing handler decides. `breaker`: when calls pause because many fail; never by
    default. `executor`: see `Executor`; the default is "thread".
    """

    max_in_flight: int
    order: CallOrder
    timeout: Duration | None
    retry: Retry | None
    breaker: CircuitBreaker | None
    executor: Executor
    dead_letters: str


class BatchOptions(CallOptions, total=False):
    """The options with which `map_batches` makes its calls: those of `CallOptions`, for
    batches of up to `max_records` (500) records.

    A batch is sent when it is full, or when its first record has waited for `max_wait`
    (10 ms). `max_in_flight` counts batches and is 1 by default. `arrow`: the function
    takes Arrow columns instead of a list, and may return them.
    """

    max_records: int
    max_wait: Duration
    arrow: bool


@dataclass(frozen=True, slots=True)
class Calling:
    """The checked options with which one node calls its function.

    Shape: as `CallOptions`. `coroutine`: the function is awaited on the event loop;
    otherwise `executor` says where it runs. `together`: the function takes lists (with
    `arrow`, columns) of up to `max_records` records; otherwise it takes one record.
    """

    max_in_flight: int
    order: CallOrder
    timeout_s: float | None
    retry: Retry | None
    breaker: CircuitBreaker | None
    executor: Executor
    coroutine: bool
    dead_letters: str | None = None
    together: bool = False
    max_records: int = 1
    max_wait_s: float = 0.0
    arrow: bool = False


def calling(
    where: str, function: Callable[..., Any], **options: Unpack[CallOptions]
) -> Calling:
    """Return the options with which a node calls its function, checked and with
    defaults.

    Raises:
        TopologyError: an unknown option, or an invalid one. The message names the
            method `where`.
    """
    _check_known(where, options, CallOptions)
    most = options.get("max_in_flight", 100)
    order = options.get("order", "key")
    retry = options.get("retry")
    breaker = options.get("breaker")
    timeout = options.get("timeout", timedelta(seconds=30))
    if type(most) is not int or most < 1:
        raise TopologyError(
            f"{where}: max_in_flight must be a whole number from 1 on, not {most!r}"
        )
    if order not in get_args(CallOrder):
        raise TopologyError(
            f'{where}: order must be "key", "partition" or "none", not {order!r}'
        )
    if retry is not None and not isinstance(retry, Retry):
        raise TopologyError(
            f"{where}: retry must be a Retry such as Retry(times=3), not {retry!r}"
        )
    if breaker is not None and not isinstance(breaker, CircuitBreaker):
        raise TopologyError(
            f"{where}: breaker must be a CircuitBreaker such as CircuitBreaker(), not {breaker!r}"
        )
    dead_letters: object = options.get(
        "dead_letters"
    )  # type checkers are not the only callers
    if dead_letters is not None and not (
        isinstance(dead_letters, str) and dead_letters
    ):
        raise TopologyError(
            f"{where}: dead_letters must be the name of a topic, not {dead_letters!r}"
        )
    executor = options.get("executor", "thread")
    _check_executor(where, function, executor)
    timeout_s = (
        None if timeout is None else checked_ms(timeout, f"{where}: timeout", 1) / 1000
    )
    return Calling(
        most,
        order,
        timeout_s,
        retry,
        breaker,
        executor,
        is_coroutine_function(function),
        dead_letters,
    )


def batching(
    where: str, function: Callable[..., Any], **options: Unpack[BatchOptions]
) -> Calling:
    """Return the options with which a node calls a function of batches, checked and
    with defaults.

    Raises:
        TopologyError: an unknown option, an invalid one, or `arrow` without pyarrow.
            The message names the method `where`.
    """
    _check_known(where, options, BatchOptions)
    if arrow := options.get("arrow", False):
        try:
            import_module("pyarrow")
        except ImportError as error:
            raise TopologyError(
                f"{where}: arrow=True needs pyarrow ({error}): pip install pyarrow"
            ) from error
    most = options.get("max_records", 500)
    wait = options.get("max_wait", timedelta(milliseconds=10))
    if type(most) is not int or most < 1:
        raise TopologyError(
            f"{where}: max_records must be a whole number from 1 on, not {most!r}"
        )
    max_wait_s = checked_ms(wait, f"{where}: max_wait") / 1000
    each: CallOptions = {"max_in_flight": 1}
    for name in get_type_hints(CallOptions).keys() & options.keys():
        each[name] = options[name]  # type: ignore[literal-required]
    return replace(
        calling(where, function, **each),
        together=True,
        max_records=most,
        max_wait_s=max_wait_s,
        arrow=arrow,
    )


def _check_executor(
    where: str,
    function: Callable[..., Any],
    executor: str,
) -> None:
    if executor not in get_args(Executor):
        raise TopologyError(
            f'{where}: executor must be "thread" or "process", not {executor!r}'
        )
    if executor == "thread":
        return
    if is_coroutine_function(function):
        raise TopologyError(
            f'{where}: a coroutine function runs on the event loop; executor="process" takes others'
        )
    try:
        pickle.dumps(function)
    except Exception as error:
        raise TopologyError(
            f'{where}: executor="process" needs a function that another process can import, one at the top of a '
            f"module, not {function!r}: {error}"
        ) from error


def _check_known(
    where: str,
    options: Mapping[str, Any],
    known: type[CallOptions],
) -> None:
    names = get_type_hints(known)
    if unknown := options.keys() - names.keys():
        raise TopologyError(f"{where} takes no {min(unknown)}=, but {', '.join(names)}")


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether a call of `function` gives a coroutine: an `async def`, or an
    object whose `__call__` is one.
    """
    call = getattr(type(function), "__call__", None)  # noqa: B004 the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def listed(function: Callable[..., Iterable[Any]], *arguments: Any) -> list[Any]:
    """Call a function and return its results as a list, so that the code of a generator
    runs within this call.
    """
    return list(function(*arguments))


async def listed_later(
    function: Callable[..., Awaitable[Iterable[Any]]], *arguments: Any
) -> list[Any]:
    """Call a coroutine function and return its results as a list."""
    return list(await function(*arguments))


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for messages, with its file and line if it is
    written in Python.
    """
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(function, "__code__", None)
    return (
        name
        if code is None
        else f"{name} (line {code.co_firstlineno} of {code.co_filename})"
    )
