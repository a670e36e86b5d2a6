"""Makes and checks the names that appear in Kafka: of nodes, stores and internal
topics.

Names are the contract between two versions of a program:
`<application>-<store>-changelog` holds a store, so a store whose name changes is empty.
Generated names carry a counter, which counts as in Kafka Streams: one for each node,
given name or generated; one for each generated store name; three for each repartition,
used or not. So a topology ported from Java keeps its topics. An operator inserted
before others renames them: give a name to everything that must live long.

Invariant: a name is legal in Kafka and used once.
Source: Kafka Streams `InternalStreamsBuilder.newProcessorName`, `NamedInternal`,
`MaterializedInternal`, `Named.validate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from coopstreams.topology.errors import TopologyError

MAX_NAME_LENGTH = 249
"""The length of the longest topic name that a broker accepts."""
COMMIT_TOPIC = "__individual_commit_offsets"
"""The topic to which every group commits the progress of its key ranges."""
OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's topic of the offsets of groups."""
MARKS = "-backfill-"
"""The text between the application id and the run in the name of a backfill's topic of
marks.
"""
REBUILD = "-rebuild"
"""The suffix of the names of rebuilds from the source. Unlike other backfills, a
rebuild under way does not keep its application from starting.
"""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_RUN = r"\d{8}T\d{12}-[0-9a-f]{8}"  # as `new_run` of state/snapshot.py names them
_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


def check_name(name: str, what: str) -> str:
    """Return the name, checked to be legal as a part of a topic name.

    Raises:
        TopologyError: the name is empty, too long, or has other characters than ASCII
            letters, digits, '.', '_' and '-'.
    """
    if not isinstance(name, str):
        raise TopologyError(f"{what} must be a string, not {name!r}")
    if not _LEGAL.fullmatch(name) or name in {".", ".."}:
        raise TopologyError(
            f"{what} {name!r} is not a legal name in Kafka: use ASCII letters, digits, '.', '_' and '-'"
        )
    if len(name) > MAX_NAME_LENGTH:
        raise TopologyError(
            f"{what} {name!r} is longer than {MAX_NAME_LENGTH} characters. Shorten it."
        )
    return name


class Names:
    """The names of the nodes and stores of one builder; each name is used once."""

    def __init__(self) -> None:
        self._counter = 0
        self._nodes: set[str] = set()
        self._stores: set[str] = set()

    def node(
        self,
        prefix: str,
        given: str | None = None,
        suffix: str = "",
    ) -> str:
        """Return the name of a new node: the given name with the suffix, or a generated
        one like `KSTREAM-FILTER-0000000003`.

        The counter is raised by one in both cases.
        """
        generated = self._next(prefix)
        if given is None:
            return self.take(generated)
        return self.take(check_name(given, "the node name") + suffix)

    def take(self, name: str) -> str:
        """Reserve a node name and return it.

        Raises:
            TopologyError: another node has the name.
        """
        if name in self._nodes:
            raise TopologyError(
                f'two nodes are named "{name}". Give one of them another name=.'
            )
        self._nodes.add(name)
        return name

    def store(self, prefix: str, given: str | None = None) -> str:
        """Return the name of a new store: the given name, or a generated one like
        `KSTREAM-AGGREGATE-STATE-STORE-0000000003`.

        The counter is raised by one only if the name is generated.

        Raises:
            TopologyError: another store has the name.
        """
        name = (
            self._next(f"{prefix}STATE-STORE-")
            if given is None
            else check_name(given, "the store name")
        )
        if name in self._stores:
            of = name.removesuffix(past_name(""))
            taken = (
                f' A store "{of}" with a history takes that name, too: for its past.'
                if of != name
                else ""
            )
            raise TopologyError(
                f'two stores are named "{name}". Give one of them another store=.{taken}'
            )
        self._stores.add(name)
        return name

    def free_store(self, prefix: str) -> str:
        """Return a generated name of a store, without reserving it."""
        return self._next(f"{prefix}STATE-STORE-")

    def repartition(self, prefix: str) -> tuple[str, str, str]:
        """Return the names of a repartition's filter, sink and source, without
        reserving them. The counter is raised by three.
        """
        sink, drop, source = (
            self._next(f"KSTREAM-{kind}-") for kind in ("SINK", "FILTER", "SOURCE")
        )
        if _GENERATED.fullmatch(prefix):
            return drop, sink, source
        topic = repartition_topic(prefix)
        return f"{topic}-filter", f"{topic}-sink", f"{topic}-source"

    def _next(self, prefix: str) -> str:
        name = f"{prefix}{self._counter:010d}"
        self._counter += 1
        return name


def repartition_topic(prefix: str) -> str:
    """Return the name of a repartition topic, without the application id."""
    return prefix if prefix.endswith("-repartition") else f"{prefix}-repartition"


def past_name(store: str) -> str:
    """Return the name of the store that keeps the ended row versions of a versioned
    store.
    """
    return f"{store}-history"


def internal_topic(application_id: str, name: str) -> str:
    """Return the name of an internal topic in Kafka.

    Raises:
        TopologyError: the name is longer than a broker accepts.
    """
    return check_name(f"{application_id}-{name}", "the internal topic")


def changelog_topic(application_id: str, store: str) -> str:
    """Return the name of a store's changelog topic."""
    return internal_topic(application_id, f"{store}-changelog")


def topology_topic(application_id: str) -> str:
    """Return the name of the topic that holds the latest topology version that an
    application ran.
    """
    return internal_topic(application_id, "topology")


def marks_topic(application_id: str, run: str) -> str:
    """Return the name of the topic with the marks of one run of a backfill."""
    return f"{application_id}{MARKS}{run}"


def backfill_runs(application_id: str, topics: Iterable[str]) -> list[str]:
    """Return the runs of an application's backfills that are not yet published, oldest
    first. They are found by their topics of marks among `topics`.
    """
    runs = (
        topic.removeprefix(marks_topic(application_id, ""))
        for topic in marks_topics(application_id, topics)
    )
    return [run for run in runs if not run.endswith(REBUILD)]


def marks_topics(application_id: str, topics: Iterable[str]) -> list[str]:
    """Return the topics of marks of an application's backfills and rebuilds that are
    under way or were abandoned.
    """
    form = re.compile(
        re.escape(marks_topic(application_id, "")) + f"{_RUN}({REBUILD})?"
    )
    return sorted(topic for topic in topics if form.fullmatch(topic))
