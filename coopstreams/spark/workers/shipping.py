"""Serialises work for the workers of Spark: a topology, with the settings that it runs
under.

Functions are pickled by cloudpickle: those of `__main__` by value, those of a module by
name; the user's own modules are sent along.

Turned down: rebuilding the topology by module and name (a topology made in a notebook
or by a function has none).
"""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from struct import Struct
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark import cloudpickle

from coopstreams.spark.workers.modules import provide, sources_of
from coopstreams.topology.errors import TopologyError

Batches = Iterable[pa.RecordBatch]

_KNOWN: Any = cloudpickle.CloudPickler.dispatch_table
_ENCODER: Final = ("enc_hook", "decimal_format", "uuid_format", "order")
_CODECS: Final[dict[type, tuple[str, ...]]] = {
    Struct: ("format",),
    msgspec.json.Encoder: _ENCODER,
    msgspec.json.Decoder: ("type", "strict", "dec_hook", "float_hook"),
    msgspec.msgpack.Encoder: _ENCODER,
    msgspec.msgpack.Decoder: ("type", "strict", "dec_hook", "ext_hook"),
}
"""The compiled codecs, which do not pickle themselves, with the arguments that recreate
them.
"""


def _recreated(codec: object) -> tuple[Callable[[], Any], tuple[()]]:
    kind: Any = type(codec)
    return partial(kind, **{name: getattr(codec, name) for name in _CODECS[kind]}), ()


class _Pickler(cloudpickle.CloudPickler):
    """Pickles compiled codecs as the arguments that recreate them."""

    # A class attribute, as in cloudpickle itself.
    dispatch_table = ChainMap[type, Any](dict.fromkeys(_CODECS, _recreated), _KNOWN)  # noqa: RUF012


def ship(work: object) -> bytes:
    """Return the work as bytes.

    Raises:
        TopologyError: a function refers to an object that cannot be pickled (a
        connection, a lock); names it.
    """
    buffer = io.BytesIO()
    try:
        make: Any = _Pickler  # cloudpickle has no types
        make(buffer).dump(work)
    except Exception as error:
        raise TopologyError(
            f"the program cannot be sent to Spark's workers: {error}. A function in it, or in its settings, refers to "
            "an object that does not pickle: make that object inside the function, or register it with copyreg."
        ) from error
    pickled = buffer.getvalue()
    return pickle.dumps((sources_of(pickled), pickled))


def unship(data: bytes) -> Any:
    """Return the work that `ship` serialised."""
    sources, pickled = pickle.loads(data)
    provide(sources)
    return pickle.loads(pickled)


def plain_function(
    work: Callable[[Batches], Iterator[pa.RecordBatch]],
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return a plain function, which Spark requires, that does the work where the
    user's modules may be missing.

    Raises:
        TopologyError: see `ship`.
    """
    shipped = ship(work)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from unship(shipped)(batches)

    return run
