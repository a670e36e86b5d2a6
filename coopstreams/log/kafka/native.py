"""Chooses the data plane: the extension `coopstreams-native` where it is installed and
usable, else pure Python.

The extension is a plugin of librdkafka (`plugin.library.paths`), so it works on the
clients that confluent-kafka makes and owns: settings, logins, transactions and
callbacks stay there. `COOPSTREAMS_NATIVE` decides: 0 is pure Python, 1 makes an
unusable extension an error, and without it, the extension is used if it can be.

Invariant: both behave the same; the contract suite of logs (`tests/log/`) runs on both.
A call that the extension cannot handle (a value that is no bytes object) goes through
pure Python.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import (
    Any,
    Protocol,
    TypeAlias,
    cast,
)

from confluent_kafka import Consumer, Producer, cimpl

from coopstreams.common.config import Config
from coopstreams.log.batches import MakeRouter, Router
from coopstreams.state.native_table import (
    NativeSessionTable,
    NativeTable,
    NativeWindowTable,
)
from coopstreams.state.task_state import MakeTable
from coopstreams.topology.columns import Headers, Int64s
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.known_folds import folds
from coopstreams.topology.graph.nodes import SubTopology
from coopstreams.topology.operators.json_parts import MakeParts

logger = logging.getLogger(__name__)

SETTING = "COOPSTREAMS_NATIVE"
PLUGINS = "plugin.library.paths"
INTERFACE = 21
"""The version of the extension's interface that this module knows; `native/src/lib.rs`
has the same number.
"""
LIBRDKAFKA = 2
"""The major version of librdkafka whose structs the extension knows."""
_NOT_HANDED = "data plane: pure Python for this client: librdkafka has not handed it to the extension"
_CURE = "`pip install coopstreams` brings it where there is a wheel of it; in a checkout `make setup` builds it where cargo is"


class Appender(Protocol):
    """The native part of a producer: appends columns of records, and notes their
    delivery.
    """

    def append(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64s,
        partitions: int | Int64s,
        headers: Sequence[Headers | None] | None,
        start: int,
    ) -> tuple[int, int] | None:
        """Queue the records from index `start` on; return how many were taken, and the
        error code of the next one (0: no error).

        None: pure Python must append the records.
        """

    def take_failure(self) -> tuple[int, str] | None:
        """Return the error code and topic of the first undelivered record since the
        last call; None: all were delivered. Code 0: the error is unknown.
        """

    def delivered_to(self, topic: str, partition: int) -> int | None:
        """Return the offset after the last delivered record of a partition; None: no
        record was delivered, or the broker did not report its offset.
        """

    def counts(self) -> tuple[int, int]:
        """Return how many records were delivered, and how many were not."""
        ...

    def close(self) -> None:
        """Release the producer, which may then be discarded."""


RawColumns: TypeAlias = tuple[
    list[bytes | None],
    list[bytes | None],
    list[int],
    Int64s,
    list[int],
    list[Headers | None] | None,
]
"""Keys, values, timestamps, offsets, stream times as if there were no records before,
headers.
"""
RawEvent: TypeAlias = tuple[int, str, int, int | None]
"""Code and text of an error, its offset, and the offset after the record before it."""
RawAdvances: TypeAlias = tuple[bytes, bytes]
"""The offsets at which stream time advances, and the new times, as 64-bit integers.
They are computed as if nothing had been read before.
"""
RawPart: TypeAlias = tuple[
    int,
    RawColumns | list[RawColumns | None],
    int | None,
    int,
    list[RawEvent],
    bool,
    RawAdvances | None,
]
"""The partition's id, columns, the offset after the last record, the stream time after
it, events, whether the columns are split by slot (None for an empty slot), and the
advances (if they are split and advances were requested).
"""


class Fetcher(Protocol):
    """The native part of a consumer: returns its fetched records as columns. `start`
    gives each partition an id.
    """

    def connect(self, consumer: Consumer) -> bool:
        """Fetch with the consumer that this thread has just made; return False if
        librdkafka has not handed it over.
        """
        ...

    def disconnect(self) -> None:
        """Release the consumer, which may then be closed."""

    def wake(self) -> None:
        """End the wait of the running fetch, or of the next one. Thread-safe."""

    def start(
        self,
        topic: str,
        partition: int,
        offset: int,
    ) -> int:
        """Start reading a partition at this offset; return its id."""
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Read a partition from another offset on; drop its buffered records."""

    def stop(self, partition: int) -> None:
        """Stop reading a partition."""

    def expect(self, partitions: list[int]) -> None:
        """Direct the records of these partitions, which are about to be assigned, to
        this fetcher.
        """

    def hold(self, partition: int, held: bool) -> None:
        """Hold a partition, so that its records are kept in the buffer, or release it."""

    def route(
        self,
        partition: int,
        router: Router | None,
        advances: bool,
    ) -> None:
        """Split the records of a partition before Python objects are made of them;
        None: do not split.

        `advances`: whether to return the moments at which stream time advances.
        """

    def fetched_to(self, partition: int) -> int:
        """Return the offset after the last record fetched from a partition."""
        ...

    def kept(self, partition: int) -> tuple[int, int]:
        """Return how many records and events of a partition are buffered, and their
        bytes.
        """
        ...

    def errors(self) -> list[tuple[int, str, bool]]:
        """Return the errors that `error_cb` would have got since the last call, and
        forget them: code, text, and whether the client is unusable.
        """
        ...

    def fetch(self, most: int, timeout_ms: int) -> tuple[list[RawPart], list[int]]:
        """Return the available records of partitions that are not held, and the ids of
        held partitions for which records arrived.

        Raises:
            RuntimeError: the consumer is closed.
        """
        ...


class _UnusableError(Exception):
    """The extension cannot be used, for the reason in the message."""


def data_plane() -> str:
    """Return the name of the data plane that runs; of pure Python, with the reason.

    Raises:
        ConfigError: `COOPSTREAMS_NATIVE` is 1, and the extension cannot be used; or it
            is neither 0 nor 1.
    """
    chosen = os.environ.get(SETTING, "")
    if chosen not in ("", "0", "1"):
        raise ConfigError(
            f"{SETTING}={chosen}: must be 0 (pure Python) or 1 (native), or not set"
        )
    if chosen == "0":
        return f"pure Python: {SETTING}=0"
    loaded = _loaded()
    if isinstance(loaded, _UnusableError):
        if chosen == "1":
            raise ConfigError(
                f"{SETTING}=1, but {loaded}. {_CURE}; without {SETTING}, pure Python runs."
            )
        return f"pure Python: {loaded}"
    return "native"


def router() -> MakeRouter | None:
    """Return the native router, which splits batches by key range; None: pure Python."""
    if data_plane() != "native":
        return None
    made: MakeRouter = _loaded().Router
    return made


def front() -> Callable[..., Any] | None:
    """Return the class of the query server's native front; None: pure Python."""
    if data_plane() != "native":
        return None
    made: Callable[..., Any] = _loaded().Front
    return made


def native_tables(
    part: SubTopology,
    config: Config,
    *,
    caching: bool,
    in_order: bool = False,
) -> dict[str, MakeTable]:
    """Return the factories of the stores of a task that keep their rows in native
    memory, by name: see `known_folds`.

    There are none with a processor wrapper, which is called for each record at each
    node.
    """
    if config["processor.wrapper"] is not None or data_plane() != "native":
        return {}
    make = _loaded().Rows
    made: dict[str, MakeTable] = {}
    for name, fold in folds(part, caching=caching, in_order=in_order).items():
        if fold.kind == "sessions":
            rows = make("function", fold.number, sessions=True)
            made[name] = partial(NativeSessionTable, rows=rows)
        elif fold.windows is not None:
            rows = make(fold.kind, fold.number, fold.windows, closing=fold.closing)
            made[name] = partial(NativeWindowTable, rows=rows)
        else:
            rows = make(fold.kind, fold.number)
            made[name] = partial(NativeTable, rows=rows)
    return made


def native_parts() -> MakeParts | None:
    """Return the native reader of parts of JSON values; None: pure Python reads the
    values as dicts.
    """
    if data_plane() != "native":
        return None
    made: MakeParts = _loaded().Parts
    return made


def with_plugin(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a client's settings, with the plugin if the data plane is native; log the
    data plane once.

    Raises:
        ConfigError: see `data_plane`.
    """
    plane = data_plane()
    _say(f"data plane: {plane}")
    loaded = _loaded() if plane == "native" else None
    if loaded is None or isinstance(loaded, _UnusableError):
        return settings
    return settings | {
        PLUGINS: ";".join(filter(None, (settings.get(PLUGINS), loaded.__file__)))
    }


def appender_of(producer: Producer, settings: dict[str, Any]) -> Appender | None:
    """Return the native appender of a producer that this thread has just made with
    these settings; None: pure Python.
    """
    plugin = _plugin_in(settings)
    if plugin is None:
        return None
    found = plugin.Appender.of(producer)
    if found is None:
        _say(_NOT_HANDED)
    return cast(Appender | None, found)


def fetcher_of(consumer: Consumer, settings: dict[str, Any]) -> Fetcher | None:
    """Return the native fetcher of a consumer that this thread has just made with these
    settings; None: pure Python.
    """
    plugin = _plugin_in(settings)
    if plugin is None:
        return None
    found: Fetcher = plugin.Fetcher()
    if not found.connect(consumer):
        _say(_NOT_HANDED)
        return None
    return found


def _plugin_in(settings: dict[str, Any]) -> Any:
    """Return the extension if the settings of a client have it as a plugin; otherwise
    None.
    """
    loaded = _loaded() if PLUGINS in settings else None
    if (
        loaded is None
        or isinstance(loaded, _UnusableError)
        or loaded.__file__ not in settings[PLUGINS].split(";")
    ):
        return None
    return loaded


@cache
def _loaded() -> Any:
    """Return the extension, or the reason why it cannot be used. Typed as Any: the
    extension may be missing when types are checked.
    """
    try:
        return _load()
    except _UnusableError as reason:
        return _UnusableError(
            str(reason)
        )  # a raised error would keep the frames of its callers, and their objects


def _load() -> Any:
    try:
        found = importlib.import_module("coopstreams_native.coopstreams_native")
    except ModuleNotFoundError as error:
        raise _UnusableError("coopstreams-native is not installed") from error
    except ImportError as error:
        raise _UnusableError(f"coopstreams-native cannot be loaded: {error}") from error
    if getattr(found, "INTERFACE", None) != INTERFACE:
        raise _UnusableError(
            "coopstreams-native was built for another version of coopstreams"
        )
    if ";" in str(found.__file__):
        raise _UnusableError(
            f"librdkafka takes no plugin at {found.__file__}: a path with a semicolon"
        )
    try:
        version, features = found.load(cimpl.__file__)
    except RuntimeError as error:
        raise _UnusableError(f"librdkafka lacks what it calls: {error}") from error
    if version >> 24 != LIBRDKAFKA:
        raise _UnusableError(
            f"it knows librdkafka {LIBRDKAFKA}, and this is {version >> 24}"
        )
    if "plugins" not in features.split(","):
        raise _UnusableError("this librdkafka was built without plugins")
    return found


@cache
def _say(line: str) -> None:
    """Log a line, once."""
    logger.info("%s", line)
