"""The application's own modules, sent along with its topology: a worker that does not have them imports them from what
was sent.

A function of a module travels by its name. What is installed (in `site-packages`) a worker must have; what lies in a
folder of the user's, beside a script or in a checkout, is on no worker unless somebody puts it there. So the source of
such modules goes with the topology, and it does so in every kind of session: local, classic on a cluster, Spark
Connect.

Invariant: a module that a worker finds by itself is never replaced.
Turned down: `addArtifact` and `addPyFile` (they change a session that is not ours, for all that runs in it), functions
by value (a module's globals would be copies, those that do not pickle an error).
"""

from __future__ import annotations

import importlib.util
import pickletools
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

Sources = Mapping[str, bytes]
"""Modules, by full name, with `.__init__` behind that of a package, and their source."""

_OURS = {"coopstreams", "pyspark", "py4j"}
"""Installed wherever a worker runs, from wherever they were."""
_INSTALLED = {"site-packages", "dist-packages"}
_INIT = ".__init__"


def sources_of(pickled: bytes) -> dict[str, bytes]:
    """Return the user's modules that a pickle refers to, and those that were loaded from the same folders."""
    texts = {text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str)}
    roots = {place[0] for name in texts & sys.modules.keys() if (place := _place(name)) is not None}
    if not roots:
        return {}
    places = {name: place for name in sorted(sys.modules) if (place := _place(name)) is not None}
    return {
        name + (_INIT if path.stem == "__init__" else ""): path.read_bytes()
        for name, (root, path) in places.items()
        if root in roots
    }


def _place(name: str) -> tuple[Path, Path] | None:
    """Return the folder that a module of the user's is imported from, and its file; None for all others."""
    file = getattr(sys.modules[name], "__file__", None)
    if file is None or name.partition(".")[0] in _OURS or name == "__main__":
        return None
    path, tail = Path(file), name.split(".")
    if (
        path.suffix != ".py"
        or not path.is_file()
        or _INSTALLED & set(path.parts)
        or path.is_relative_to(sysconfig.get_path("stdlib"))
    ):
        return None
    tail = [*tail, "__init__"] if path.stem == "__init__" else tail
    if list(path.with_suffix("").parts[-len(tail) :]) != tail:
        return None  # it was loaded under another name than that of its file
    return path.parents[len(tail) - 1], path


class Sent(MetaPathFinder, InspectLoader):
    """Finds modules among those that were sent; asked last, so that only what a worker lacks comes from here."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return how to load a module; None if it was not sent."""
        if fullname in self.sources or self.is_package(fullname):
            return importlib.util.spec_from_loader(fullname, self, origin=f"sent by the driver: {fullname}")
        return None

    def is_package(self, fullname: str) -> bool:
        """Return whether there are modules below this name."""
        return any(name.startswith(fullname + ".") for name in self.sources)

    def get_source(self, fullname: str) -> str:
        """Return the source of a module; that of a package may be nothing."""
        source = self.sources.get(fullname, self.sources.get(fullname + _INIT, b""))
        return importlib.util.decode_source(source)


def provide(sources: Sources) -> None:
    """Make these modules known to `import`, instead of those that were sent before: a worker may have run an older
    program.
    """
    before = [finder for finder in sys.meta_path if isinstance(finder, Sent)]
    if any(finder.sources == sources for finder in before):
        return
    for finder in before:
        sys.meta_path.remove(finder)
        stale = [name for name, module in sys.modules.items() if getattr(module, "__loader__", None) is finder]
        for name in stale:
            del sys.modules[name]
    sys.meta_path.append(Sent(sources))
