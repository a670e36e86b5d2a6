"""The changelogs and source topics from which stores are restored, as the brokers have
them: ids, offsets and settings, and from them the bounds of a restore.

Invariant: the id of a topic is fetched before its offsets, so a topic that is made anew
between the two has another id at the next look.
Invariant: nothing is kept beyond `forget`, which the caller does at each step: a topic
may be made anew at any time.
Relies on: `state/restore.py` (`Bounds`: what a restore makes of them).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from coopstreams.common.host import SYSTEM
from coopstreams.common.topic_settings import deletes
from coopstreams.log.log import Log
from coopstreams.preflight.checks import why_rows_are_deleted
from coopstreams.preflight.facts import is_gone, start_offsets
from coopstreams.state.published_snapshot import Changelog
from coopstreams.state.restore import NO_STOPS, TRUSTED_MS, Bounds, trusted_ms
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, LogError, UnknownTopicError
from coopstreams.topology.keys import KeyRange

log = logging.getLogger(__name__)

AT_ANY_AGE = 1 << 63
"""A time later than all record times: brokers may compact each record at once."""


class Changelogs:
    """The changelog topics at the brokers: their ids, offsets and settings. Used by one
    thread.

    The id and the settings of a topic are fetched once until `forget`: tasks that open
    together need the same ones.

    Raises:
        LogError: the brokers do not answer.
        ConfigError: a changelog was deleted, or the brokers delete its rows.
    """

    def __init__(
        self,
        cluster: Log,
        clock_ms: Callable[[], int] = SYSTEM.wall_ms,
    ) -> None:
        self._cluster = cluster
        self._clock_ms = clock_ms
        self._ids: dict[str, str] = {}
        self._settings: dict[str, Mapping[str, str]] = {}

    def forget(self) -> None:
        """Discard the cached ids and settings: a topic may be recreated or
        reconfigured.
        """
        self._ids.clear()
        self._settings.clear()

    def bounds(
        self,
        changelog: TopicPartition,
        stops: Mapping[KeyRange, int] = NO_STOPS,
    ) -> Bounds:
        """Return the bounds of a restore that begins now.

        The target is the end of the changelog, or, with `stops`, the largest of these
        ends.
        """
        return self.all_bounds({changelog: stops})[changelog]

    def all_bounds(
        self,
        changelogs: Mapping[TopicPartition, Mapping[KeyRange, int]],
    ) -> dict[TopicPartition, Bounds]:
        """Return the bounds of a restore of each changelog, by its `stops`. All ends
        are fetched in one request.
        """
        asked_ms = self._clock_ms()
        ids = {changelog: self.topic_id(changelog.topic) for changelog in changelogs}
        ends = self._cluster.end_offsets(
            [changelog for changelog, stops in changelogs.items() if not stops]
        )
        return {
            changelog: Bounds(
                self._cluster.start_offset(changelog),
                max(stops.values()) if stops else ends[changelog],
                ids[changelog],
                asked_ms,
                trusted_ms(self._settings_of(changelog.topic)),
            )
            for changelog, stops in changelogs.items()
        }

    def check_compacted(self, stores: Mapping[str, str]) -> None:
        """Check that the brokers delete no rows of these changelogs, as far as this
        process may read the topics' settings.

        `stores`: the name of each topic's store.
        """
        found = []
        for topic, store in stores.items():
            settings = self._settings_of(topic)
            if deletes(settings):
                count = self._cluster.partitions([topic])[topic]
                starts = start_offsets(self._cluster, topic, count)
                found.append(why_rows_are_deleted(topic, settings, store, starts))
        if found:
            raise ConfigError("\n".join(found))

    def compacted_until_ms(self, topic: str) -> int | None:
        """Return the time before which records were old enough to be compacted.

        None: the topic is not compacted, or this process may not read its settings.
        """
        settings = self._settings_of(topic)
        if "compact" not in settings.get("cleanup.policy", ""):
            return None
        lag_ms = int(settings.get("min.compaction.lag.ms", 0))
        # Without a lag no record is too young, whatever time it is: the clock of this
        # machine may be behind that of the broker.
        return self._clock_ms() - lag_ms if lag_ms else AT_ANY_AGE

    def topic(self, topic: str) -> Changelog:
        """Return the topic's name, current id and partition count."""
        return Changelog(
            topic,
            self.topic_id(topic),
            self._cluster.partitions([topic]).get(topic, 0),
        )

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic."""
        if topic not in self._ids:
            try:
                self._ids[topic] = self._cluster.topic_id(topic)
            except UnknownTopicError as error:
                if not is_gone(self._cluster, topic):
                    raise
                raise ConfigError(
                    f"{topic}, from which a store is to be restored, was deleted: the next start says what is lost, "
                    "and the cures"
                ) from error
        return self._ids[topic]

    def _settings_of(self, topic: str) -> Mapping[str, str]:
        """Return the settings of a topic. They are empty, so that Kafka's defaults
        apply, if this process may not read them.
        """
        if topic not in self._settings:
            try:
                self._settings[topic] = self._cluster.topic_config(topic)
            except LogError as error:
                if error.retryable:
                    raise
                log.warning(
                    "%s. State is trusted for %g hours after it was true.",
                    error,
                    TRUSTED_MS / 3_600_000,
                )
                self._settings[topic] = {}
        return self._settings[topic]
