"""Checks that optional packages are installed before anything connects, so that a
missing one is one line instead of a traceback.
"""

from importlib.util import find_spec

from coopstreams.topology.errors import ConfigError


def need_http(user: str, otherwise: str = "") -> None:
    """Check that the packages of the extra `http` are installed.

    `user`: the feature that needs them. `otherwise`: how to do without.

    Raises:
        ConfigError: a package is missing. Install the extra, or follow `otherwise`.
    """
    missing = [
        name for name in ("httpx", "starlette", "uvicorn") if find_spec(name) is None
    ]
    if missing:
        raise ConfigError(
            f'{user} needs {", ".join(missing)}: pip install "coopstreams[http]"{otherwise}'
        )


def need_otel(user: str) -> None:
    """Check that OpenTelemetry is installed. `user`: the feature that needs it.

    Raises:
        ConfigError: it is not installed. Install the extra.
    """
    if find_spec("opentelemetry") is None:
        raise ConfigError(
            f'{user} needs opentelemetry-api: pip install "coopstreams[otel]", or leave it out'
        )
