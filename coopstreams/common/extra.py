"""Checks for extras before anything connects, so that a missing one is one line instead
of a traceback.
"""

from importlib.util import find_spec

from coopstreams.topology.errors import ConfigError


def need_http(user: str, otherwise: str = "") -> None:
    """Return if the libraries of the extra are installed; `user` is the feature,
    `otherwise` how to do without.

    Raises:
        ConfigError: one is missing. Install the extra, or follow `otherwise`.
    """
    missing = [
        name for name in ("httpx", "starlette", "uvicorn") if find_spec(name) is None
    ]
    if missing:
        raise ConfigError(
            f'{user} needs {", ".join(missing)}: pip install "coopstreams[http]"{otherwise}'
        )


def need_otel(user: str) -> None:
    """Return if OpenTelemetry is installed; `user` is the feature.

    Raises:
        ConfigError: it is not. Install the extra.
    """
    if find_spec("opentelemetry") is None:
        raise ConfigError(
            f'{user} needs opentelemetry-api: pip install "coopstreams[otel]", or leave it out'
        )
