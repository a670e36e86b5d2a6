"""Checks of an application's topics before the first task runs: each error names the
topic and the cure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import pytest

from coopstreams.common.config import Config
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.preflight.resolution import check_topics, resolve_topology
from coopstreams.topology import serdes
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.errors import (
    ConfigError,
    CoopStreamsError,
    LogError,
    TopologyError,
    UnknownTopicError,
)
from coopstreams.topology.windows import TimeWindows

Write = Callable[[StreamsBuilder], object]

COMPACT = {"cleanup.policy": "compact"}
LAG = {"min.compaction.lag.ms": "86400000"}
TOPICS = [
    TopicSpec("in", 3),
    TopicSpec("other", 2),
    TopicSpec("out", 1),
    TopicSpec("kept", 1, COMPACT | LAG),
    TopicSpec("compacted", 1, COMPACT),
    TopicSpec("deleted", 1, {"cleanup.policy": "delete", "retention.ms": "3600000"}),
]


def cluster() -> MemoryLog:
    log = MemoryLog()
    log.create_topics(TOPICS)
    return log


def check(log: MemoryLog, write: Write, settings: Mapping[str, str]) -> None:
    builder = StreamsBuilder("app")
    write(builder)
    config = Config.of({"bootstrap.servers": "in-memory", **settings}, "app")
    topology = builder.build().optimized(config["topology.optimization"])
    check_topics(log, topology, config, log.partitions())


def copied(sink: str) -> Write:
    return lambda b: b.stream("in", key=serdes.raw, value=serdes.raw).to(sink)


def counted(topic: str, store: str = "counts") -> Write:
    return lambda b: (
        b.stream(topic, key=serdes.text, value=serdes.raw)
        .group_by_key()
        .count(store=store)
    )


def joined(b: StreamsBuilder) -> None:
    table = b.table("other", key=serdes.text, value=serdes.text)
    b.stream("in", key=serdes.text, value=serdes.text).join(
        table, str.__add__, value=serdes.text
    ).to("out")


def marked(b: StreamsBuilder) -> None:
    b.stream(
        "kept", key=serdes.raw, value=serdes.raw, idle_advance=timedelta(seconds=1)
    ).to("out")


def tables(*topics: str) -> Write:
    return lambda b: [
        b.table(topic, key=serdes.text, value=serdes.text, store=f"of-{topic}")
        for topic in topics
    ]


FROM_SOURCES = {"topology.optimization": "all"}
DEAD = {
    "processing.exception.handler": "dead-letter",
    "errors.dead.letter.queue.topic.name": "dead",
}


@pytest.mark.parametrize(
    ("write", "settings", "kind", "parts"),
    [
        pytest.param(
            lambda b: b.stream("in", key=serdes.raw, value=serdes.raw, order="none").to(
                "out"
            ),
            {"allow.individual.commit": "false"},
            ConfigError,
            ['"in" is read with order="none"', "Leave out one"],
            id="an order that is none, and kept",
        ),
        pytest.param(
            copied("missing"),
            {},
            UnknownTopicError,
            ["writes to missing", "create it"],
            id="sink",
        ),
        pytest.param(
            copied("out"),
            DEAD,
            UnknownTopicError,
            ["writes to dead", "create it"],
            id="dead letters",
        ),
        pytest.param(
            joined,
            {},
            TopologyError,
            ['"in" has 3 partitions', '"other" has 2', "join", ".repartition()"],
            id="join",
        ),
        pytest.param(
            marked,
            {},
            ConfigError,
            ["the topic is compacted", ".repartition(idle_advance=...)"],
            id="time marks",
        ),
        pytest.param(
            tables("kept"),
            FROM_SOURCES | {"auto.offset.reset": "latest"},
            ConfigError,
            [
                'the table "of-kept" is restored from its topic "kept"',
                'reset="earliest"',
            ],
            id="a table that is restored from its beginning",
        ),
    ],
)
def test_topics_that_do_not_fit_are_named_with_the_cure(
    write: Write,
    settings: Mapping[str, str],
    kind: type[CoopStreamsError],
    parts: list[str],
) -> None:
    with pytest.raises(kind) as caught:
        check(cluster(), write, settings)
    for part in parts:
        assert part in str(caught.value)


def with_internal_topics_of(write: Write) -> MemoryLog:
    """Return a cluster on which this program has run."""
    log, builder = cluster(), StreamsBuilder("app")
    write(builder)
    resolve_topology(
        log, builder.build(), Config.of({"bootstrap.servers": "in-memory"}, "app")
    )
    return log


def test_an_internal_topic_with_another_number_of_partitions_is_an_error() -> None:
    with pytest.raises(
        TopologyError,
        match=r"app-counts-changelog.*has 2 partitions.*needs 3.*application id",
    ):
        check(with_internal_topics_of(counted("other")), counted("in"), {})


def test_internal_topics_of_an_earlier_form_of_the_program_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(with_internal_topics_of(counted("in", "old")), counted("in", "new"), {})
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("app-old-changelog looks like an internal topic"), (
        "a renamed store is an empty store"
    )
    assert "It is of an application whose id begins with app-; or" in told, (
        "to delete it would be wrong then"
    )


def test_a_topic_that_forgets_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(cluster(), tables("kept", "deleted"), FROM_SOURCES)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        'the table "of-deleted" is restored from its topic "deleted" (topology.optimization)'
    )


def test_a_topic_that_is_compacted_before_it_was_read_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(cluster(), tables("kept", "compacted"), FROM_SOURCES)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith('the table "of-compacted" is restored from its topic')
    assert "--entity-name compacted --add-config min.compaction.lag.ms=" in told


def windowed(grace_hours: int) -> Write:
    windows = TimeWindows(hours=1, grace=timedelta(hours=grace_hours))

    def write(builder: StreamsBuilder) -> None:
        numbers = builder.stream("in", key=serdes.text, value=serdes.raw)
        numbers.group_by_key().windowed_by(windows).count(store="counts")

    return write


CHANGELOG = "app-counts-changelog"


def changed(log: MemoryLog, topic: str, **config: str) -> None:
    """Change settings of an empty topic, dots written as underscores."""
    now = {
        **log.topic_config(topic),
        **{name.replace("_", "."): value for name, value in config.items()},
    }
    partitions = log.partitions()[topic]
    log.delete_topics([topic])
    log.create_topics([TopicSpec(topic, partitions, now)])


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_changelog_from_which_rows_are_deleted_is_refused(policy: str) -> None:
    log = with_internal_topics_of(counted("in"))
    check(log, counted("in"), {})
    changed(log, CHANGELOG, cleanup_policy=policy, retention_ms="1000")
    with pytest.raises(ConfigError) as none_gone:
        check(log, counted("in"), {})
    told = str(none_gone.value)
    assert (
        f'{CHANGELOG}, the changelog of store "counts", has cleanup.policy={policy} (retention.ms=1000)'
        in told
    )
    assert f"--entity-name {CHANGELOG} --add-config cleanup.policy=compact`" in told
    assert "no rows have been deleted yet" in told
    assert "rebuild" not in told
    log.writer().append(CHANGELOG, [b"a"] * 4, [b"1"] * 4, range(4), partitions=2)
    log.delete_before(TopicPartition(CHANGELOG, 2), 3)
    with pytest.raises(ConfigError) as gone:
        check(log, counted("in"), {})
    assert (
        f"Rows have been deleted already: {CHANGELOG}-2 begins at offset 3. They do not come back"
        in str(gone.value)
    )
    assert "`coopstreams rebuild APP --from source --store counts`" in str(gone.value)
    assert "`coopstreams reset APP`" in str(gone.value)


def regrouped(b: StreamsBuilder) -> None:
    stream = b.stream("in", key=serdes.text, value=serdes.text)
    stream.group_by(lambda _, value: value, key=serdes.text, name="by").count(
        store="counts"
    )


@pytest.mark.parametrize(
    ("write", "topic", "lost"),
    [
        (windowed(0), CHANGELOG, "a restore would miss open windows"),
        (
            regrouped,
            "app-by-repartition",
            "records that are not processed yet would be deleted",
        ),
    ],
)
def test_an_internal_topic_that_is_cut_by_its_size_is_worth_a_warning(
    write: Write, topic: str, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that an earlier version made: `retention.bytes` is that of the brokers."""
    log = with_internal_topics_of(write)
    check(log, write, {})
    assert caplog.records == []
    changed(log, topic, retention_bytes="1000")
    check(log, write, {})
    (told,) = [record.getMessage() for record in caplog.records]
    assert (
        f"{topic} has retention.bytes=1000: once a partition is larger, {lost}." in told
    )
    assert f"--entity-name {topic} --add-config retention.bytes=-1`" in told


def test_a_repartition_topic_whose_records_are_deleted_by_age_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that was made beforehand, with the brokers' default of a week."""
    log, moved = with_internal_topics_of(regrouped), "app-by-repartition"
    changed(log, moved, retention_ms="604800000")
    check(log, regrouped, {})
    (told,) = [record.getMessage() for record in caplog.records]
    assert (
        "delete records whose own time is more than 168 hours ago, also those that are not processed yet"
        in told
    )
    assert f"--entity-name {moved} --add-config retention.ms=-1`" in told


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_repartition_topic_that_is_compacted_is_refused(policy: str) -> None:
    log, moved = with_internal_topics_of(regrouped), "app-by-repartition"
    check(log, regrouped, {})
    changed(log, moved, cleanup_policy=policy)
    with pytest.raises(ConfigError) as refused:
        check(log, regrouped, {})
    assert (
        f"{moved}, a repartition topic, has cleanup.policy={policy}, and was made with delete"
        in str(refused.value)
    )
    assert f"--entity-name {moved} --add-config cleanup.policy=delete`" in str(
        refused.value
    )
    assert "`coopstreams reset APP`" in str(refused.value)
    changed(log, moved, cleanup_policy="delete")
    check(log, regrouped, {})


@pytest.mark.parametrize(
    ("write", "topic", "parts"),
    [
        (
            regrouped,
            "app-by-repartition",
            [
                "a repartition topic,",
                "windows above all",
                "depend on these, begin anew",
            ],
        ),
        (
            windowed(0),
            CHANGELOG,
            [
                'the changelog of store "counts"',
                "rows that are restored",
                "--store counts`",
            ],
        ),
        (
            counted("in"),
            CHANGELOG,
            [
                'the changelog of store "counts"',
                "rows that are restored",
                "--store counts`",
            ],
        ),
    ],
)
def test_an_internal_topic_whose_records_brokers_date_is_refused(
    write: Write, topic: str, parts: list[str]
) -> None:
    """Made beforehand, or by an earlier version where the brokers' default is that:
    event times would be gone.
    """
    log = with_internal_topics_of(write)
    changed(log, topic, message_timestamp_type="LogAppendTime")
    with pytest.raises(ConfigError) as refused:
        check(log, write, {})
    for part in (
        f"{topic}, ",
        "has message.timestamp.type=LogAppendTime",
        "`coopstreams reset APP`",
        *parts,
    ):
        assert part in str(refused.value)
    assert (
        f"--entity-name {topic} --add-config message.timestamp.type=CreateTime`"
        in str(refused.value)
    )
    changed(log, topic, message_timestamp_type="CreateTime")
    check(log, write, {})


def test_internal_topics_take_any_time_whatever_the_brokers_take_by_default() -> None:
    """With a default of a day, rows of last year's events could not be written, and are
    never left out.
    """
    bounds = {
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "86400000",
    }
    log = MemoryLog()
    log.create_topics([TopicSpec("in", 1, bounds)])
    builder = StreamsBuilder("app")
    regrouped(builder)
    resolve_topology(
        log, builder.build(), Config.of({"bootstrap.servers": "in-memory"}, "app")
    )
    for topic in ("app-by-repartition", CHANGELOG):
        assert (
            log.topic_config(topic).items()
            >= dict.fromkeys(bounds, str((1 << 63) - 1)).items()
        )


def test_all_topics_from_which_rows_are_deleted_are_named_with_the_record_of_the_last_version() -> (
    None
):
    def write(builder: StreamsBuilder) -> None:
        counted("in")(builder)
        counted("other", "others")(builder)

    log, known = with_internal_topics_of(write), "app-topology"
    log.create_topics([TopicSpec(known, 1, COMPACT)])
    check(log, write, {})
    for topic in (CHANGELOG, "app-others-changelog", known):
        changed(log, topic, cleanup_policy="delete")
    with pytest.raises(ConfigError) as caught:
        check(log, write, {})
    assert [line.split(",")[0] for line in str(caught.value).splitlines()] == [
        CHANGELOG,
        "app-others-changelog",
        known,
    ]


def test_a_changelog_that_is_not_compacted_but_kept_for_ever_misses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = with_internal_topics_of(counted("in"))
    changed(
        log, CHANGELOG, cleanup_policy="delete", retention_ms="-1", retention_bytes="-1"
    )
    check(log, counted("in"), {})
    assert caplog.records == []


def test_a_changelog_of_windows_whose_rows_brokers_delete_by_age_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = with_internal_topics_of(windowed(0))
    check(log, windowed(0), {})
    assert caplog.records == []
    changed(log, CHANGELOG, retention_ms="90000000")
    check(log, windowed(0), {})
    (told,) = [record.getMessage() for record in caplog.records]
    assert (
        "the brokers delete rows whose own time is 25 hours ago by their clock" in told
    )
    assert "--add-config retention.ms=-1`" in told


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        ("delete", "all updates of a row are kept"),
        ("compact", "windows that are over are kept for ever"),
    ],
)
def test_a_changelog_of_windows_that_keeps_more_than_it_must_is_worth_a_warning(
    policy: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = with_internal_topics_of(windowed(0))
    changed(log, CHANGELOG, cleanup_policy=policy)
    check(log, windowed(0), {})
    (told,) = [record.getMessage() for record in caplog.records]
    assert (
        f"{CHANGELOG} has cleanup.policy={policy}, and was made with compact,delete."
        in told
    )
    assert what in told
    assert "--add-config cleanup.policy=[compact,delete]`" in told


class Closed(MemoryLog):
    """A cluster that does not let this process read settings."""

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        raise LogError(f"not allowed to read the configuration of {', '.join(topics)}")


def test_changelogs_whose_settings_may_not_be_read_are_worth_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Closed()
    log.create_topics([*TOPICS, TopicSpec(CHANGELOG, 3, {"cleanup.policy": "delete"})])
    check(log, counted("in"), {})
    (told,) = [record.getMessage() for record in caplog.records]
    assert (
        f"records are missed. not allowed to read the configuration of {CHANGELOG}"
        in told
    )


@pytest.mark.parametrize("new", ["in", "out"])
def test_a_topic_that_the_first_broker_asked_does_not_know_yet_is_not_missing(
    monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    """Brokers learn of a new topic from the controller one after the other."""
    log = cluster()
    known = log.partitions
    answers = [{topic: count for topic, count in known().items() if topic != new}]
    monkeypatch.setattr(
        log,
        "partitions",
        lambda topics=None: answers.pop() if answers else known(topics),
    )
    check(log, copied("out"), {})
    assert not answers
