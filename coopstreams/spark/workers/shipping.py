"""Serialises a topology for the workers of Spark.

Functions are pickled by cloudpickle: those of `__main__` by value, those of a module by name; the user's own modules
are sent along.

Turned down: rebuilding the topology by module and name (a topology made in a notebook or by a function has none).
"""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import cloudpickle

from coopstreams.spark.workers.modules import provide, sources_of
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.topology import Topology

Batches = Iterable[pa.RecordBatch]

_KNOWN: Any = cloudpickle.CloudPickler.dispatch_table


class _Pickler(cloudpickle.CloudPickler):
    """Pickles compiled codecs as the arguments that recreate them."""

    dispatch_table = ChainMap[type, Any](  # noqa: RUF012 cloudpickle's own way
        {
            Struct: lambda struct: (Struct, (struct.format,)),
            msgspec.json.Encoder: lambda _: (msgspec.json.Encoder, ()),
            msgspec.json.Decoder: lambda decoder: (msgspec.json.Decoder, (decoder.type,)),
            msgspec.msgpack.Encoder: lambda _: (msgspec.msgpack.Encoder, ()),
            msgspec.msgpack.Decoder: lambda decoder: (msgspec.msgpack.Decoder, (decoder.type,)),
        },
        _KNOWN,
    )


def ship(topology: Topology) -> bytes:
    """Return the topology as bytes.

    Raises:
        TopologyError: a function refers to an object that cannot be pickled (a connection, a lock); names it.
    """
    buffer = io.BytesIO()
    try:
        make: Any = _Pickler  # cloudpickle has no types
        make(buffer).dump(topology)
    except Exception as error:
        raise TopologyError(
            f'the topology "{topology.application_id}" cannot be sent to Spark\'s workers: {error}. '
            "A function in it refers to an object that does not pickle: make that object inside the function, or "
            "register it with copyreg."
        ) from error
    pickled = buffer.getvalue()
    return pickle.dumps((sources_of(pickled), pickled))


def unship(data: bytes) -> Topology:
    """Return the topology that `ship` serialised."""
    sources, pickled = pickle.loads(data)
    provide(sources)
    topology: Any = pickle.loads(pickled)
    assert isinstance(topology, Topology)
    return topology


def plain_function(
    work: Callable[[Batches], Iterator[pa.RecordBatch]],
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Wrap a callable in a plain function, which Spark requires."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from work(batches)

    return run
