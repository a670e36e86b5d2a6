"""The checks of a start, in one table: each is a pure function of the `Facts`.

A new check is a function and a row here; its test gives it facts. Findings are reported
in the order of the rows.

Invariant: a start that is refused has created no topic, so the next one is refused as
well. Turned down: to change settings of topics back (who changed them may have had a
reason, and rows may be gone already); a setting that accepts a deleted changelog (it
would stay, and accept the next one); going on with the state folders (each has only the
key ranges that its process had); telling Faust's changelogs by the form of their rows,
their settings or the metadata of offsets (they may be the same).
Relies on: `facts` (what a check may know), `resolution` (gathers, checks, then
creates).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coopstreams.common.topic_settings import (
    IN_SYNC,
    deletes,
    policies,
    setting_command,
)
from coopstreams.log.log import BROKERS_TIME, TopicSpec
from coopstreams.preflight.facts import Facts, made_compact
from coopstreams.preflight.findings import Check
from coopstreams.preflight.last_version import topic_spec
from coopstreams.preflight.name_claims import why_claimed
from coopstreams.tasks.failure_handlers import dead_letter_topics
from coopstreams.tasks.resolved_topology import reset_of_topic
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import (
    ConfigError,
    TopologyChangedError,
    TopologyError,
    UnknownTopicError,
)
from coopstreams.topology.graph.offset_resets import EARLIEST
from coopstreams.topology.graph.partitions import TopicPlan
from coopstreams.topology.naming import COMMIT_TOPIC, OFFSETS_TOPIC

_TYPE = "message.timestamp.type"
_LAG = "min.compaction.lag.ms"
_HOUR_MS = 3_600_000
_WEEK_MS = "604800000"


def shared_names(facts: Facts) -> Iterator[str]:
    """Yield a finding if another application has internal topics of this one as well."""
    if facts.claimed:
        yield why_claimed(facts.topology, facts.claimed)


def lost_state(facts: Facts) -> Iterator[str]:
    """Yield a finding if a change since the last version loses or mixes state."""
    if refusal := facts.changes.refusal(facts.topology.application_id):
        yield refusal


def accepted_changes(facts: Facts) -> Iterator[str]:
    """Yield a finding for each change that loses or mixes state and that an operator
    has accepted.
    """
    yield from facts.changes.acceptance()


def unordered_in_transactions(facts: Facts) -> Iterator[str]:
    """Yield a finding if a share group reads a source under exactly-once."""
    topics = facts.topology.unordered_topics
    if facts.config.exactly_once and topics:
        yield (
            f'"{topics[0]}" is read with order="none", but processing.guarantee='
            f"{facts.config['processing.guarantee']}: a share group acknowledges records outside of transactions, so "
            "that results and progress cannot count together. Leave out order=, or set "
            "processing.guarantee=at_least_once."
        )


def unordered_not_allowed(facts: Facts) -> Iterator[str]:
    """Yield a finding if a share group reads a source although the application's own
    setting keeps the order.
    """
    topics = facts.topology.unordered_topics
    if topics and not facts.config["allow.individual.commit"]:
        yield (
            f'"{topics[0]}" is read with order="none", but allow.individual.commit=false keeps records in order: '
            "nothing of it would be processed. Leave out one of them."
        )


def unknown_sources(facts: Facts) -> Iterator[str]:
    """Yield a finding if a source topic does not exist."""
    if isinstance(facts.misfit, UnknownTopicError):
        yield str(facts.misfit)


def misfit_topics(facts: Facts) -> Iterator[str]:
    """Yield a finding if partition counts or names of topics do not fit the topology."""
    if facts.misfit is not None:
        yield str(facts.misfit)


def skipped_rows(facts: Facts) -> Iterator[str]:
    """Yield a finding for each table that is restored from its topic, which is not read
    from its beginning.
    """
    for store, topic in facts.reused:
        reset = reset_of_topic(facts.topology, facts.config, topic)
        if reset != EARLIEST:
            yield (
                f'the table "{store}" is restored from its topic "{topic}" (topology.optimization), from the '
                f"beginning, but auto.offset.reset={reset} skips the records from before the first start. Set it to "
                'earliest, give the table reset="earliest", or leave out reuse.ktable.source.topics.'
            )


def forgetting_tables(facts: Facts) -> Iterator[str]:
    """Yield a finding for each topic from which a table is restored and from which
    brokers delete rows.
    """
    for store, topic in facts.reused:
        settings = facts.settings[topic]
        if deletes(settings):
            yield (
                f'the table "{store}" is restored from its topic "{topic}" (topology.optimization), whose '
                f"cleanup.policy is {settings['cleanup.policy']}: rows that the broker has deleted "
                "are missing after a restore. Set cleanup.policy=compact, or leave out reuse.ktable.source.topics."
            )


def tables_compacted_early(facts: Facts) -> Iterator[str]:
    """Yield a finding for each topic from which a table is restored and in which
    brokers may compact records before they were read.
    """
    for store, topic in facts.reused:
        settings = facts.settings[topic]
        if (
            "compact" in policies(settings)
            and not deletes(settings)
            and int(settings.get(_LAG, 0)) == 0
        ):
            yield (
                f'the table "{store}" is restored from its topic "{topic}" (topology.optimization), which brokers may '
                "compact up to records that are not processed yet (min.compaction.lag.ms=0). A task "
                "that stands below such a record does not open without its state "
                "folder: the row before it would be missing. Give the topic a lag that "
                f"is longer than the application may be behind: {setting_command(topic, _LAG, _WEEK_MS)}; or leave out "
                "reuse.ktable.source.topics."
            )


def marks_in_compacted_topics(facts: Facts) -> Iterator[str]:
    """Yield a finding for each compacted topic to which the application writes time
    marks, which have no key.
    """
    for topic in facts.marked:
        if "compact" in policies(facts.settings[topic]):
            yield (
                f'stream("{topic}", idle_advance=): the topic is compacted, and takes no record without a key. '
                "Say .repartition(idle_advance=...) below it instead: the time marks go to that topic."
            )


def hidden_settings(facts: Facts) -> Iterator[str]:
    """Yield a finding if this user may not see the settings of internal topics."""
    if facts.hidden:
        yield (
            "cannot see whether the internal topics still have the settings that they were made with: if one has "
            "message.timestamp.type=LogAppendTime now, times are wrong; if a changelog has `delete`, a restore misses "
            f"rows; if a repartition topic has `compact`, records are missed. {facts.hidden}"
        )


def deleted_rows(facts: Facts) -> Iterator[str]:
    """Yield a finding for each changelog, and for the topic of the last version, if
    brokers delete rows from it. It counts even while all rows are there: a later restore may miss
    some.
    """
    for topic in made_compact(facts):
        settings = facts.settings.get(topic, {})
        if deletes(settings):
            yield why_rows_are_deleted(
                topic,
                settings,
                facts.stores.get(topic),
                facts.starts,
            )


def compacted_repartitions(facts: Facts) -> Iterator[str]:
    """Yield a finding for each repartition topic of which brokers keep only the last
    record of a key.
    """
    for plan in _repartitions(facts):
        settings = facts.settings.get(plan.name, {})
        if "compact" in policies(settings):
            yield (
                f"{plan.name}, a repartition topic, has cleanup.policy={settings['cleanup.policy']}, and was made "
                "with delete: the brokers keep only the last record of each key, and results would miss those that "
                "are not processed yet, without an error. Put the policy back: "
                f"{setting_command(plan.name, 'cleanup.policy', 'delete')}. Records that have gone already do not come "
                "back with it: if the application was behind in this topic, begin anew (`coopstreams reset APP`)."
            )


def replaced_times(facts: Facts) -> Iterator[str]:
    """Yield a finding for each internal topic whose records get the time of the write
    from the brokers.
    """
    for plan in facts.existing:
        if facts.settings.get(plan.name, {}).get(_TYPE) != BROKERS_TIME[_TYPE]:
            continue
        what = "a repartition topic"
        wrong = "what is behind it, windows above all,"
        cure = "begin anew"
        if store := facts.stores.get(plan.name):
            what = f'the changelog of store "{store}"'
            wrong = "rows that are restored"
            cure = (
                "stop all instances, and before the next start have them made from the source topics (`coopstreams "
                f"rebuild APP --from source --store {store}`), or begin anew"
            )
        yield (
            f"{plan.name}, {what}, has {_TYPE}={BROKERS_TIME[_TYPE]}: the brokers replace the time of each record by "
            f"that of its writing, and {wrong} would have wrong times, without an error. Let the records keep theirs: "
            f"{setting_command(plan.name, _TYPE, 'CreateTime')}. Those that are in it already have lost them: where "
            f"results depend on these, {cure} (`coopstreams reset APP`)."
        )


def cut_by_size(facts: Facts) -> Iterator[str]:
    """Yield a finding for each internal topic whose records brokers delete because of
    their size. An earlier version left that to `log.retention.bytes`, or somebody has
    set it.
    """
    lost = {
        plan.name: "records that are not processed yet would be deleted"
        for plan in _repartitions(facts)
    }
    lost |= {plan.name: "a restore would miss open windows" for plan in _windows(facts)}
    for topic, what in lost.items():
        settings = facts.settings.get(topic, {})
        size = settings.get("retention.bytes", "-1")
        if "delete" in policies(settings) and int(size) >= 0:
            yield (
                f"{topic} has retention.bytes={size}: once a partition is larger, {what}. Change it: "
                f"{setting_command(topic, 'retention.bytes', '-1')}"
            )


def cut_by_age(facts: Facts) -> Iterator[str]:
    """Yield a finding for each repartition topic whose records brokers delete because
    of their age. Somebody has set it, or has created the topic with the brokers'
    default.
    """
    for plan in _repartitions(facts):
        settings = facts.settings.get(plan.name, {})
        kept_ms = int(settings.get("retention.ms", -1))
        if kept_ms >= 0:
            yield (
                f"{plan.name}, a repartition topic, has retention.ms={kept_ms}: the brokers delete records whose own "
                f"time is more than {kept_ms / _HOUR_MS:g} hours ago, also those that are not processed yet: of "
                "history that is read, or after a pause. The application deletes what it has processed by itself. "
                f"Change it: {setting_command(plan.name, 'retention.ms', '-1')}"
            )


def windows_kept_long(facts: Facts) -> Iterator[str]:
    """Yield a finding for each changelog of windows whose cleanup.policy lacks `compact`
    or `delete`, with which it was created: it keeps each update of a row, or windows for
    ever.
    """
    grows = {
        "compact": "all updates of a row are kept",
        "delete": "windows that are over are kept for ever",
    }
    for plan in _windows(facts):
        settings = facts.settings.get(plan.name, {})
        if not policies(settings):
            continue
        policy = plan.config["cleanup.policy"]
        for lacking in sorted(policies(plan.config) - policies(settings)):
            yield (
                f"{plan.name} has cleanup.policy={settings['cleanup.policy']}, and was made with {policy}. No open "
                f"window is lost by that, but the topic grows, and restores read more: {grows[lacking]}. Put the "
                f"policy back: {setting_command(plan.name, 'cleanup.policy', policy)}"
            )


def windows_by_age(facts: Facts) -> Iterator[str]:
    """Yield a finding for each changelog of windows whose records brokers delete
    because of their age. An earlier version created it with a retention, or somebody
    has set it.
    """
    for plan in _windows(facts):
        settings = facts.settings.get(plan.name, {})
        kept_ms = int(settings.get("retention.ms", -1))
        if "delete" in policies(settings) and kept_ms >= 0:
            yield (
                f"{plan.name} has retention.ms={kept_ms}: the brokers delete rows whose own time is {kept_ms / _HOUR_MS:g} "
                "hours ago by their clock. Where stream time is as far behind it (history, or a source that was silent "
                "for as long), a restore would miss open windows. Instances delete expired windows by stream time. "
                f"Change it: {setting_command(plan.name, 'retention.ms', '-1')}"
            )


def less_durable_commits(facts: Facts) -> Iterator[str]:
    """Yield a finding if the commit topic survives less than `__consumer_offsets`."""
    if not facts.replicas:
        return
    mine = facts.replicas[COMMIT_TOPIC]
    wanted = facts.replicas[OFFSETS_TOPIC]
    if mine < wanted:
        yield (
            f"{COMMIT_TOPIC} has {mine} replica{'s' * (mine != 1)}, and {OFFSETS_TOPIC} has {wanted}: when brokers are "
            "lost, the progress of groups may be lost although their offsets are not, and records are processed twice. "
            f"Give each of its partitions {wanted} replicas: `kafka-reassign-partitions.sh --bootstrap-server HOST:PORT "
            "--execute --reassignment-json-file FILE`, where FILE names the brokers of each partition"
        )
        return
    in_sync, all_in_sync = (
        int(facts.settings.get(topic, {}).get(IN_SYNC, "0"))
        for topic in (COMMIT_TOPIC, OFFSETS_TOPIC)
    )
    if 0 < in_sync < all_in_sync:
        yield (
            f"{COMMIT_TOPIC} has {IN_SYNC}={in_sync}, and {OFFSETS_TOPIC} has {all_in_sync}: a commit may be lost with "
            f"{in_sync} broker{'s' * (in_sync != 1)}. Change it: "
            f"{setting_command(COMMIT_TOPIC, IN_SYNC, str(all_in_sync))}"
        )


def unknown_sinks(facts: Facts) -> Iterator[str]:
    """Yield a finding if topics for results or dead letters do not exist."""
    written = dead_letter_topics(facts.topology, facts.config)
    missing = [
        topic
        for topic in (*facts.topology.sink_topics, *written)
        if topic not in facts.counts and topic not in facts.topics.partitions
    ]
    if missing:
        yield (
            f"the application writes to {', '.join(missing)}, which does not exist: create it first; only internal "
            "topics are made by themselves"
        )


def orphans(facts: Facts) -> Iterator[str]:
    """Yield a finding for each topic that is named like an internal one of this
    application, and that the topology does not use.
    """
    application = facts.topology.application_id
    for orphan in facts.topics.orphans:
        yield (
            f"{orphan} looks like an internal topic of this application, which has none of that name. It is of an "
            f"application whose id begins with {application}-; or another version of this program left it behind: "
            "then its rows are not in the new stores. Give stores names that stay, or delete the topic."
        )


def deleted_changelogs(facts: Facts) -> Iterator[str]:
    """Yield a finding if changelogs were deleted: an empty one would be created in
    their place.
    """
    lost = [spec for spec in facts.missing if spec.name in facts.deleted]
    if not lost:
        return
    named = ", ".join(
        f'{spec.name}, the changelog of store "{facts.stores[spec.name]}"'
        for spec in lost
    )
    stores = " ".join(f"--store {facts.stores[spec.name]}" for spec in lost)
    yield (
        f'deleted: {named}. "{facts.topology.application_id}" has processed records into it, and it is not made anew: '
        "it would be empty, and results would begin from nothing without an error. Stop all instances. Then have its "
        f"rows made from the source topics (`coopstreams rebuild APP --from source {stores}`), or begin anew "
        "(`coopstreams reset APP`). Or, if the store may begin empty where the application stands, create the topic: "
        + "; ".join(f"`{_creation(spec)}`" for spec in lost)
    )


def unpublished_backfills(facts: Facts) -> Iterator[str]:
    """Yield a finding if a backfill waits to be published: the application would read
    the records again that are in its state.
    """
    if run := facts.unpublished:
        yield (
            f'run {run} of a backfill of "{facts.topology.application_id}" is not published: an application that '
            "starts now would process the records of the backfill a second time. Publish it "
            f"(coopstreams backfill ... --resume {run} --publish); or, to begin without it, `coopstreams reset` the "
            "application"
        )


def foreign_changelogs(facts: Facts) -> Iterator[str]:
    """Yield a finding if another framework has written a changelog. Kafka Streams and
    Faust give theirs the same names. Read as rows of this program, their rows would be
    other keys, or bytes that no serde reads.
    """
    application = facts.topology.application_id
    version = topic_spec(application)
    if facts.foreign is not None:
        yield (
            f"{facts.foreign} has records, and coopstreams has not written them: before its first row it makes "
            f"{version.name}, which is not there. Kafka Streams and Faust name their changelogs so, too. Their rows "
            "are no state of this program: it would begin from nothing where they stood, among rows that it cannot "
            "read. Run it under another application.id: it begins anew, and the other application may go on beside "
            "it. Or, if that is stopped for good, run `coopstreams reset`: it deletes the changelogs and repartition "
            f"topics, and this program begins anew under the id {application}, and writes its results again. Or, if "
            f"the rows are of this program, because somebody has deleted {version.name} or not copied it to this "
            f"cluster, create it: `{_creation(version)}`"
        )


CHECKS: tuple[Check[Facts], ...] = (
    Check(
        "rows of two applications in one internal topic",
        shared_names,
        ConfigError,
    ),
    Check(
        "a new version that loses, mixes or misreads state of the last one",
        lost_state,
        TopologyChangedError,
    ),
    Check(
        "the same, where an operator has accepted the change",
        accepted_changes,
    ),
    Check(
        "results that count although their records are processed again",
        unordered_in_transactions,
        ConfigError,
    ),
    Check(
        "a source that waits for ever because of the application's own setting",
        unordered_not_allowed,
        ConfigError,
    ),
    Check(
        "reading nothing because the name of a topic is wrong",
        unknown_sources,
        UnknownTopicError,
    ),
    Check(
        "keys that are in other partitions than the rows they meet",
        misfit_topics,
        TopologyError,
    ),
    Check(
        "a table without the rows from before the first start",
        skipped_rows,
        ConfigError,
    ),
    Check(
        "a table that is restored without rows that brokers have deleted",
        forgetting_tables,
    ),
    Check(
        "a table that cannot be restored because its topic was compacted too early",
        tables_compacted_early,
    ),
    Check(
        "time marks that brokers refuse",
        marks_in_compacted_topics,
        ConfigError,
    ),
    Check(
        "not seeing what the next rows look for",
        hidden_settings,
    ),
    Check(
        "a restore without rows that brokers have deleted",
        deleted_rows,
        ConfigError,
    ),
    Check(
        "results without records that brokers have removed before they were processed",
        compacted_repartitions,
        ConfigError,
    ),
    Check(
        "windows and rows with the time of the writing in place of that of the event",
        replaced_times,
        ConfigError,
    ),
    Check(
        "records that go because a partition is large",
        cut_by_size,
    ),
    Check(
        "records that go because they are old and not processed yet",
        cut_by_age,
    ),
    Check(
        "a changelog of windows that grows for ever",
        windows_kept_long,
    ),
    Check(
        "a restore without windows that are still open",
        windows_by_age,
    ),
    Check(
        "progress that is lost with brokers whose loss the offsets of groups survive",
        less_durable_commits,
    ),
    Check(
        "an application that fails at its first result",
        unknown_sinks,
        UnknownTopicError,
    ),
    Check(
        "rows that stay behind under an older name of a store",
        orphans,
    ),
    Check(
        "a store that begins empty where the application stands",
        deleted_changelogs,
        ConfigError,
    ),
    Check(
        "processing the records of a backfill a second time",
        unpublished_backfills,
        ConfigError,
    ),
    Check(
        "taking rows of Kafka Streams or Faust for state",
        foreign_changelogs,
        ConfigError,
    ),
)


def why_rows_are_deleted(
    topic: str,
    settings: Mapping[str, str],
    store: str | None,
    starts: Mapping[TopicPartition, int],
) -> str:
    """Return why no store is restored from a topic whose rows brokers delete, in words.

    `store`: the store of the changelog; None: the topic has the record of the last
    version. `starts`: the first offsets of its partitions.
    """
    what = (
        f'the changelog of store "{store}"'
        if store
        else "what is known of the last version of the topology"
    )
    gone = ", ".join(
        f"{at} begins at offset {start}"
        for at, start in starts.items()
        if at.topic == topic and start > 0
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


def _repartitions(facts: Facts) -> list[TopicPlan]:
    return [plan for plan in facts.existing if "compact" not in policies(plan.config)]


def _windows(facts: Facts) -> list[TopicPlan]:
    """Return the changelogs of windows: those that are created with `compact` and
    `delete`.
    """
    return [
        plan
        for plan in facts.existing
        if policies(plan.config) == {"compact", "delete"}
    ]


def _creation(spec: TopicSpec) -> str:
    """Return the command that creates a topic."""
    settings = " ".join(f"--set {name}={value}" for name, value in spec.config.items())
    return f"coopstreams topics create {spec.name} --partitions {spec.partitions} {settings}"
