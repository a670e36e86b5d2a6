"""Checks for the extra `http` before anything connects, so that a missing extra is one line instead of a traceback."""

from importlib.util import find_spec

from coopstreams.topology.errors import ConfigError


def need_http(user: str, otherwise: str = "") -> None:
    """Return if the libraries of the extra are installed; `user` is the feature, `otherwise` how to do without.

    Raises:
        ConfigError: one is missing. Install the extra, or follow `otherwise`.
    """
    missing = [name for name in ("httpx", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(f'{user} needs {", ".join(missing)}: pip install "coopstreams[http]"{otherwise}')
