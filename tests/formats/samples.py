"""A sample of each format of `format_table`: its bytes as this release writes them, and
what it reads from the bytes of each version.

A sample has parts by name, because a format may have several kinds of bytes. It names
every field, so that a field which changes its place or its form changes the bytes.
Compressed parts are kept decompressed: zlib may compress otherwise tomorrow.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping
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
from coopstreams.commit import record
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM
from coopstreams.group import codec
from coopstreams.group.members import (
    Assignment,
    Cluster,
    Member,
    MemberInfo,
    MemberState,
    Runs,
)
from coopstreams.log import time_marks
from coopstreams.log.clocks import Mark, clock_marks_in
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.log.read_to_end import remainder
from coopstreams.preflight.last_version import LastVersion
from coopstreams.state import layout, snapshot
from coopstreams.state.checkpoints import Checkpoint, Checkpoints
from coopstreams.state.database import Database
from coopstreams.state.directory import StateDirectory
from coopstreams.state.engine import Engine
from coopstreams.state.manifest import File, Manifest, Slice, StoreSlices
from coopstreams.state.memory_engine import Memory
from coopstreams.state.task_state import TaskState
from coopstreams.topology.columns import Columns, Headers, TopicPartition
from coopstreams.topology.compile.births import births_in, with_births
from coopstreams.topology.compile.operator_time import store_id
from coopstreams.topology.dsl.attach_joins import values_of, waiting_of
from coopstreams.topology.graph.fingerprint import fingerprints
from coopstreams.topology.graph.foreign_keys import (
    ANSWER_IF_FOUND,
    ANSWERS,
    SUBSCRIBERS,
    SUBSCRIPTION,
    Answer,
    ForeignKeySubscription,
)
from coopstreams.topology.graph.known_folds import totals
from coopstreams.topology.graph.outline import outline, read_outline
from coopstreams.topology.kept_headers import Headed, with_headers
from coopstreams.topology.keys import WHOLE, KeyRange, key_hash, partition_of
from coopstreams.topology.row_versions import versions_of
from coopstreams.topology.stores import StoreSpec, session_key, window_key
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
SOURCES = {0: ["orders"], 1: ["app-by-repartition"]}


def _state(version: int) -> MemberState:
    if version > 1:
        return STATE
    early = MemberInfo(INFO.process, INFO.host, None, 2, INFO.transactional_ids)
    return MemberState(early, STATE.tasks, STATE.generation, topics=STATE.topics)


def _subscription(version: int) -> Parts:
    if version == 1:
        return {}
    data = codec.encode_subscription(STATE, 5, ["orders"], SOURCES)
    wrapper = ConsumerProtocolSubscription.decode(data)
    user_data = wrapper.user_data
    wrapper.user_data = None
    return {
        "wrapper": bytes(wrapper.encode()),
        "head": user_data[:3],
        "json": zlib.decompress(user_data[3:]),
    }


def _read_subscription(parts: Parts) -> MemberState:
    wrapper = ConsumerProtocolSubscription.decode(parts["wrapper"])
    wrapper.user_data = parts["head"] + zlib.compress(parts["json"])
    return codec.decode_subscription(bytes(wrapper.encode()), "m-1")


def _assignment(_: int) -> Parts:
    data = codec.encode_assignments({"m-1": ASSIGNMENT}, SOURCES)["m-1"]
    wrapper = ConsumerProtocolAssignment.decode(data)
    user_data = wrapper.user_data
    stream = zlib.decompressobj()
    wrapper.user_data = None
    return {
        "wrapper": bytes(wrapper.encode()),
        "head": user_data[:3],
        "json": stream.decompress(user_data[3:]),
        "cluster json": zlib.decompress(stream.unused_data),
    }


def _read_assignment(parts: Parts) -> Assignment:
    wrapper = ConsumerProtocolAssignment.decode(parts["wrapper"])
    wrapper.user_data = (
        parts["head"]
        + zlib.compress(parts["json"])
        + zlib.compress(parts["cluster json"])
    )
    return codec.decode_assignment(bytes(wrapper.encode()), "m-1")


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
VALUES: Mapping[str, tuple[serdes.Serde[Any], Any]] = {
    "versions": (versions_of(serdes.int64), [(1700, 7), (1800, None)]),
    "with headers": (
        with_headers(serdes.int64),
        Headed(7, [("name", b"value"), ("none", None)]),
    ),
    "values of one side of a join": (values_of(serdes.int64), [7, 8]),
    "records that wait for the other side": (
        waiting_of(serdes.int64, serdes.text),
        [(1700, 0, 7), (1800, 1, "b")],
    ),
    "subscribers of a row": (SUBSCRIBERS, {b"left": HASH}),
    "total and count": (totals, (7.5, 3)),
    "window": (
        serdes.windowed(serdes.text, timedelta(milliseconds=10)),
        serdes.windowed(serdes.text, timedelta(milliseconds=10)).deserialize(
            window_key(b"word", 1700)
        ),
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
        folder = Path(root) / "app"
        kept = folder.rglob(f"{snapshot.PUBLISHED}/*")
        return {str(file.relative_to(folder)): file.read_bytes() for file in kept}


def _read_publication(parts: Parts) -> str | None:
    with tempfile.TemporaryDirectory() as root:
        for name, data in parts.items():
            file = Path(root) / "app" / name
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
        return snapshot.current_run(root, "app")


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
    }
    return {name: b"%d" % number for name, number in numbers.items()}


SAMPLES: Mapping[str, Sample] = {
    "group metadata": Sample(_subscription, _read_subscription, _state),
    "assignment": Sample(_assignment, _read_assignment, lambda _: ASSIGNMENT),
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
        lambda _: {"json": MANIFEST.to_json()},
        lambda parts: Manifest.from_json(parts["json"]),
        lambda _: MANIFEST,
    ),
    "snapshot publication": Sample(
        _publication,
        _read_publication,
        lambda _: MANIFEST.run,
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
    "hashes": Sample(_hashes, len, lambda _: 6),
}
"""The sample of each format, by its name in `format_table`."""
