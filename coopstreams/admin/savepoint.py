"""Takes a savepoint of a running application: a snapshot with the source positions that
belong to it, from which another application can begin.

    request   a file in the storage, which the processes of the application look for
    parts     each owner of a task writes the slices of its stores and its positions, both of one commit
    manifest  parts whose tasks tile each partition, with the records between the tasks, under a name

Invariant: what a task has in its stores and what it has done of its sources are of one
moment. Tasks of different partitions or key ranges may be as of different ones: nothing
passes between them but through repartition topics.
Invariant: with repartition topics, nothing has moved from the first part until the end of
these topics was read: the group's positions are those of all parts. So all parts are as
of one moment, and the records between the tasks are those behind these positions. The
operator pauses the application for it. Turned down: marks in the repartition topics by
which writers and readers agree on a moment (the records of a writer that are behind its
mark and in front of another one's cannot be told apart).
Relies on: `state.snapshot_round` and `instance.snapshot_taker` (the owners' side),
`opening.seeding` (the start from a savepoint).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coopstreams.admin.rebuild import logged
from coopstreams.commit.group_progress import list_consumer_group_offsets
from coopstreams.commit.record import Segment
from coopstreams.commit.view import join
from coopstreams.common.config import Config
from coopstreams.common.host import SYSTEM, Host
from coopstreams.log.log import NO_STREAM_TIME, Log, RecordBatch
from coopstreams.log.read_to_end import remainder
from coopstreams.opening.seeding import segments_of
from coopstreams.state import snapshot
from coopstreams.state.manifest import Manifest, SourcePosition, manifest_of
from coopstreams.state.published_snapshot import Changelog
from coopstreams.state.snapshot import (
    NOTHING_PUBLISHED,
    PARTS,
    WRITING_MS,
    InFlightRecord,
    Lease,
    new_run,
    write_in_flight,
)
from coopstreams.state.snapshot_round import (
    SAVEPOINT,
    Part,
    SavepointRequest,
    assembled,
    of_parts,
    tiled,
)
from coopstreams.state.storage import Storage
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import ConfigError, SnapshotError
from coopstreams.topology.graph.partitions import check_partitions
from coopstreams.topology.graph.timed_topics import timed_topics
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import GROUPS, key_hashes
from coopstreams.topology.naming import changelog_topic

LOOK_S = 0.5
"""The time between two looks for parts."""


class Savepoints:
    """Takes savepoints of one application. Belongs to one thread.

    `topology`: as it runs.
    """

    def __init__(
        self,
        cluster: Log,
        topology: Topology,
        config: Config,
        url: str,
        host: Host = SYSTEM,
    ) -> None:
        application: str = config["application.id"]
        self._client = config.client
        self._between = frozenset(
            each.name for each in topology.internal_topics if each.kind == "repartition"
        )
        """The repartition topics."""
        self._log = cluster
        self._topology = topology
        self._application = application
        self._url = url
        self._host = host
        self._storage = Storage(url)
        self._parts: dict[str, Part] = {}

    def take(self, name: str, wait_s: float) -> Manifest:
        """Have the running processes write a savepoint, and name it; return its
        manifest.

        Raises:
            ConfigError: the topology has repartition topics with a clock.
            SnapshotError: the name is not legal, there is a savepoint of this name, not
            all tasks have been written within `wait_s` seconds, or records were
            processed meanwhile and the topology has repartition topics.
        """
        tasks = self._tasks()
        snapshot.check_savepoint_name(self._url, self._application, name)
        last = snapshot.published(self._url, self._application)
        older = (
            None
            if last == NOTHING_PUBLISHED
            else snapshot.load(self._url, self._application, last.run)
        )
        run = new_run(self._host.wall_ms(), self._host.unique())
        leases = [self._lease(each) for each in (run, last.run) if each]
        until_ms = self._host.wall_ms() + int(wait_s * 1000)
        request = SavepointRequest(run, last.number, until_ms)
        at = f"{self._application}/{SAVEPOINT}"
        self._storage.write(at, request.to_json())
        try:
            chosen = self._await(run, tasks, self._host.now() + wait_s)
            manifest = self._assembled(run, chosen, older)
            if self._between:
                manifest = self._with_in_flight(manifest)
            snapshot.name_savepoint(self._url, manifest, name)
        finally:
            self._storage.delete(at)
            for lease in leases:
                lease.give_back()
        return manifest

    def _lease(self, run: str) -> Lease:
        lease = Lease(self._url, self._application, self._host.wall_ms)
        lease.take(run, WRITING_MS)
        return lease

    def _tasks(self) -> list[tuple[int, int]]:
        """Return each partition of each sub-topology whose tasks have positions."""
        resolved = check_partitions(self._topology, self._log.partitions())
        if timed := sorted(timed_topics(self._topology.subtopologies)):
            raise ConfigError(
                f"{', '.join(timed)}: readers of these topics follow a clock, which a savepoint does not have yet. Begin "
                "the other application by a backfill"
            )
        return [
            (part.id, number)
            for part in self._topology.subtopologies
            if not part.unordered
            for number in range(resolved.tasks[part.id])
        ]

    def _await(
        self,
        run: str,
        tasks: Sequence[tuple[int, int]],
        give_up: float,
    ) -> list[Part]:
        """Return parts of a run that tile each of these partitions, once they have
        come.

        Raises:
            SnapshotError: they have not come by `give_up`.
        """
        while True:
            for name in self._storage.names(f"{self._application}/{run}/{PARTS}"):
                if name not in self._parts and (data := self._storage.read(name)):
                    self._parts[name] = Part.from_json(data)
            found = {task: tiled(self._of(task)) for task in tasks}
            chosen = [part for parts in found.values() for part in parts or ()]
            lacking = [task for task, parts in found.items() if parts is None]
            if not lacking:
                return chosen
            if self._host.now() > give_up:
                raise SnapshotError(
                    f"not all tasks of {self._application} were written in time: "
                    f"{', '.join(f'{sub}_{number}' for sub, number in lacking)} of {len(tasks)} partitions are missing. "
                    "Do all processes run, with the same snapshots.dir?"
                )
            self._host.sleep(LOOK_S)

    def _of(self, task: tuple[int, int]) -> list[Part]:
        return [
            part
            for part in self._parts.values()
            if part.at is not None and (part.at.subtopology, part.at.partition) == task
        ]

    def _assembled(
        self,
        run: str,
        parts: Sequence[Part],
        older: Manifest | None,
    ) -> Manifest:
        """Return the manifest of these parts.

        Raises:
            SnapshotError: a changelog or a source was deleted or made anew meanwhile.
        """
        specs = logged(self._topology)
        topics = {name: changelog_topic(self._application, name) for name in specs}
        counts = self._log.partitions(list(topics.values()))
        if gone := sorted(set(topics.values()) - counts.keys()):
            raise SnapshotError(
                f"{', '.join(gone)}: deleted while the savepoint was taken; the next start of {self._application} says "
                "what is lost, and the cures"
            )
        now = {
            name: Changelog(topic, self._log.topic_id(topic), counts[topic])
            for name, topic in topics.items()
        }
        found = of_parts(run, parts, older, now)
        groups = sum(
            each.last - each.first + 1 for slices in found.values() for each in slices
        )
        if groups != GROUPS * sum(each.partitions for each in now.values()):
            raise SnapshotError(
                "key groups are missing in what the tasks have written: a changelog was made anew, or a task had not "
                "restored all. Take it again"
            )
        positions: dict[str, dict[int, tuple[SourcePosition, ...]]] = {}
        ids: dict[str, set[str]] = {}
        for part in parts:
            assert part.at is not None
            for topic, of_topic in part.at.positions.items():
                known = positions.setdefault(topic, {})
                known[part.at.partition] = known.get(part.at.partition, ()) + of_topic
            for topic, id_ in part.at.topic_ids.items():
                ids.setdefault(topic, set()).add(id_)
        return replace(
            assembled(
                manifest_of(self._application, run, "savepoint", self._host.wall_ms()),
                None,
                found,
                specs,
                now,
            ),
            positions=positions,
            source_ids=_one_each(ids),
        )

    def _with_in_flight(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the records that are between the tasks.

        Raises:
            SnapshotError: records were processed since the parts were written.
        """
        segments = {
            TopicPartition(topic, number): segments_of(positions)
            for topic, of_topic in manifest.positions.items()
            for number, positions in of_topic.items()
        }
        self._check_still(segments)
        between = {
            at: each for at, each in segments.items() if at.topic in self._between
        }
        found: dict[TopicPartition, list[InFlightRecord]] = {at: [] for at in between}
        starts = {at: min(each.position for each in of) for at, of in between.items()}
        for batch in remainder(self._log, starts, self._host):
            found[batch.partition] += _not_done(batch, between[batch.partition])
        self._check_still(segments)
        return replace(
            manifest,
            in_flight=tuple(
                write_in_flight(
                    self._url,
                    self._application,
                    manifest.run,
                    at.topic.removeprefix(f"{self._application}-"),
                    at.partition,
                    records,
                )
                for at, records in found.items()
            ),
        )

    def _check_still(
        self,
        segments: Mapping[TopicPartition, Sequence[Segment]],
    ) -> None:
        """Check that the group has committed nothing but these positions.

        Raises:
            SnapshotError: it has.
        """
        committed = list_consumer_group_offsets(
            self._client,
            self._application,
            segments,
        )
        for at, expected in segments.items():
            known = committed[at]
            if known is None or _places(known.key_ranges) != _places(expected):
                raise SnapshotError(
                    f"records of {at} were processed while the savepoint was taken, and there are repartition topics: "
                    "`coopstreams pause URL --all`, take it again, `coopstreams resume URL --all`"
                )


def _places(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments without their times."""
    return join(
        [
            replace(each, stream_time=NO_STREAM_TIME, operator_times=())
            for each in segments
        ]
    )


def _not_done(
    batch: RecordBatch,
    segments: Sequence[Segment],
) -> Iterator[InFlightRecord]:
    """Yield the records of a batch that are not done."""
    columns = batch.columns
    hashes = key_hashes(columns.keys, columns.offsets)
    for number, (hash_, offset) in enumerate(zip(hashes, columns.offsets, strict=True)):
        segment = next(each for each in segments if hash_ in each.key_range)
        if not segment.has_done(offset):
            headers = columns.headers[number] if columns.headers else None
            yield InFlightRecord(
                columns.keys[number],
                columns.values[number],
                columns.timestamps[number],
                list(headers or ()),
            )


def _one_each(ids: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the id of each topic.

    Raises:
        SnapshotError: tasks have read a topic under several ids.
    """
    if several := sorted(topic for topic, found in ids.items() if len(found) > 1):
        raise SnapshotError(
            f"{', '.join(several)}: made anew while the savepoint was taken. Take it again"
        )
    return {topic: next(iter(found)) for topic, found in ids.items()}
