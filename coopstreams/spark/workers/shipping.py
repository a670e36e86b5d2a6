"""Serialises work for the workers of Spark: a topology, with the settings that it runs
under.

Functions are pickled by cloudpickle: those of `__main__` by value, those of a module by
name. Installed modules (in `site-packages`) must be installed on the workers, too. The
source of the user's own modules, beside a script or in a checkout, goes with the
topology, in every kind of session; a worker that lacks one imports it from there.

Invariant: a module that the worker has is never replaced. Turned down: rebuilding the
topology by module and name (a topology made in a notebook or by a function has none);
`addArtifact` and `addPyFile` (they change the user's session for all its jobs); a
module's functions by value (its globals would be copied, and must pickle).
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import pickletools
import sys
import sysconfig
from collections import ChainMap
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark import cloudpickle

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
    """Return the pickled form of a codec of `_CODECS`: how it is made again."""
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
        connection, a lock); the message names it.
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
    provide(sources)  # first: the pickle imports these modules
    return pickle.loads(pickled)


def plain_function(
    work: Callable[[Batches], Iterator[pa.RecordBatch]],
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return an ordinary function (no object with `__call__`), as Spark requires, that
    does the work on a worker, even if the user's modules are missing there.

    Raises:
        TopologyError: see `ship`.
    """
    shipped = ship(work)

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from unship(shipped)(batches)

    return run


Sources = Mapping[str, bytes]
"""The source of modules by full name; that of a package has `.__init__` appended."""

_OURS = {"coopstreams", "pyspark", "py4j"}
"""Packages that every worker has, wherever they were imported from."""
_INSTALLED = {"site-packages", "dist-packages"}
_INIT = ".__init__"


def sources_of(pickled: bytes) -> dict[str, bytes]:
    """Return the user's modules that a pickle refers to, and those that were loaded
    from the same folders.
    """
    texts = {
        text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str)
    }
    roots = {
        place[0]
        for name in texts & sys.modules.keys()
        if (place := _place(name)) is not None
    }
    if not roots:
        return {}
    places = {
        name: place
        for name in sorted(sys.modules)
        if (place := _place(name)) is not None
    }
    return {
        name + (_INIT if path.stem == "__init__" else ""): path.read_bytes()
        for name, (root, path) in places.items()
        if root in roots
    }


def _place(name: str) -> tuple[Path, Path] | None:
    """Return the import folder of a user's module, and its file; None for all other
    modules.
    """
    file = getattr(sys.modules[name], "__file__", None)
    if file is None or name.partition(".")[0] in _OURS or name == "__main__":
        return None
    path = Path(file)
    tail = name.split(".")
    if (
        path.suffix != ".py"
        or not path.is_file()
        or _INSTALLED & set(path.parts)
        or path.is_relative_to(sysconfig.get_path("stdlib"))
    ):
        return None
    tail = [*tail, "__init__"] if path.stem == "__init__" else tail
    if list(path.with_suffix("").parts[-len(tail) :]) != tail:
        return None  # the module's name differs from its file's
    return path.parents[len(tail) - 1], path


class Sent(MetaPathFinder, InspectLoader):
    """Finds modules among those that the driver sent. It is the last finder, so it
    serves only modules that the worker lacks.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the import spec of a module; None if it was not sent."""
        if fullname in self.sources or self.is_package(fullname):
            return importlib.util.spec_from_loader(
                fullname,
                self,
                origin=f"sent by the driver: {fullname}",
            )
        return None

    def is_package(self, fullname: str) -> bool:
        """Return whether there are modules below this name."""
        return any(name.startswith(fullname + ".") for name in self.sources)

    def get_source(self, fullname: str) -> str:
        """Return the source of a module; empty for a package without an `__init__`
        file.
        """
        source = self.sources.get(fullname, self.sources.get(fullname + _INIT, b""))
        return importlib.util.decode_source(source)


def provide(sources: Sources) -> None:
    """Make these modules importable, instead of modules that were sent earlier: a
    worker may have run an older program.
    """
    before = [finder for finder in sys.meta_path if isinstance(finder, Sent)]
    if any(finder.sources == sources for finder in before):
        return
    for finder in before:
        sys.meta_path.remove(finder)
        stale = [
            name
            for name, module in sys.modules.items()
            if getattr(module, "__loader__", None) is finder
        ]
        for name in stale:
            del sys.modules[name]
    sys.meta_path.append(Sent(sources))
