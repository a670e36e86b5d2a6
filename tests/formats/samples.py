"""A sample of each format of `format_table`: its bytes as this release writes them, and
what it reads from the bytes of each version.

A sample has parts by name, because a format may have several kinds of bytes. It names
every field, so that a field which changes its place or its form changes the bytes.
Compressed parts are kept decompressed: zlib may compress otherwise tomorrow.
"""

from __future__ import annotations

import hashlib
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from coopstreams import JoinWindows, StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.admin.dead_letters import dead_letter
from coopstreams.admin.replay_metadata import Turn, Wanted, metadata_of, turns_of
from coopstreams.commit import record
from coopstreams.commit.cluster_policy import TOPIC, PolicyTopic, topic_spec
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM
from coopstreams.consumer import group_assignment
from coopstreams.group import codec
from coopstreams.group.members import (
    Assignment,
    Cluster,
    Member,
    MemberInfo,
    MemberState,
    Runs,
    Warmth,
)
from coopstreams.log import time_marks
from coopstreams.log.clocks import Mark, clock_marks_in
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.log.read_to_end import remainder
from coopstreams.preflight.last_version import LastVersion
from coopstreams.sinks import postgres
from coopstreams.state import layout, snapshot
from coopstreams.state.checkpoints import Checkpoint, Checkpoints
from coopstreams.state.database import Database
from coopstreams.state.directory import StateDirectory
from coopstreams.state.engine import Engine
from coopstreams.state.manifest import (
    File,
    InFlight,
    Manifest,
    Slice,
    SourcePosition,
    StoreSlices,
)
from coopstreams.state.memory_engine import Memory
from coopstreams.state.snapshot_round import (
    Part,
    PartStore,
    Round,
    SavepointRequest,
    TaskPositions,
)
from coopstreams.state.task_state import TaskState
from coopstreams.tasks.failure_handlers import dead_letter_headers
from coopstreams.topology.aggregate_rows import rows_of
from coopstreams.topology.aggregates import (
    AggregateFunction,
    count,
    count_distinct,
    first,
    last,
    max_,
    mean,
    min_,
    quantile,
    sum_,
    top_,
)
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.births import births_in, with_births
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.dsl.attach_joins import values_of, waiting_of
from coopstreams.topology.dsl.distinct import times_by_id
from coopstreams.topology.dsl.repartition import PRESENT
from coopstreams.topology.failures import Failure
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.foreign_keys import (
    ANSWER_IF_FOUND,
    ANSWERS,
    SUBSCRIBERS,
    SUBSCRIPTION,
    Answer,
    ForeignKeySubscription,
    hash_of,
)
from coopstreams.topology.graph.known_folds import totals
from coopstreams.topology.graph.outline import outline, read_outline
from coopstreams.topology.kept_headers import Headed, with_headers
from coopstreams.topology.keys import (
    WHOLE,
    KeyRange,
    key_hash,
    offset_hash,
    partition_of,
)
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.sketches import value_hash
from coopstreams.topology.stores import (
    StoreSpec,
    session_key,
    subscriber_key,
    window_key,
)
from coopstreams.topology.suppression import SuppressedUpdate, held
from coopstreams.topology.task_id import TaskId
from tests.state.rows import put

Parts = Mapping[str, bytes]
"""Bytes by name. A part whose name ends with `json` is text, and may get fields."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How a format is written and read."""

    write: Callable[[int], Parts]
    """Returns the bytes of a version; none: this release does not write it any more."""
    read: Callable[[Parts], Any]
    """Returns what this release reads from the bytes of any version."""
    means: Callable[[int], Any]
    """Returns what the bytes of a version mean."""


HALF = KeyRange.of_groups(0, 127)
TASK = TaskId(0, 3, HALF)
ODD = TaskId(1, 2, KeyRange(5, 77))
STANDBY = TaskId(1, 0, WHOLE)
INFO = MemberInfo(
    "1f2e3d4c-run",
    "host-1",
    "https://host-1:8080",
    2,
    ("app-1f2e-0", "app-1f2e-1"),
    allow_key_share=False,
    ending="KeyError: 'x'",
    topology=(
        Runs("a0c2f8e2a56fe60d", 4, divisible=False),
        Runs("551d2967fca8bbd3", 6),
    ),
    leaving=True,
    rack="r1",
    stands_by=(1,),
)
STATE = MemberState(INFO, (TASK, ODD), 7, (TASK,), ("orders",), (STANDBY,))
WARM = replace(
    STATE,
    info=replace(INFO, level=2),
    warmth=Warmth((TASK,), (STANDBY,), ((STANDBY, 5),)),
)
"""With the fields that release 0.1 does not know."""
ASSIGNMENT = Assignment(
    INFO.process,
    (TASK,),
    (TASK, ODD),
    settled=False,
    cluster=Cluster((Member("m-1", INFO, (TASK,)),), {0: 4, 1: 6}),
    error="no",
    waits="another version",
    standbys=(STANDBY,),
)
WARM_ASSIGNMENT = replace(
    ASSIGNMENT,
    cluster=Cluster((Member("m-1", WARM.info, (TASK,), (STANDBY,)),), {0: 4}),
)
EARLY = MemberState(
    MemberInfo(INFO.process, INFO.host, None, 2, INFO.transactional_ids),
    STATE.tasks,
    STATE.generation,
    topics=STATE.topics,
)
"""The member of version 1 of the group metadata."""
SOURCES = {0: ["orders"], 1: ["app-by-repartition"]}


def _texts(data: bytes) -> list[bytes]:
    """Return the text of each of the compressed streams."""
    texts = []
    while data:
        stream = zlib.decompressobj()
        texts.append(stream.decompress(data))
        data = stream.unused_data
    return texts


def _parts_of(wrapper: Any, *texts: str) -> dict[str, bytes]:
    """Return the parts of a message of the group; its texts have these names."""
    user_data = wrapper.user_data
    wrapper.user_data = None
    said = dict(zip(texts, _texts(user_data[3:]), strict=True))
    return {"wrapper": bytes(wrapper.encode()), "head": user_data[:3]} | said


def _message(wrapper: Any, parts: Parts, *texts: str) -> bytes:
    """Return the message that has these texts of the parts."""
    wrapper.user_data = parts["head"] + b"".join(
        zlib.compress(parts[text]) for text in texts
    )
    return bytes(wrapper.encode())


def _subscription(version: int) -> Parts:
    if version == 1:
        return {}
    first, second = (
        ConsumerProtocolSubscription.decode(
            codec.encode_subscription(state, 5, ["orders"], SOURCES)
        )
        for state in (STATE, WARM)
    )
    return _parts_of(second, "warm json") | _parts_of(first, "json")


def _read_subscription(parts: Parts) -> list[MemberState]:
    wrapper = ConsumerProtocolSubscription.decode(parts["wrapper"])
    return [
        codec.decode_subscription(_message(wrapper, parts, text), "m-1")
        for text in ("json", "warm json")
        if text in parts
    ]


def _assignment(_: int) -> Parts:
    first, second = (
        ConsumerProtocolAssignment.decode(
            codec.encode_assignments({"m-1": assignment}, SOURCES)["m-1"]
        )
        for assignment in (ASSIGNMENT, WARM_ASSIGNMENT)
    )
    return _parts_of(second, "json", "warm cluster json") | _parts_of(
        first, "json", "cluster json"
    )


def _read_assignment(parts: Parts) -> list[Assignment]:
    wrapper = ConsumerProtocolAssignment.decode(parts["wrapper"])
    return [
        codec.decode_assignment(_message(wrapper, parts, "json", cluster), "m-1")
        for cluster in ("cluster json", "warm cluster json")
    ]


KEY = record.CommitKey("app", "orders", 3, HALF, 5, 7)
DONE = record.Segment(KeyRange.of_groups(0, 63), 41, 1700, ((43, 44), (47, 47)))
REST = record.Segment(KeyRange.of_groups(64, 127), 40)
TIMED = replace(DONE, operator_times=((key_hash(b"counts"), 1650),))
WAITING = replace(TIMED, runs=(), ahead=record.Ahead(57, 1640, 52))
NAMED = record.consumer_metadata("topic-id", "text of the user")


def _commits(version: int) -> dict[str, record.CommitValue]:
    first = {record.WITH_TIMES: TIMED, record.WITH_AHEAD: WAITING}.get(version, DONE)
    return {
        "application": record.CommitValue("app-1-0", (first, REST), "topic-id"),
        "consumer": record.CommitValue("", (first, REST), NAMED),
    }


def _write_commits(version: int) -> Parts:
    return {
        name: record.encode_value(value) for name, value in _commits(version).items()
    }


def _read_commits(parts: Parts) -> dict[str, record.CommitValue]:
    return {name: record.decode_value(data, HALF) for name, data in parts.items()}


OFFSETS = {
    "alone": record.Committed(40, 1700, 5),
    "beside": record.Committed(40, 1700, 5, 4),
    "with times and topic": record.Committed(40, 1700, 5, 0, ((77, 1650),), 99),
}


COUNTS = StoreSpec("counts", "key_value", serdes.text, serdes.int64)
EXPIRING = StoreSpec("expiring", "key_value", serdes.text, serdes.int64, ttl_ms=1 << 40)
WINDOWS = StoreSpec(
    "windows",
    "window",
    serdes.text,
    serdes.int64,
    window_ms=10,
    retention_ms=1 << 40,
)
SESSIONS = StoreSpec(
    "sessions",
    "session",
    serdes.text,
    serdes.int64,
    retention_ms=1 << 40,
    step_ms=1,
)
PAST = StoreSpec("past", "versions", serdes.text, serdes.int64, suffix_bytes=8)
STORES = (COUNTS, EXPIRING, WINDOWS, SESSIONS, PAST)
PLACES = {
    "counts": b"word",
    "expiring": b"word",
    "windows": window_key(b"word", 1700),
    "sessions": session_key(b"word", 1700, 1800),
    "past": window_key(b"word", 1700),
}
"""The store key of the one row of each store; its value is 7, its timestamp 1750."""


def _task_state(engine: Engine) -> TaskState:
    """Return a task's stores with a row in each, not committed yet."""
    state = TaskState(Database(engine, STORES), STORES, WHOLE, 1 << 20)
    for store, key in PLACES.items():
        put(state.stores[store], key, 7, 1750)
    return state


def _write_folder(_: int) -> Parts:
    """Return the names of the files, and each row of the databases with its key."""
    engine = Memory()
    state = _task_state(engine)
    state.changes()
    state.commit(dict.fromkeys(PLACES, 9), true_ms=1)
    rows = {
        f"{family} {place.hex()}": data
        for family in engine.families()
        for place, data in engine.scan(family, b"", None)
        if family != "meta"  # the checkpoints, which are a format of their own
    }
    with (
        tempfile.TemporaryDirectory() as root,
        closing(StateDirectory(root, "app", 0)) as directory,
    ):
        directory.note_member("m-1")
        directory.note_end()
        files = {
            path.relative_to(root): path.read_bytes()
            for path in sorted(directory.folder.iterdir())
        }
    kept = {"application", "ended", "format", "member-id"}
    return rows | {
        str(path): data if path.name in kept else b"" for path, data in files.items()
    }


def _read_folder(parts: Parts) -> dict[str, tuple[bytes, bytes, int]]:
    """Return the plain key, the value and the timestamp of each row."""
    specs = {spec.name: spec for spec in STORES}
    rows = {}
    for name, data in parts.items():
        family, _, place = name.partition(" ")
        if place and not family.startswith("expiry/"):
            spec = specs[layout.store_of(family)]
            key = layout.plain_key(spec, bytes.fromhex(place)[1:])
            rows[spec.name] = (key, *layout.unpack(data))
    return rows


CHECKPOINTS = Checkpoints(
    (
        Checkpoint(0, 63, 41, 1700, 1_700_000, "topic-id", 12, ahead=True),
        Checkpoint(64, 255, 40),
    )
)

HASH = bytes(range(16))
AGGREGATES: Mapping[str, AggregateFunction] = {
    "n": count(),
    "total": sum_("ms"),
    "average": mean("ms"),
    "least": min_("ms"),
    "most": max_("user"),
    "first": first("user"),
    "last": last("ms"),
    "p50": quantile("ms", 0.5),
    "users": count_distinct("user"),
    "best": top_("ms", 2),
    "pairs": top_("ms", 1, of="user"),
}


def _aggregated(
    functions: Mapping[str, AggregateFunction],
    values: Iterable[Any],
) -> tuple[serdes.Serde[Any], Any]:
    """Return the serde of a table with these aggregates, and its row of the values."""
    rows = rows_of(functions)
    fold = rows.folding(functions)
    row = rows.initial()
    for value in values:
        row = fold("key", value, row)
    return rows.serde, row


FEW = ({"ms": 3, "user": "a"}, {"ms": -1.5, "user": "b"})
VALUES: Mapping[str, tuple[serdes.Serde[Any], Any]] = {
    "versions": (versions_of(serdes.int64), [(1700, 7), (1800, None)]),
    "with headers": (
        with_headers(serdes.int64),
        Headed(7, [("name", b"value"), ("none", None)]),
    ),
    "values of one side of a join": (values_of(serdes.int64), [7, 8]),
    "a value of one side of a join": (values_of(serdes.int64), [7]),
    "records that wait for the other side": (
        waiting_of(serdes.int64, serdes.text),
        [(1700, 0, 7), (1800, 1, "b")],
    ),
    "subscribers of a row": (SUBSCRIBERS, {b"left": HASH}),
    "two subscribers of a row": (SUBSCRIBERS, {b"right": HASH, b"left": HASH}),
    "held update": (
        held,
        SuppressedUpdate(1800, 1750, b"new", b"old", [("name", b"value")]),
    ),
    "held deletion": (held, SuppressedUpdate(1800, 1750, None, None, None)),
    "times by id": (times_by_id, {"a": 1700, 7: 1800, 7.5: 1900}),
    "several aggregates": _aggregated(AGGREGATES, FEW),
    "several aggregates of a table": _aggregated(
        {
            name: function.for_table()
            for name, function in AGGREGATES.items()
            if function.for_table().subtracts
        },
        FEW,
    ),
    "many distinct values": _aggregated(
        {"users": AGGREGATES["users"]}, ({"user": user} for user in range(300))
    ),
    "total and count": (totals, (7.5, 3)),
    "window": (
        serdes.windowed(serdes.text, timedelta(milliseconds=10)),
        serdes.windowed(serdes.text, timedelta(milliseconds=10)).deserialize(
            window_key(b"word", 1700)
        ),
    ),
    "window by its type": (
        serdes.windowed_by(serdes.text, TimeWindows(milliseconds=10)),
        serdes.Windowed("word", 1700, 1710),
    ),
    "session": (
        serdes.session_windowed(serdes.text),
        serdes.Windowed("word", 1700, 1800),
    ),
}
"""The values of rows whose form is not that of a serde of the user."""
MESSAGES: Mapping[str, tuple[serdes.Serde[Any], Any]] = {
    "subscription": (
        SUBSCRIPTION,
        ForeignKeySubscription(ANSWER_IF_FOUND, HASH, b"left"),
    ),
    "unsubscription": (SUBSCRIPTION, ForeignKeySubscription(0, None, b"left")),
    "answer": (ANSWERS, Answer(HASH, b"right")),
    "answer without a row": (ANSWERS, Answer(None, None)),
    "new row of a table": (serdes.changed(serdes.int64), (7, None)),
    "changed row of a table": (serdes.changed(serdes.int64), (7, 8)),
    "deleted row of a table": (serdes.changed(serdes.int64), (None, 8)),
    "there is a value": (PRESENT, True),
}


def _write_changelogs(_: int) -> Parts:
    """Return the key and the value of each store's row, and the values of others."""
    rows = {}
    for batch in _task_state(Memory()).changes():
        for key, value in zip(batch.keys, batch.values, strict=True):
            assert value is not None
            rows[f"{batch.store} {key.hex()}"] = value
    return rows | {name: serde.encode(value) for name, (serde, value) in VALUES.items()}


def _read_changelogs(parts: Parts) -> dict[str, Any]:
    specs = {spec.name: spec for spec in STORES}
    read = {}
    for name, data in parts.items():
        store, _, key = name.partition(" ")
        if store in specs:
            place = layout.store_key(specs[store].kind, bytes.fromhex(key))
            read[store] = place, serdes.int64.decode(data)
        else:
            read[name] = VALUES[name][0].decode(data)
    return read


def mark_columns(headers: Headers) -> Columns:
    """Return the columns of one record without key and value."""
    return Columns([None], [None], [1750], [0], [1750], headers=[headers])


def _one_header(headers: Headers) -> Parts:
    ((name, value),) = headers
    return {name: value or b""}


def _headers(parts: Parts) -> Headers:
    return list(parts.items())


def _publication(version: int) -> Parts:
    """Return the file that says which run is published."""
    if version == 1:
        return {}
    with tempfile.TemporaryDirectory() as root:
        snapshot.publish(root, MANIFEST)
        snapshot.name_savepoint(root, SAVEPOINT, "before-july")
        snapshot.Lease(root, "app", lambda: 1700, "reader").take(MANIFEST.run)
        folder = Path(root) / "app"
        return {
            f"{named}/{file.name}": file.read_bytes()
            for named in ("published", "savepoints", "leases")
            for file in (folder / named).iterdir()
        }


def _read_publication(parts: Parts) -> tuple[str | None, dict[str, str]]:
    with tempfile.TemporaryDirectory() as root:
        for name, data in parts.items():
            file = Path(root) / "app" / name
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
        return snapshot.current_run(root, "app"), snapshot.savepoints(root, "app")


CLOCK_MARK = Mark(3, 0, 127, 1700)
SLICE = Slice(
    3,
    0,
    7,
    41,
    1700,
    1_700_000,
    (File("store/counts", "run/counts/3-0.sst", 77, 2, "ab" * 32, "00aa", "07bb"),),
)
MANIFEST = Manifest(
    "app",
    "run",
    "backfill",
    "2026-11-29T22:00:00+00:00",
    {"counts": StoreSlices("app-counts-changelog", "id", 4, "key_value", (SLICE,))},
    {"orders": {3: 41}},
    {"orders": {3: 1700}},
)
AT = SourcePosition(0, 99, 41, 1700, ((43, 44),), ((77, 1650),))
SAVEPOINT = replace(
    MANIFEST,
    run="saved",
    kind="savepoint",
    positions={"orders": {3: (AT,)}},
    source_ids={"orders": "topic-id"},
    in_flight=(InFlight("by-city", 0, "saved/by-city/0.records", 1, "cd" * 32),),
)
SEALED: Mapping[str, Manifest | Round | Part | SavepointRequest] = {
    "json": MANIFEST,
    "savepoint json": SAVEPOINT,
    "round json": Round("run", 3),
    "request json": SavepointRequest("saved", 3, 1800),
    "part json": Part(
        {"counts": PartStore("id", (SLICE,))},
        TaskPositions(0, 3, 0, 99, {"orders": (AT,)}, {"orders": "topic-id"}),
    ),
}
IN_FLIGHT = snapshot.InFlightRecord(b"word", None, 1750, [("name", b"value")])


def _write_snapshot(_: int) -> Parts:
    with tempfile.TemporaryDirectory() as root:
        snapshot.write_in_flight(root, "app", "saved", "by-city", 0, [IN_FLIGHT])
        records = Path(root, "app", "saved", "by-city", "0.records").read_bytes()
    return {name: each.to_json() for name, each in SEALED.items()} | {
        "records": records
    }


def _read_snapshot(parts: Parts) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        told = snapshot.write_in_flight(root, "app", "saved", "by-city", 0, [])
        data = parts["records"]
        Path(root, "app", told.name).write_bytes(data)
        told = replace(told, sha256=hashlib.sha256(data).hexdigest())
        records = snapshot.read_in_flight(root, "app", told)
    return {name: each.from_json(parts[name]) for name, each in SEALED.items()} | {
        "records": records
    }


FAILURE = Failure(
    "processing",
    "KSTREAM-MAP-0000000001",
    KeyError("x"),
    TopicPartition("orders", 3),
    41,
    b"word",
    b"7",
    1750,
    [("name", b"value")],
)
TURNS = (Turn(Wanted(), 0), Turn(Wanted("node", "processing"), 41))


def _write_letter(_: int) -> Parts:
    headers = dead_letter_headers(TASK, FAILURE)
    return {name: data or b"" for name, data in headers} | {
        "replayed": metadata_of(TURNS).encode()
    }


def _read_letter(parts: Parts) -> tuple[Any, ...]:
    headers: Headers = [
        (name, data) for name, data in parts.items() if name != "replayed"
    ]
    where = TopicPartition("dead", 0)
    letter = dead_letter(where, 5, 1750, FAILURE.key, FAILURE.value, headers)
    return letter.headers, letter.why, turns_of(parts["replayed"].decode())


WHY = {
    "exception": "KeyError",
    "message": "'x'",
    "stacktrace": "KeyError: 'x'\n",
    "phase": "processing",
    "node": FAILURE.node,
    "topic": "orders",
    "partition": "3",
    "task": str(TASK),
    "offset": "41",
}

POLICY = {"accept.individual.commit": "", "accept.range.fetch": "orders"}
"""The settings that are set to false, with their topics."""


def _write_policy(_: int) -> Parts:
    cluster = MemoryLog()
    cluster.create_topics([TopicSpec("orders", 4)])
    with closing(PolicyTopic(cluster)) as policy:
        for name, topic in POLICY.items():
            policy.set(name, value=False, topic=topic or None)
    (batch,) = remainder(cluster, {TopicPartition(TOPIC, 0): 0}, SYSTEM)
    keys = zip(POLICY, batch.columns.keys, strict=True)
    values = zip(POLICY, batch.columns.values, strict=True)
    return {name: key or b"" for name, key in keys} | {
        f"value of {name}": value or b"" for name, value in values
    }


def _read_policy(parts: Parts) -> Mapping[tuple[str, str], bool]:
    cluster = MemoryLog()
    cluster.create_topics([topic_spec()])
    with closing(cluster.writer()) as writer:
        for name in POLICY:
            value = parts[f"value of {name}"]
            writer.append(TOPIC, [parts[name]], [value], [1750], partitions=0)
        writer.flush(1.0)
    with closing(PolicyTopic(cluster)) as policy:
        return policy.read().values


def program() -> Topology:
    """Return a program with a store of most kinds, and a timed topic."""
    builder = StreamsBuilder("app")
    orders = builder.stream("orders", key=serdes.text, value=serdes.int64)
    customers = builder.table(
        "customers", key=serdes.text, value=serdes.text, store="customers"
    )
    orders.group_by_key().count(store="counts").to_stream().to("counted")
    orders.join(customers, lambda _, city: city, value=serdes.text).group_by(
        lambda _, city: city, key=serdes.text, name="by-city"
    ).count(store="cities").to_stream().to("cities")
    orders.group_by(
        lambda key, _: key[:1], key=serdes.text, name="by-letter"
    ).windowed_by(TimeWindows(hours=1, grace=timedelta(minutes=1))).count(
        store="hours"
    ).to_stream().to("hours")
    orders.join(
        builder.stream("payments", key=serdes.text, value=serdes.int64),
        lambda one, other: one + other,
        windows=JoinWindows(minutes=1),
        value=serdes.int64,
        store="both",
    ).to("paid")
    return builder.build()


COUNTS_OF_TOPICS = {"orders": 4, "payments": 4, "customers": 4}


def _record_of(level: int) -> Parts:
    cluster = MemoryLog()
    cluster.create_topics([TopicSpec(*each) for each in COUNTS_OF_TOPICS.items()])
    config = Config.of({"bootstrap.servers": "none"}, "app")
    LastVersion(cluster, config).take_over(program(), COUNTS_OF_TOPICS, level=level)
    where = TopicPartition("app-topology", 0)
    (batch,) = remainder(cluster, {where: 0}, SYSTEM)
    told = orjson.loads(batch.columns.values[-1] or b"")
    told["ids"] = dict.fromkeys(told["ids"], "id")  # each topic is made anew here
    return {"json": orjson.dumps(told, option=orjson.OPT_INDENT_2)}


def _hashes(_: int) -> Parts:
    numbers = {
        "key hash": key_hash(b"word"),
        "partition": partition_of(b"word", 1000),
        "partition of the commit topic": record.partition_of("app", record.PARTITIONS),
        "topic number": record.topic_number("topic-id"),
        "operator": store_id("counts"),
        "second operator of a store": store_id("counts", 1),
        "record without a key": offset_hash(41),
        "topic in a task id of a consumer": group_assignment.topic_number("orders"),
        "distinct text": value_hash("a"),
        "distinct number": value_hash(7),
    }
    texts = {
        "subscriber of a row": subscriber_key(b"", b"left"),
        "left row of a foreign-key join": hash_of(b"left") or b"",
    }
    return {name: b"%d" % number for name, number in numbers.items()} | texts


SAMPLES: Mapping[str, Sample] = {
    "group metadata": Sample(
        _subscription,
        _read_subscription,
        lambda version: [STATE, WARM] if version > 1 else [EARLY],
    ),
    "assignment": Sample(
        _assignment,
        _read_assignment,
        lambda _: [ASSIGNMENT, WARM_ASSIGNMENT],
    ),
    "commit key": Sample(
        lambda _: {"key": record.encode_key(KEY)},
        lambda parts: record.decode_key(parts["key"]),
        lambda _: KEY,
    ),
    "commit value": Sample(_write_commits, _read_commits, _commits),
    "offset metadata": Sample(
        lambda _: {name: each.metadata.encode() for name, each in OFFSETS.items()},
        lambda parts: {
            name: record.Committed.parse(40, data.decode())
            for name, data in parts.items()
        },
        lambda _: OFFSETS,
    ),
    "state folder": Sample(
        _write_folder,
        _read_folder,
        lambda _: dict.fromkeys(PLACES, (b"word", serdes.int64.encode(7), 1750)),
    ),
    "checkpoints": Sample(
        lambda _: {"checkpoints": CHECKPOINTS.encode()},
        lambda parts: Checkpoints.decode(parts["checkpoints"]),
        lambda _: CHECKPOINTS,
    ),
    "changelog rows": Sample(
        _write_changelogs,
        _read_changelogs,
        lambda _: (
            {store: (key, 7) for store, key in PLACES.items()}
            | {name: value for name, (_, value) in VALUES.items()}
        ),
    ),
    "repartition rows": Sample(
        lambda _: {n: serde.encode(value) for n, (serde, value) in MESSAGES.items()},
        lambda parts: {n: MESSAGES[n][0].decode(data) for n, data in parts.items()},
        lambda _: {name: value for name, (_, value) in MESSAGES.items()},
    ),
    "time mark": Sample(
        lambda _: _one_header(time_marks.headers_of(1700)),
        lambda parts: time_marks.marks_in(mark_columns(_headers(parts))),
        lambda _: [(0, 1700)],
    ),
    "clock mark": Sample(
        lambda _: _one_header(CLOCK_MARK.headers),
        lambda parts: clock_marks_in(mark_columns(_headers(parts))),
        lambda _: [(0, CLOCK_MARK)],
    ),
    "birth": Sample(
        lambda _: _one_header((with_births(None, [1800], [1750]) or [None])[0] or []),
        lambda parts: births_in([_headers(parts)], [1750]),
        lambda _: ([1800], None),
    ),
    "snapshot manifest": Sample(
        _write_snapshot,
        _read_snapshot,
        lambda _: {**SEALED, "records": [IN_FLIGHT]},
    ),
    "snapshot publication": Sample(
        _publication,
        _read_publication,
        lambda version: (
            MANIFEST.run,
            {"before-july": SAVEPOINT.run} if version > 1 else {},
        ),
    ),
    "topology record": Sample(
        _record_of,
        lambda parts: read_outline(parts["json"]),
        lambda _: outline(program()),
    ),
    "fingerprint": Sample(
        lambda _: {
            str(number): each.encode()
            for number, each in enumerate(fingerprints(program(), [4] * 4))
        },
        len,
        lambda _: len(program().subtopologies),
    ),
    "dead letter": Sample(
        _write_letter,
        _read_letter,
        lambda _: (FAILURE.headers, WHY, TURNS),
    ),
    "policy": Sample(
        _write_policy,
        _read_policy,
        lambda _: {(topic, name): False for name, topic in POLICY.items()},
    ),
    "positions of a sink": Sample(
        lambda _: {"table": postgres.TABLE_OF_POSITIONS.encode()},
        len,
        lambda _: 1,
    ),
    "hashes": Sample(_hashes, len, lambda _: 12),
}
"""The sample of each format, by its name in `format_table`."""
