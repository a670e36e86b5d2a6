"""Loads a topology that the command line names as `app.py`, `app.py:name` or
`package.module:name`.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import StackSummary, TracebackException
from types import ModuleType

import coopstreams
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.topology_builder import TopologyBuilder
from coopstreams.topology.errors import ConfigError, CoopStreamsError
from coopstreams.topology.graph.topology import Topology

log = logging.getLogger(__name__)

_NOT_OWN = (str(Path(coopstreams.__file__).parent), "<frozen importlib")
_KINDS = (Topology, StreamsBuilder, TopologyBuilder)


def load_topology(target: str) -> Topology:
    """Return the topology of a Python file or module. Without a name, it is the
    variable `topology`, else the only topology.

    Errors of the program have the program's own lines of the traceback.

    Raises:
        ConfigError: there is no such file, module or name, no topology in it, or
            several; the message says what was found and what to type. Or the program
            raised one of Python's own errors, and must be mended.
        CoopStreamsError: the program raised an `OSError`, or an error of a library:
            perhaps something does not answer just now.
    """
    path, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    module = _loaded(path)
    if name:
        if not hasattr(module, name):
            raise ConfigError(
                f"{path} has no variable `{name}`; topologies there: {_names(module, _KINDS)}"
            )
        return _as_topology(getattr(module, name), f"{name} in {path}")
    if hasattr(module, "topology"):
        return _as_topology(module.topology, f"topology in {path}")
    found = [value for value in vars(module).values() if isinstance(value, Topology)]
    if len(found) != 1:
        raise ConfigError(
            f"{path} has no variable `topology` (topologies found: {_names(module, Topology)}): say which one, as "
            f"{path}:NAME"
        )
    return found[0]


def _loaded(path: str) -> ModuleType:
    """Return the module of a Python file, or of a dotted name.

    Raises:
        See `load_topology`.
    """
    try:
        return _file(Path(path)) if path.endswith(".py") else _module(path)
    except CoopStreamsError:
        raise
    except Exception as error:
        log.debug("the whole traceback:", exc_info=True)
        passes = isinstance(error, OSError) or type(error).__module__ != "builtins"
        raise (CoopStreamsError if passes else ConfigError)(
            f"{path} cannot be loaded.\n{own_lines(error)}"
        ) from error


def _names(module: ModuleType, kinds: type | tuple[type, ...]) -> str:
    """Return the names of a module's variables of these types, for a message."""
    found = [name for name, value in vars(module).items() if isinstance(value, kinds)]
    return ", ".join(sorted(found)) or "none"


@contextmanager
def modules_of_its_own(target: str) -> Iterator[None]:
    """Forget, after the body, the modules that a program has loaded from its folder,
    because another version of it has its own.
    """
    path = target.rpartition(":")[0] if ":" in target else target
    folder = Path(path).resolve().parent if path.endswith(".py") else Path.cwd()
    modules = set(sys.modules)
    places = list(sys.path)
    try:
        yield
    finally:
        for name in sys.modules.keys() - modules:
            if _is_within(sys.modules[name], folder):
                del sys.modules[name]
        sys.path[:] = places


def _is_within(module: ModuleType, folder: Path) -> bool:
    """Whether a module is the program's own and no library, although an environment may
    be in the same folder.
    """
    file = getattr(module, "__file__", None)
    places = [
        Path(place).resolve()
        for place in ([file] if file else getattr(module, "__path__", ()))
    ]
    own = [
        place
        for place in places
        if place.is_relative_to(folder) and "site-packages" not in place.parts
    ]
    return bool(own) and module.__name__.partition(".")[0] != coopstreams.__name__


def own_lines(error: BaseException) -> str:
    """Return the traceback of an error without the lines of coopstreams and of Python's
    import system.
    """
    told = TracebackException.from_exception(error)
    shown: TracebackException | None = told
    while shown is not None:
        shown.stack = StackSummary.from_list(
            [frame for frame in shown.stack if not frame.filename.startswith(_NOT_OWN)]
        )
        shown = shown.__cause__ or shown.__context__
    return "".join(told.format()).rstrip()


def _as_topology(value: object, where: str) -> Topology:
    if isinstance(value, Topology):
        return value
    if isinstance(value, StreamsBuilder | TopologyBuilder):
        return value.build()
    raise ConfigError(
        f"{where} is {type(value).__name__}, not a topology: assign what `builder.build()` returns"
    )


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    none = ConfigError(
        f'there is no module "{name}" here; for a file, type its name with .py'
    )
    if name.startswith("."):  # Python would take it for a relative name
        raise none
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(
            f"{error.name}."
        ):  # else the module imports it
            raise none from error
        raise
