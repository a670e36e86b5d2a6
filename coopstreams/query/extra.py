"""Whether the extra `http` is installed: asked before anything connects, so that its absence is one line and no
traceback.
"""

from importlib.util import find_spec

from coopstreams.topology.errors import ConfigError


def need_http(user: str, otherwise: str = "") -> None:
    """Return when the libraries of the extra are there; `user` is who needs them, `otherwise` how to do without.

    Raises:
        ConfigError: one is missing. Install the extra, or do what `otherwise` says.
    """
    missing = [name for name in ("httpx", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(f'{user} needs {", ".join(missing)}: pip install "coopstreams[http]"{otherwise}')
