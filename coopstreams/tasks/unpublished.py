"""Refuse to start while a backfill is unpublished: the application would read the
records again that are in its state.

Invariant: a start is refused as long as the run has its marks and the group has no
offsets. `publish` commits the offsets first.
"""

from __future__ import annotations

from collections.abc import Mapping

from coopstreams.common.config import Config
from coopstreams.group.admin import GroupAdmin
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.naming import backfill_runs


def check_published(
    config: Config, counts: Mapping[str, int], sources: Mapping[str, int]
) -> None:
    """Check that no backfill of the application waits to be published.

    `counts`, `sources`: all topics, and the source topics, with their partition counts.

    Raises:
        ConfigError: one does; the message has the cure.
    """
    application = config["application.id"]
    runs = backfill_runs(application, counts)
    if not runs:
        return
    read = [
        TopicPartition(topic, number)
        for topic, count in sources.items()
        for number in range(count)
    ]
    with GroupAdmin(
        config.client, application, timeout_s=config["connect.timeout.ms"] / 1000
    ) as group:
        if any(group.committed(read).values()):
            return
    raise ConfigError(
        f'run {runs[-1]} of a backfill of "{application}" is not published: an application that starts now would '
        "process the records of the backfill a second time. Publish it "
        f"(coopstreams backfill ... --resume {runs[-1]} --publish); or, to begin without it, `coopstreams reset` the "
        "application"
    )
