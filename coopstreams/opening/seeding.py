"""Seeds an application with the state and the positions of another one's savepoint.

    changelogs   get the rows of the savepoint, by a transactional writer
    snapshot     copies of the savepoint's files, at the offsets behind these rows: the first tasks begin with it
    commits      the positions, as individual commits for the whole hash space, with the records between the tasks in one
                 transaction: from then on the application is seeded
    offsets      the plain offsets; then tasks may open

Every process of the application may seed it, and at any time die.

Invariant: rows are only written before the positions. A second seeder fences the first
by the transactional id, and then looks whether there are positions: so either it finds
them, or the first one never writes them, nor any row more. The offsets of the snapshot
are those behind the seeder's own rows: no task has written below them.
Invariant: nothing is written over state: changelogs with records that this seeding has not
written are refused.
Relies on: `admin/savepoint.py` (what is in one), `state/snapshot.py`, `commit.record` and
`commit.view` (which commit counts).
Turned down: tasks that read another application's changelogs (it
compacts them, deletes its windows there, and may be deleted), and one seeder elected by
the group (members have tasks at once).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from coopstreams.commit.follower import Follower
from coopstreams.commit.group_progress import catch_up
from coopstreams.commit.record import (
    CommitKey,
    Committed,
    CommitValue,
    Segment,
    encode_key,
    encode_value,
    topic_number,
)
from coopstreams.commit.view import join, lowest
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.group.admin import GroupAdmin
from coopstreams.group.members import NO_GENERATION
from coopstreams.log.log import Log, Writer
from coopstreams.state import layout, snapshot
from coopstreams.state.database import Database
from coopstreams.state.manifest import (
    InFlight,
    Manifest,
    Slice,
    SourcePosition,
    StoreSlices,
    manifest_of,
    placed,
)
from coopstreams.state.published_snapshot import Changelog, misfit
from coopstreams.state.rocks import Rocks
from coopstreams.state.snapshot import Lease, new_run
from coopstreams.state.storage import Storage
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError
from coopstreams.topology.keys import ALL_GROUPS, WHOLE, KeyRange
from coopstreams.topology.naming import COMMIT_TOPIC, internal_topic
from coopstreams.topology.stores import StoreSpec

log = logging.getLogger(__name__)

FIRST_TERM = 1
"""The term of the seeded positions: that of the first task of a new application."""
AUTHOR = "savepoint"
SEEDING = "SEEDING"
"""The file of an application that says from which run it is being seeded."""
BATCH = 10_000
FLUSH_S = 60.0


def position_of(segment: Segment) -> SourcePosition:
    """Return a segment of a commit as a savepoint has it."""
    assert segment.ahead is None  # only of topics behind repartition topics
    return SourcePosition(
        segment.key_range.start,
        segment.key_range.end,
        segment.position,
        segment.stream_time,
        tuple(segment.runs),
        tuple(segment.operator_times),
    )


def segments_of(positions: Sequence[SourcePosition]) -> list[Segment]:
    """Return positions of a savepoint as segments that tile the hash space."""
    return join(
        [
            Segment(
                KeyRange(each.start, each.end),
                each.position,
                each.stream_time,
                each.runs,
                each.operator_times,
            )
            for each in sorted(positions, key=lambda each: each.start)
        ]
    )


class Seeding:
    """The seeding of one application. Belongs to one thread."""

    def __init__(
        self,
        cluster: Log,
        config: Config,
        specs: Mapping[str, StoreSpec],
        changelogs: Mapping[str, Changelog],
        source_topics: Sequence[str],
        host: Host = SYSTEM,
    ) -> None:
        """`specs`: the stores with a changelog. `changelogs`: these, which exist."""
        self._log = cluster
        self._config = config
        self._application: str = config["application.id"]
        self._url: str = config["snapshots.dir"]
        self._specs = specs
        self._changelogs = changelogs
        self._source_topics = frozenset(source_topics)
        self._host = host

    def seed(self, name: str) -> None:
        """Seed the application from the savepoint of this name, unless it is seeded
        already, or has run.

        Raises:
            ConfigError: the savepoint does not fit the application, or there is state
            already.
            SnapshotError: there is no such savepoint, or it cannot be read.
            LogError: the brokers do not answer; FencedError: another process seeds the
            application: start again.
        """
        with (
            GroupAdmin(self._config.client, self._application) as group,
            closing(Follower(self._log, self._application)) as follower,
        ):
            positions = group.committed()
            if any(
                found is not None and at.topic in self._source_topics
                for at, found in positions.items()
            ):
                log.info(
                    "it has positions already: nothing is taken from savepoint %s", name
                )
                return
            manifest = snapshot.load_savepoint(self._url, name)
            segments = self._segments(manifest)
            self._check(manifest, {at.topic for at in segments}, name)
            lease = Lease(self._url, manifest.application, self._host.wall_ms)
            lease.take(manifest.run)
            # From here on no other process seeds it.
            with closing(self._writer()) as writer:
                catch_up(follower, host=self._host)
                if not set(segments) <= set(follower.sources()):
                    true_ms = self._host.wall_ms()
                    ends = self._write_rows(writer, manifest)
                    self._publish(manifest, ends, true_ms)
                    self._write_positions(writer, follower, manifest, segments)
            group.commit(
                {
                    at: _plain(found, self._log.topic_id(at.topic))
                    for at, found in segments.items()
                }
            )
            self._forget_seeding()
            lease.give_back()
        log.info("it goes on from savepoint %s of %s", name, manifest.application)

    def _segments(self, manifest: Manifest) -> dict[TopicPartition, list[Segment]]:
        """Return the positions of this application in its sources. In its repartition
        topics, which have the records that are not done, they are the beginning.
        """
        between = {each.topic for each in manifest.in_flight}
        result: dict[TopicPartition, list[Segment]] = {}
        for topic, of_topic in manifest.positions.items():
            own = topic.removeprefix(f"{manifest.application}-")
            for number, positions in of_topic.items():
                segments = segments_of(positions)
                if own in between:
                    at = TopicPartition(internal_topic(self._application, own), number)
                    result[at] = join(
                        [replace(each, position=0, runs=()) for each in segments]
                    )
                else:
                    result[TopicPartition(topic, number)] = segments
        return result

    def _write_in_flight(
        self,
        writer: Writer,
        manifest: Manifest,
        of: InFlight,
    ) -> None:
        """Write the records that were not done in a partition of a repartition topic
        (`of`).
        """
        records = snapshot.read_in_flight(self._url, manifest.application, of)
        if records:
            writer.append(
                internal_topic(self._application, of.topic),
                [each.key for each in records],
                [each.value for each in records],
                [each.timestamp for each in records],
                partitions=of.partition,
                headers=[each.headers for each in records],
            )

    def _forget_seeding(self) -> None:
        """Have records in the changelogs count as state from now on."""
        Storage(self._url).delete(f"{self._application}/{SEEDING}")

    def _writer(self) -> Writer:
        """Return the writer of all seeders of this application: it fences the one
        before.
        """
        changelogs = {each.topic for each in self._changelogs.values()}
        topics = frozenset({*changelogs, *self._source_topics, COMMIT_TOPIC})
        return self._log.writer(f"{self._application}-savepoint", lambda: topics)

    def _check(
        self,
        manifest: Manifest,
        source_topics: Collection[str],
        name: str,
    ) -> None:
        """Check that the savepoint is one of the same sources and stores.

        Raises:
            ConfigError: it is not, or the application has state already.
        """
        if manifest.application == self._application:
            raise ConfigError(
                f"savepoint {name} is of {self._application} itself: give this one another application id, or leave "
                "--from-savepoint out"
            )
        for what, there, here in (
            ("stores", set(manifest.stores), set(self._specs)),
            ("source topics", set(source_topics), set(self._source_topics)),
        ):
            if there != here:
                raise ConfigError(
                    f"savepoint {name} of {manifest.application} has other {what} than this topology: there "
                    f"{', '.join(sorted(there)) or 'none'}, here {', '.join(sorted(here)) or 'none'}"
                )
        for topic, id_ in manifest.source_ids.items():
            if topic in self._source_topics and id_ != self._log.topic_id(topic):
                raise ConfigError(
                    f"{topic} was made anew since savepoint {name} was taken, or it is of another cluster: its offsets "
                    "mean nothing here"
                )
        for store, slices in manifest.stores.items():
            # The ids differ: the changelogs are those of two applications.
            changelog = replace(self._changelogs[store], topic_id=slices.topic_id)
            if reason := misfit(slices, self._specs[store], changelog):
                raise ConfigError(f'store "{store}" of savepoint {name}: {reason}')
        self._check_empty(manifest, name)

    def _check_empty(self, manifest: Manifest, name: str) -> None:
        """Check that nobody but seeders from this savepoint has written records, and
        note that this one is about to.
        """
        storage = Storage(self._url)
        at = f"{self._application}/{SEEDING}"
        counts = {each.topic: each.partitions for each in self._changelogs.values()}
        between = {
            internal_topic(self._application, each.topic) for each in manifest.in_flight
        }
        counts |= self._log.partitions(sorted(between))
        ends = self._log.end_offsets(
            [
                TopicPartition(topic, number)
                for topic, count in counts.items()
                for number in range(count)
            ]
        )
        # Behind the ends: another process says that it seeds before it writes.
        seeding = (storage.read(at) or b"").decode(errors="replace").strip()
        if seeding == manifest.run:
            return  # the records are of a seeder that has died, or is at work
        if filled := sorted({at.topic for at, end in ends.items() if end}):
            raise ConfigError(
                f"{', '.join(filled)}: there are records already, so {self._application} does not begin from savepoint "
                f"{name}: `coopstreams reset` it first, or give it another application id"
            )
        storage.write(at, manifest.run.encode())

    def _write_rows(
        self,
        writer: Writer,
        manifest: Manifest,
    ) -> dict[TopicPartition, int]:
        """Write all rows of the savepoint to the changelogs; return the offset behind
        them in each partition that has any.
        """
        ends: dict[TopicPartition, int] = {}
        for name, store in manifest.stores.items():
            for number in range(store.partitions):
                changelog = TopicPartition(self._changelogs[name].topic, number)
                slices = store.of(number, ALL_GROUPS)
                rows = self._rows(manifest, self._specs[name], slices)
                while batch := list(islice(rows, BATCH)):
                    keys, values, timestamps = zip(*batch, strict=True)
                    writer.begin()
                    writer.append(
                        changelog.topic,
                        list(keys),
                        list(values),
                        list(timestamps),
                        partitions=number,
                    )
                    writer.flush(FLUSH_S)
                    ends[changelog] = writer.delivered_to(changelog)
                    writer.commit(FLUSH_S)
        return ends

    def _rows(
        self,
        manifest: Manifest,
        spec: StoreSpec,
        slices: Sequence[Slice],
    ) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield the changelog records (key, value, timestamp) of the rows in slices of
        a store, which are fetched into a temporary database.
        """
        storage = Storage(self._url)
        with tempfile.TemporaryDirectory(prefix="coopstreams-savepoint-") as at:
            folder = Path(at)
            (folder / "database").mkdir()
            files: dict[str, list[Path]] = {}
            for file in (file for each in slices for file in each.files):
                fetched = snapshot.fetch(storage, manifest.application, file, folder)
                files.setdefault(file.family, []).append(fetched.path)
            with closing(Database(Rocks(folder / "database"), [spec])) as database:
                checkpoints = [each.checkpoint("") for each in slices]
                database.ingest(spec.name, checkpoints, files)
                for key, row in database.scan(
                    spec.name,
                    ALL_GROUPS.numbers,
                    None,
                    None,
                ):
                    value, timestamp = layout.unpack(row)
                    yield layout.changelog_key(spec.kind, key), value, timestamp

    def _write_positions(
        self,
        writer: Writer,
        follower: Follower,
        manifest: Manifest,
        segments: Mapping[TopicPartition, Sequence[Segment]],
    ) -> None:
        """Write the records between the tasks, and an individual commit for each source
        partition, in one transaction.
        """
        keys = [
            encode_key(
                CommitKey(self._application, *at, WHOLE, FIRST_TERM, NO_GENERATION)
            )
            for at in segments
        ]
        values: list[Any] = [
            encode_value(
                CommitValue(
                    AUTHOR,
                    tuple(found),
                    self._log.topic_id(at.topic),
                )
            )
            for at, found in segments.items()
        ]
        writer.begin()
        for each in manifest.in_flight:
            self._write_in_flight(writer, manifest, each)
        writer.append(
            follower.partition.topic,
            keys,
            values,
            [self._host.wall_ms()] * len(keys),
            partitions=follower.partition.partition,
        )
        writer.flush(FLUSH_S)
        writer.commit(FLUSH_S)

    def _publish(
        self,
        manifest: Manifest,
        ends: Mapping[TopicPartition, int],
        true_ms: int,
    ) -> None:
        """Publish the files of the savepoint as a snapshot of this application, at these
        offsets of its changelogs.
        """
        storage = Storage(self._url)
        run = new_run(self._host.wall_ms(), self._host.unique())
        names: dict[str, str] = {}
        for file in manifest.files():
            names[file.name] = f"{run}/{file.name.partition('/')[2]}"
            storage.copy(
                f"{manifest.application}/{file.name}",
                f"{self._application}/{names[file.name]}",
            )
        stores: dict[str, StoreSlices] = {}
        for name, store in manifest.stores.items():
            changelog = self._changelogs[name]
            offsets = {
                number: ends.get(TopicPartition(changelog.topic, number), 0)
                for number in range(changelog.partitions)
            }
            copied = (
                replace(
                    each,
                    files=tuple(
                        replace(file, name=names[file.name]) for file in each.files
                    ),
                )
                for each in store.slices
            )
            stores[name] = replace(
                store,
                changelog=changelog.topic,
                topic_id=changelog.topic_id,
                slices=placed(copied, offsets, true_ms),
            )
        begun = manifest_of(self._application, run, "savepoint", self._host.wall_ms())
        snapshot.publish(self._url, replace(begun, stores=stores))


def _plain(segments: Sequence[Segment], topic_id: str) -> tuple[int, str]:
    """Return the plain offset, with its metadata, beside the individual commit of these
    segments.
    """
    low = lowest(segments)
    plain = Committed(
        low.position,
        low.stream_time,
        FIRST_TERM,
        FIRST_TERM,
        low.operator_times,
        topic_number(topic_id),
    )
    return low.position, plain.metadata
