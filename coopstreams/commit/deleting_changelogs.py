"""Refuse internal topics of which the brokers delete what is needed, or whose records
they date: somebody has changed the settings that they had at first, or made them
beforehand.

A restore of a changelog reads what is left, and results would go on from fewer rows
without an error. Rows that no partition misses yet are a reason as well: the next
restore may. Of a repartition topic that is compacted, records that are not processed
yet go without an error. Where brokers date the records (`message.timestamp.type`),
windows behind a repartition topic, and rows that are restored, get the time of the
writing in place of that of the event.

Invariant: nothing is restored from such a changelog, neither at the start nor when a
range moves. Turned down: to change the policy back (who changed it may have had a
reason, and rows may be gone already).
"""

from __future__ import annotations

from collections.abc import Mapping

from coopstreams.common.topic_settings import setting_command
from coopstreams.log.log import BROKERS_TIME, Log
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError

_TYPE = "message.timestamp.type"


def deletes(settings: Mapping[str, str]) -> bool:
    """Whether brokers delete records of a topic with these settings by age or size."""
    kept_for_ever = (
        settings.get("retention.ms") == settings.get("retention.bytes") == "-1"
    )
    return "delete" in settings.get("cleanup.policy", "") and not kept_for_ever


def check_compacted(
    cluster: Log, settings: Mapping[str, Mapping[str, str]], stores: Mapping[str, str]
) -> None:
    """Check that the brokers delete nothing from topics that were made with
    `cleanup.policy=compact`.

    `settings` by topic. `stores`: the store that each keeps, by topic; none: it is no
    changelog.

    Raises:
        ConfigError: they do; the message has the cures.
    """
    wrong = [topic for topic, found in settings.items() if deletes(found)]
    if wrong:
        raise ConfigError(
            "\n".join(
                _refusal(cluster, topic, settings[topic], stores.get(topic))
                for topic in wrong
            )
        )


def check_not_compacted(settings: Mapping[str, Mapping[str, str]]) -> None:
    """Check that the brokers compact no repartition topics. `settings` by topic.

    Raises:
        ConfigError: they do; the message has the cures.
    """
    wrong = [
        topic
        for topic, found in settings.items()
        if "compact" in found.get("cleanup.policy", "")
    ]
    if wrong:
        raise ConfigError(
            "\n".join(
                f"{topic}, a repartition topic, has cleanup.policy={settings[topic]['cleanup.policy']}, and was made "
                "with delete: the brokers keep only the last record of each key, and results would miss those that "
                "are not processed yet, without an error. Put the policy back: "
                f"{setting_command(topic, 'cleanup.policy', 'delete')}. Records that have gone already do not come "
                "back with it: if the application was behind in this topic, begin anew (`coopstreams reset APP`)."
                for topic in wrong
            )
        )


def check_times_kept(
    settings: Mapping[str, Mapping[str, str]], stores: Mapping[str, str]
) -> None:
    """Check that the brokers leave the records of changelogs and repartition topics
    their times. `settings` by topic.

    `stores`: the store that each changelog keeps, by topic.

    Raises:
        ConfigError: they do not; the message has the cures.
    """
    wrong = [
        topic
        for topic, found in settings.items()
        if found.get(_TYPE) == BROKERS_TIME[_TYPE]
    ]
    if wrong:
        raise ConfigError(
            "\n".join(_dated(topic, stores.get(topic)) for topic in wrong)
        )


def _dated(topic: str, store: str | None) -> str:
    what = "a repartition topic"
    wrong = "what is behind it, windows above all,"
    cure = "begin anew"
    if store:
        what = f'the changelog of store "{store}"'
        wrong = "rows that are restored"
        cure = (
            "stop all instances, and before the next start have them made from the source topics (`coopstreams rebuild "
            f"APP --from source --store {store}`), or begin anew"
        )
    return (
        f"{topic}, {what}, has {_TYPE}={BROKERS_TIME[_TYPE]}: the brokers replace the time of each record by that of "
        f"its writing, and {wrong} would have wrong times, without an error. Let the records keep theirs: "
        f"{setting_command(topic, _TYPE, 'CreateTime')}. Those that are in it already have lost them: where results "
        f"depend on these, {cure} (`coopstreams reset APP`)."
    )


def _refusal(
    cluster: Log, topic: str, settings: Mapping[str, str], store: str | None
) -> str:
    what = (
        f'the changelog of store "{store}"'
        if store
        else "what is known of the last version of the topology"
    )
    partitions = [
        TopicPartition(topic, number)
        for number in range(cluster.partitions([topic])[topic])
    ]
    starts = {
        str(partition): cluster.start_offset(partition) for partition in partitions
    }
    gone = ", ".join(
        f"{partition} begins at offset {start}"
        for partition, start in starts.items()
        if start > 0
    )
    told = (
        f"{topic}, {what}, has cleanup.policy={settings['cleanup.policy']} (retention.ms="
        f"{settings.get('retention.ms', '?')}), and was made with compact: the brokers delete its rows, and a restore "
        "would begin without them, without an error. Put the policy back: "
        f"{setting_command(topic, 'cleanup.policy', 'compact')}. "
    )
    if not gone:
        return f"{told}All its partitions begin at offset 0: no rows have been deleted yet."
    if not store:
        return f"{told}Rows have been deleted already: {gone}."
    return (
        f"{told}Rows have been deleted already: {gone}. They do not come back with the policy. Stop all instances, and "
        f"before the next start have them made from the source topics (`coopstreams rebuild APP --from source --store "
        f"{store}`), or begin anew (`coopstreams reset APP`)."
    )
