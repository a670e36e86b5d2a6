"""Refuse changelogs that another framework has written: Kafka Streams and Faust give
theirs the names of ours.

The topic of the topology's version is made before the first task opens
(`instance.deployed`), a backfill's before it is published. So a changelog that has
records while that topic is missing is not ours. Faust writes keys and values as JSON:
as our rows they would be other keys, or bytes that no serde reads, and results would
begin from nothing at the offsets of its group.

Invariant: brokers are asked only if that topic is missing and a changelog is there: at
no start but the first one, and then only while another process makes them. Turned down:
the form of the rows, settings and partition counts (they may be the same); the metadata
of offsets (Faust writes none, as do tools that set offsets); its topic
`<application>-__assignor-__leader` (it tells of Faust alone).
"""

from __future__ import annotations

from collections.abc import Collection

from coopstreams.commit.deleted_changelogs import creation, is_gone
from coopstreams.log.log import Log, TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.graph.partitions import ResolvedTopics


def check_own(
    cluster: Log,
    application: str,
    resolved: ResolvedTopics,
    version: TopicSpec,
    topics: Collection[str],
) -> None:
    """Check that the application's changelogs were written by it. No backfill of it
    waits to be published.

    `version`: the topic of the version that ran last. `topics`: those that existed
    before anything was created.

    Raises:
        ConfigError: another framework has written one; the message has the cures.
    """
    if version.name in topics:
        return
    changelogs = [
        plan
        for plan in resolved.internal
        if plan.exists and "compact" in plan.config["cleanup.policy"]
    ]
    there = [
        TopicPartition(plan.name, number)
        for plan in changelogs
        for number in range(plan.partitions)
    ]
    ends = cluster.end_offsets(there) if there else {}
    written = next((changelog for changelog in there if ends[changelog]), None)
    if written is None or not is_gone(
        cluster, version.name
    ):  # another process has made it meanwhile
        return
    raise ConfigError(
        f"{written} has records, and coopstreams has not written them: before its first row it makes {version.name}, "
        "which is not there. Kafka Streams and Faust name their changelogs so, too. Their rows are no state of this "
        "program: it would begin from nothing where they stood, among rows that it cannot read. Run it under another "
        "application.id: it begins anew, and the other application may go on beside it. Or, if that is stopped for "
        "good, run `coopstreams reset`: it deletes the changelogs and repartition topics, and this program begins anew "
        f"under the id {application}, and writes its results again. Or, if the rows are of this program, because "
        f"somebody has deleted {version.name} or not copied it to this cluster, create it: `{creation(version)}`"
    )
