"""The formats that outlive a process, or that processes of two releases exchange, each
with its version.

A format is here if a release may meet bytes that another release wrote: in topics, in
the group, on disk, in snapshots. docs/internals/formats.md has the rules by which a
format changes, and this table. `tests/formats/` keeps golden bytes of each version, and
fails when bytes change without a new version.

Invariant: a reader of an unknown version says so and names the newer release, or the
row of the format says why it cannot.
Turned down: a version in each changelog row (Kafka Streams' tools read these rows, and
a byte of each would be paid for ever); one version for all formats (a new field of the
group would make state folders unreadable).
"""

from __future__ import annotations

from dataclasses import dataclass

from coopstreams.commit import record
from coopstreams.group import codec
from coopstreams.log import clocks, time_marks
from coopstreams.state import directory, manifest
from coopstreams.topology.compile import births
from coopstreams.topology.graph import description, outline


@dataclass(frozen=True, slots=True)
class Format:
    """A format: who writes and reads it, and what tells its version."""

    name: str
    versions: tuple[int, ...]
    """The versions that this release reads, ascending."""
    place: str
    """Where the version stands."""
    written_by: str
    read_by: str
    unknown: str
    """What a reader of an unknown version does."""

    @property
    def version(self) -> int:
        """The newest version, which this release writes."""
        return self.versions[-1]


FORMATS = (
    Format(
        "group metadata",
        tuple(int(version) for version in codec.READ),
        "third byte of the user data in Kafka's consumer protocol",
        "each member, when it joins",
        "the leader of the group",
        "gives the member no tasks; the member ends with the versions and the cure",
    ),
    Format(
        "assignment",
        (int(codec.VERSION),),
        "third byte of the user data",
        "the leader of the group",
        "each member",
        "ends with the versions and the cure",
    ),
    Format(
        "commit key",
        (record.VERSION,),
        "first byte",
        "the owner of a key range; `coopstreams group reset`",
        "each member of the group",
        "opens no task until the record is gone, and says why; records of other groups are skipped",
    ),
    Format(
        "commit value",
        (record.VERSION, record.WITH_TIMES, record.WITH_AHEAD),
        "first byte; 2 only with operator times, 3 only with records done in the order of births, from level 2 on: the "
        "ones before have no place for them",
        "as the key",
        "as the key",
        "as for the key",
    ),
    Format(
        "offset metadata",
        (record.VERSION,),
        "first word: `ic`; of a later version with its number behind it",
        "the owner of hash 0, with each plain offset",
        "each member that opens a task",
        "opens no task, and names the newer release",
    ),
    Format(
        "state folder",
        (directory.FORMAT,),
        "file `format`; it holds for all files and for the rows in the databases",
        "the process that has the folder",
        "the next process that has it",
        "ends with the cure; a folder of version 1 is emptied, and restored from the changelogs",
    ),
    Format(
        "checkpoints",
        (directory.FORMAT,),
        "file `format` of the state folder",
        "the process that has the folder",
        "the next process that has it",
        "as for the state folder",
    ),
    Format(
        "changelog rows",
        (description.JSON_FORMAT,),
        "`format` of the topology record, which says what the changelogs are",
        "the owner of a key range; backfill and rebuild",
        "restores, standbys, snapshots, Spark",
        "as for the topology record, which is read first",
    ),
    Format(
        "repartition rows",
        (description.JSON_FORMAT,),
        "`format` of the topology record",
        "the owner of a key range",
        "the owner behind the topic",
        "as for the topology record, which is read first",
    ),
    Format(
        "time mark",
        (time_marks.VERSION,),
        "name of the header; of a later version with its number behind it",
        "the owner of hash 0 of a source with `idle_advance`",
        "each reader of the source, also of other applications",
        "takes it for a record without key and value, because a topic of the user may have any header",
    ),
    Format(
        "clock mark",
        (clocks.VERSION,),
        "name of the header; of a later version with its number behind it",
        "each task that writes to a timed topic",
        "the reader of the topic",
        "ends, and names the newer release",
    ),
    Format(
        "birth",
        (births.VERSION,),
        "name of the header; of a later version with its number behind it",
        "each task that writes to a timed topic",
        "the reader of the topic",
        "ends, and names the newer release",
    ),
    Format(
        "snapshot manifest",
        (manifest.FORMAT,),
        "`format`; it holds for the files of the snapshot, too",
        "backfill, rebuild, savepoints, the running application (its rounds, parts and requests likewise)",
        "restores, `coopstreams snapshots`",
        "restores from the changelogs alone, and warns",
    ),
    Format(
        "snapshot publication",
        (1, 2),
        "name of the file: `CURRENT`, or `published/` and a number",
        "as the manifest",
        "as the manifest",
        "is not possible: it finds no publication that it knows, and restores from the changelogs",
    ),
    Format(
        "topology record",
        (description.JSON_FORMAT, outline.NEWEST_FORMAT),
        "`format`, which is the level of formats of the group",
        "the opener of an instance, before its first task opens",
        "the start of an instance, and its opener; `coopstreams reset`, backfill",
        "ends with the versions and the cure, before it joins the group",
    ),
    Format(
        "dead letter",
        (1,),
        "none: headers by name, and the metadata of the offsets of a replay",
        "each task; `coopstreams dlq replay`",
        "`coopstreams dlq`",
        "shows the headers that it knows; a replay whose metadata it does not know begins anew",
    ),
    Format(
        "policy",
        (1,),
        "none: a key is `[setting, topic]`",
        "`coopstreams policy set`",
        "each consumer and application",
        "does not use a setting that it does not know; ends with the cure at a record that is no setting",
    ),
    Format(
        "positions of a sink",
        (1,),
        "none: the columns of the table",
        "the owner of a partition of a `PostgresSink`",
        "as written",
        "ends: PostgreSQL refuses the statement",
    ),
    Format(
        "fingerprint",
        (1,),
        "none: another one is another version of the topology, and waits",
        "each member, in its group metadata",
        "the leader of the group",
        "gives tasks to one version of the topology only",
    ),
    Format(
        "hashes",
        (1,),
        "none: they are frozen. Another function would need another name of what it divides",
        "everything that places a key, a commit or an operator time",
        "as the writers",
        "is not possible",
    ),
)
