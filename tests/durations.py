"""Short durations for tests, whose timestamps are small numbers."""

from datetime import timedelta


def ms(milliseconds: int) -> timedelta:
    """Return a duration in milliseconds."""
    return timedelta(milliseconds=milliseconds)
