"""Compares two versions of a topology: whether stores, repartition topics and positions
are compatible. Pure.

    keeps           the new version continues with it
    new             it is new, and its sources are new: it misses none of their records
    starts empty    it is new, but its sources were read before: it misses their records up to now
    orphaned        the new version does not read it
    lost            the new version needs it, but looks for it under another name
    mixed           rows or records of two meanings would be in one store or topic
    cannot be read  the serde of the new version cannot read its bytes

The last three verdicts mean wrong results without an error, so `run` refuses to start.
A store whose rows are made from a mixed store, directly or through repartition topics,
is mixed as well.

Invariant: a topology followed by itself keeps everything. Functions may change: only
their author knows whether the old state fits the new functions.
Relies on: `outline` (what is compared), `compatibility/schema_comparison.py`; what is
refused, `preflight.last_version` refuses.
Turned down: matching
operators (nothing but names tells that two programs have the same operator).
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from xxhash import xxh64_hexdigest

from coopstreams.topology.compatibility import schema_comparison
from coopstreams.topology.graph.outline import Outline, RepartitionOutline, Store
from coopstreams.topology.naming import changelog_topic, past_name


class Verdict(StrEnum):
    """The effect of a new version on a store, a repartition topic, a position, or the
    whole application.
    """

    KEEPS = "keeps"
    NEW = "new"
    EMPTY = "starts empty"
    ORPHANED = "orphaned"
    LOST = "lost"
    MIXED = "mixed"
    UNREADABLE = "cannot be read"

    @property
    def severity(self) -> int:
        """The severity: 0 for no effect, 1 for an effect that is easy to notice, 2 for
        wrong results without an error.
        """
        return {
            Verdict.KEEPS: 0,
            Verdict.NEW: 0,
            Verdict.EMPTY: 1,
            Verdict.ORPHANED: 1,
        }.get(self, 2)


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """The effect of a new version on one store, repartition topic or position, or on
    the application. `why` and `cure` are sentences, or empty.

    Shape: `what` is `application`, `store`, `repartition topic` or `position`.
    """

    what: str
    name: str
    verdict: Verdict
    why: str = ""
    cure: str = ""
    topic: str | None = None
    """The topic that keeps the state. If the topic is empty, nothing can be lost, mixed
    or misread.
    """
    now: str | None = None
    """The new name of a store, if it is renamed."""
    topic_now: str | None = None
    """The changelog of a renamed store under its new name. An earlier version may have
    left rows in it.
    """


def changes(old: Outline, new: Outline) -> list[TopologyChange]:
    """Return the effects of the new version on all that either version has; those on
    the old version's stores come first.
    """
    if old.application_id != new.application_id:
        return [_another_application(old, new)]
    renamed = _renamed(old, new)
    causes = _causes(old, new)
    return [
        *([] if _share_anything(old, new) else [_another_program(new)]),
        *(
            _kept_store(old, new, store, causes)
            for store in old.stores.values()
            if store.name in new.stores
        ),
        *(
            _gone_store(store, new, renamed)
            for store in old.stores.values()
            if store.name not in new.stores
        ),
        *(
            _new_store(old, new, store)
            for store in new.stores.values()
            if store.name not in old.stores and store.name not in renamed.values()
        ),
        *(
            _repartition(old, new, topic, renamed)
            for topic in old.repartitions.values()
        ),
        *_positions(old, new),
    ]


def weighed(
    found: Collection[TopologyChange],
    holds: Callable[[TopologyChange], bool],
) -> list[TopologyChange]:
    """Return the changes, corrected by which topics of a cluster have records.

    `holds`: returns whether the topic of a change has records. It is called only where
    this matters. A topic whose records would be lost, mixed or misread may be empty,
    and a store that starts empty may have a changelog of an older version.
    """
    return [_weighed(change, holds) for change in found]


def severity(found: Collection[TopologyChange]) -> int:
    """Return the severity of the worst change, 0 if there is none."""
    return max((change.verdict.severity for change in found), default=0)


def word_of(found: Collection[TopologyChange]) -> str:
    """Return a hash of the changes of severity 1 and 2, in 8 hex digits. An operator
    types it to accept exactly these changes.

    The hash covers `why`: accepting windows of 20 minutes instead of 10 does not accept
    40 instead of 20. Pass changes that `weighed` has not corrected: the hash must not
    depend on what a cluster holds.
    """
    told = sorted(
        f"{change.what} {change.name} {change.verdict}: {change.why}"
        for change in found
        if change.verdict.severity
    )
    return xxh64_hexdigest("\n".join(told).encode())[:8]


def _weighed(
    change: TopologyChange,
    holds: Callable[[TopologyChange], bool],
) -> TopologyChange:
    """Return a change as it is if topics without records do not count. `holds`: returns
    whether the topic of a change has records.
    """
    if change.topic is None or (
        change.verdict.severity < 2 and change.verdict is not Verdict.EMPTY
    ):
        return change
    held = holds(change)
    if change.verdict.severity == 2 and not held:
        why = f"{change.topic} has nothing that could be {_SILENT[change.verdict]}"
        return replace(change, verdict=Verdict.KEEPS, why=why, cure="")
    if change.topic_now is not None and holds(replace(change, topic=change.topic_now)):
        left = f"{change.topic_now} has rows of an earlier version, and misses what was processed since"
        cure = f"{change.cure}; or delete {change.topic_now}, and it starts empty"
        return replace(
            change,
            why=f'the same store is named "{change.now}" now, and {left}',
            cure=cure,
        )
    if change.verdict is Verdict.EMPTY and held:
        return replace(
            change,
            verdict=Verdict.MIXED,
            why=f"{change.topic} has rows of an earlier version, and the version since has read the store's sources "
            "without it",
            cure=f"delete {change.topic}, or have it made from the source: {_rebuild(change.name)}",
        )
    return change


_SILENT = {Verdict.LOST: "lost", Verdict.MIXED: "mixed", Verdict.UNREADABLE: "misread"}


def _another_application(old: Outline, new: Outline) -> TopologyChange:
    return TopologyChange(
        "application",
        new.application_id,
        Verdict.EMPTY,
        f"the group and the internal topics of {old.application_id} are not its own: it begins at auto.offset.reset, "
        "without state",
        f'to go on, keep the application id: StreamsBuilder("{old.application_id}")',
    )


def _share_anything(old: Outline, new: Outline) -> bool:
    common = (
        old.stores.keys() & new.stores,
        old.repartitions.keys() & new.repartitions,
        old.sinks & new.sinks,
    )
    return any(common) or old.meets(old.sources, new, new.sources)


def _another_program(new: Outline) -> TopologyChange:
    return TopologyChange(
        "application",
        new.application_id,
        Verdict.MIXED,
        "another program has run under this id, with none of these stores, sources and sinks: two programs in one "
        "group would take each other's place, and all that the other one has would be left to nobody",
        "give this program an id of its own",
    )


def _rebuild(*stores: str) -> str:
    named = " ".join(f"--store {store}" for store in stores)
    return f"stop all instances, `coopstreams rebuild NEW --from source {named}`, and accept the change"


def _causes(old: Outline, new: Outline) -> dict[str, frozenset[str]]:
    """Return, for each store of both versions, the mixed stores that make its old rows
    mean something else than its new ones.

    These are the store itself and the stores that it is made from. Most stores have
    none.
    """
    kept = [new.stores[name] for name in old.stores if name in new.stores]
    mixed = frozenset(
        now.name
        for now in kept
        if any(
            found.verdict is Verdict.MIXED
            for found in _misfits(old, new, old.stores[now.name], now, "")
        )
    )
    return {now.name: mixed & (now.stores_above | {now.name}) for now in kept}


def _another(
    new: Outline,
    store: str,
    causes: Mapping[str, frozenset[str]],
) -> str:
    """Return the cure for a store whose old rows do not fit the new version. Stores
    with a common cause have the same cure.
    """
    if new.stores[store].kind == "versions":
        named_with = store.removesuffix(past_name(""))
        return f"that of store {named_with}, with which it is named and made again"
    if new.stores[store].kind == "subscribers":
        # Left rows subscribe only when they change; no rebuild knows the order.
        return (
            "stop all instances and begin anew with `coopstreams reset`; "
            "or give the program another application id"
        )
    others = _with_a_common_cause(new, store, causes)
    together = [name for name in causes if name in (store, *others)]
    logged = [name for name in together if _has_a_changelog_of_its_own(new, name)]
    if others:
        cure = f"give it and {', '.join(others)} other names (then they start empty)"
        whose = "their"
    else:
        cure = "give it another name (then it starts empty)"
        whose = "its"
    if not logged:
        return cure
    cure += f", or have {whose} rows made again: {_rebuild(*logged)}"
    bare = [name for name in together if name not in logged]
    if bare:
        cure += f", with other names for {', '.join(bare)}, which no rebuild writes"
    return cure


def _with_a_common_cause(
    new: Outline,
    store: str,
    causes: Mapping[str, frozenset[str]],
) -> list[str]:
    """Return the other stores whose old rows misfit because of one of the same mixed
    stores as `store`'s (`causes`: see `_causes`). Histories of tables are left out:
    they are renamed with their table.
    """
    return [
        name
        for name in causes
        if name != store
        and causes[name] & causes[store]
        and new.stores[name].kind != "versions"
    ]


def _has_a_changelog_of_its_own(new: Outline, store: str) -> bool:
    return new.stores[store].changelog == changelog_topic(new.application_id, store)


def _kept_store(
    old: Outline,
    new: Outline,
    was: Store,
    causes: Mapping[str, frozenset[str]],
) -> TopologyChange:
    """Return the effect on a store that both versions have. `causes`: see `_causes`."""
    now = new.stores[was.name]
    another = _another(new, was.name, causes)
    found = next(_misfits(old, new, was, now, another), None) or _restored(
        new,
        was,
        now,
    )
    if found.verdict is Verdict.KEEPS and causes[was.name]:
        why = (
            f"it is made from store {_words(causes[was.name])}, whose new rows are of another meaning than the old "
            "ones: what comes of both would lie side by side"
        )
        return TopologyChange(
            "store",
            was.name,
            Verdict.MIXED,
            why,
            another,
            was.changelog,
        )
    return found


def _restored(
    new: Outline,
    was: Store,
    now: Store,
) -> TopologyChange:
    """Return the effect on a store whose old rows fit the new version."""
    effect = partial(TopologyChange, "store", was.name)
    moved = was.subtopology != now.subtopology
    where = f"its sub-topology is number {now.subtopology}, not {was.subtopology}"
    if (
        was.expires != now.expires
    ):  # only then are rows found by their timestamps: the database lists them again
        moved = True
        where = f"its rows {'expire now' if now.expires else 'do not expire any more'}"
    if now.changelog is None and was.changelog is not None:
        return effect(
            Verdict.EMPTY,
            "it has no changelog any more: its rows are only where they are on disk now",
        )
    if now.changelog is None:
        return (
            effect(Verdict.EMPTY, f"{where}, and it has no changelog")
            if moved
            else effect(Verdict.KEEPS)
        )
    if was.changelog is None and now.changelog not in new.sources:
        why = "it gets a changelog, which begins empty: the rows of before are nowhere but on disk"
        return effect(Verdict.EMPTY, why, _rebuild(was.name), now.changelog)
    if was.changelog != now.changelog:
        why = f"it is restored from {now.changelog}, once, and from then on has that for a changelog"
        return effect(Verdict.KEEPS, why)
    return effect(
        Verdict.KEEPS,
        f"{where}: it is restored from its changelog, once" if moved else "",
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """A store of the old version and the store of the same name of the new one."""

    old: Outline
    new: Outline
    was: Store
    now: Store
    another: str
    """The cure that always works, see `_another`."""

    def misfit(
        self,
        verdict: Verdict,
        why: str,
        cure: str,
    ) -> TopologyChange:
        """Return the change that says why the old rows do not fit the new store."""
        return TopologyChange(
            "store",
            self.was.name,
            verdict,
            why,
            cure,
            self.was.changelog,
        )


def _misfits(
    old: Outline,
    new: Outline,
    was: Store,
    now: Store,
    another: str,
) -> Iterator[TopologyChange]:
    """Yield the reasons why the rows of a store do not fit the new store, the worst
    first.
    """
    pair = _Pair(old, new, was, now, another)
    for look in _LOOKS:
        yield from look(pair)


def _other_kind(pair: _Pair) -> Iterator[TopologyChange]:
    was = pair.was
    now = pair.now
    if was.kind != now.kind or was.suffix_bytes != now.suffix_bytes:
        why = f"it is a {now.kind} store, and was a {was.kind} store"
        yield pair.misfit(Verdict.UNREADABLE, why, pair.another)


def _other_keys(pair: _Pair) -> Iterator[TopologyChange]:
    was = pair.was
    now = pair.now
    if not schema_comparison.same_format(
        now.key, now.key_schemas, was.key, was.key_schemas
    ):
        why = (
            f"its keys are written as {now.key}, and were as {was.key}: "
            "old rows stay under bytes that no key has any more"
        )
        yield pair.misfit(Verdict.MIXED, why, pair.another)
    if changed := schema_comparison.changed_keys(now, was):
        why = f"{changed}: old rows stay under bytes that no key has any more"
        cure = (
            "leave the class as it was; if it writes the same bytes "
            f"(`omit_defaults`), accept it; else {pair.another}"
        )
        yield pair.misfit(Verdict.MIXED, why, cure)


def _other_values(pair: _Pair) -> Iterator[TopologyChange]:
    was = pair.was
    now = pair.now
    written = was.value
    read = now.value
    if was.held and now.held:  # two suppressions: what counts are the updates they hold
        written = was.held
        read = now.held
    if not schema_comparison.same_format(read, now.schemas, written, was.schemas):
        why = f"its values are read as {read}, and were written as {written}"
        # Bytes of a row with versions may look like a value without, or the other
        # way round: no error would say so.
        if _has_versions(was) != _has_versions(now):
            cure = pair.another
        else:
            cure = (
                f"if {read} reads what {written} wrote, accept it; else {pair.another}"
            )
        yield pair.misfit(Verdict.UNREADABLE, why, cure)
    if changed := schema_comparison.changed_values(now, was):
        cure = (
            "give new fields a default, and a field of another type another name; "
            f"else {pair.another}"
        )
        yield pair.misfit(Verdict.UNREADABLE, changed, cure)


def _other_questions(pair: _Pair) -> Iterator[TopologyChange]:
    if changed := schema_comparison.why_other_rows(pair.now, pair.was):
        why = (
            f"{changed}: those of before asked with the hash of other bytes, "
            "and find no right rows until they change"
        )
        cure = f"write them again and accept it; or {pair.another}"
        yield pair.misfit(Verdict.MIXED, why, cure)


def _other_windows(pair: _Pair) -> Iterator[TopologyChange]:
    if pair.was.windows != pair.now.windows:
        why = (
            f"its windows are {_shown(pair.now)}, and were {_shown(pair.was)}: "
            "rows of both would lie beside each other"
        )
        yield pair.misfit(Verdict.MIXED, why, pair.another)


def _other_join(pair: _Pair) -> Iterator[TopologyChange]:
    was = pair.was
    now = pair.now
    if None not in (was.left, now.left) and was.left != now.left:
        why = (
            f"it has {'' if now.left else 'no '}rows without a match now: "
            "those of before are as they were"
        )
        cure = f"if they need not be there, accept it; else {pair.another}"
        yield pair.misfit(Verdict.MIXED, why, cure)
    if was.first and now.first and not pair.old.meets(was.first, pair.new, now.first):
        why = (
            f"it has a row for each row of {_words(pair.new.outside(now.first))}, "
            f"and had one for each row of {_words(pair.old.outside(was.first))}"
        )
        cure = f"if both have the same keys, accept it; else {pair.another}"
        yield pair.misfit(Verdict.MIXED, why, cure)


def _other_writer(pair: _Pair) -> Iterator[TopologyChange]:
    if pair.was.made_by != pair.now.made_by:
        why = (
            f"{_words(pair.now.made_by)} writes it, and {_words(pair.was.made_by)} did: "
            "new results would be added to old ones of another meaning"
        )
        cure = f"if they mean the same, accept it; else {pair.another}"
        yield pair.misfit(Verdict.MIXED, why, cure)


def _other_topics(pair: _Pair) -> Iterator[TopologyChange]:
    before = pair.old.outside(pair.was.reads)
    if before and not pair.old.meets(pair.was.reads, pair.new, pair.now.reads):
        now = pair.new.outside(pair.now.reads)
        why = f"it is made from {_words(now)}, and was from {_words(before)}"
        cure = f"if these are the same data, accept it; else {pair.another}"
        yield pair.misfit(Verdict.MIXED, why, cure)


def _other_partitions(pair: _Pair) -> Iterator[TopologyChange]:
    before = pair.old.partitions.get(pair.was.name, {})
    now = pair.new.partitions.get(pair.was.name, {})
    for topic, count in now.items():
        if before.get(topic, count) != count:
            why = (
                f"{topic} has {count} partitions, and had {before[topic]}: "
                "keys are in other ones than their rows"
            )
            cure = "begin anew (`coopstreams reset`)"
            # Without a topic: that the changelog is empty would not make it right.
            yield replace(pair.misfit(Verdict.MIXED, why, cure), topic=None)


def _other_changelog(pair: _Pair) -> Iterator[TopologyChange]:
    was = pair.was
    now = pair.now
    if now.changelog in (None, was.changelog):
        return
    if was.changelog in pair.old.sources:
        why = (
            f"it was restored from {was.changelog}, and gets a changelog of its own, "
            "without the rows of before"
        )
        cure = (
            "keep topology.optimization=reuse.ktable.source.topics, "
            f"or have the changelog made: {_rebuild(was.name)}"
        )
        yield pair.misfit(Verdict.LOST, why, cure)


_LOOKS: tuple[Callable[[_Pair], Iterator[TopologyChange]], ...] = (
    _other_kind,
    _other_keys,
    _other_values,
    _other_questions,
    _other_windows,
    _other_join,
    _other_writer,
    _other_topics,
    _other_partitions,
    _other_changelog,
)
"""The comparisons of the rows of two stores, the worst difference first."""


def _has_versions(store: Store) -> bool:
    """Whether the values of a store are lists of versions, see
    `row_versions.versions_of`.
    """
    return store.value.startswith("versions(")


def _shown(store: Store) -> str:
    words = dict(store.windows)
    kind = words.pop("type", "none")
    return (
        f"{kind}({', '.join(f'{name}={value}' for name, value in words.items())})"
        if words
        else str(kind)
    )


def _words(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _renamed(old: Outline, new: Outline) -> dict[str, str]:
    """Return, for each removed store, the new store that seems to hold the same rows:
    it has the same form and reads a common topic.
    """
    candidates = [
        store for store in new.stores.values() if store.name not in old.stores
    ]
    found: dict[str, str] = {}
    for was in old.stores.values():
        if was.name not in new.stores:
            now = next(
                (
                    now
                    for now in candidates
                    if now.form == was.form and old.meets(was.reads, new, now.reads)
                ),
                None,
            )
            if now is not None:
                candidates.remove(now)
                found[was.name] = now.name
    return found


_KEEP_THE_NAME = (
    "keep the store= or name= of its operator; if it had none, attach new operators behind it, so that the generated "
    "numbers stay"
)


def _gone_store(
    was: Store,
    new: Outline,
    renamed: dict[str, str],
) -> TopologyChange:
    """Return the effect on a store that the new version does not have by this name.
    `renamed`: the new names of stores that have other names now.
    """
    now = renamed.get(was.name)
    if now is None:
        left = f"; {was.changelog} stays until you delete it" if was.changelog else ""
        return TopologyChange(
            "store",
            was.name,
            Verdict.ORPHANED,
            f"the topology has no such store any more{left}",
        )
    why = f'the same store is named "{now}" now, which starts empty'
    if set(was.made_by) & {
        "StreamStreamJoin",
        "ForeignKeyAnswer",
        "Suppress",
        "BufferedJoin",
    }:
        cure = _KEEP_THE_NAME
    else:
        of = was.name.removesuffix(past_name(""))
        cure = f'name it as it was: store="{of if of in renamed else was.name}"'
    own = (
        None if new.stores[now].changelog in new.sources else new.stores[now].changelog
    )
    return TopologyChange(
        "store",
        was.name,
        Verdict.LOST,
        why,
        cure,
        was.changelog,
        now,
        own,
    )


def _new_store(
    old: Outline,
    new: Outline,
    now: Store,
) -> TopologyChange:
    """Return the effect of a store that the old version did not have."""
    effect = partial(TopologyChange, "store", now.name)
    changelog = changelog_topic(new.application_id, now.name)
    topic = changelog if now.changelog == changelog else None
    if now.changelog is not None and topic is None:
        return effect(Verdict.NEW, f"it is restored from {now.changelog}")
    if not old.meets(new.outside(now.reads), new, old.sources):
        return effect(Verdict.NEW)
    of = now.name.removesuffix(past_name(""))
    if of in old.stores and now.name == past_name(of) and _has_versions(old.stores[of]):
        why = f"the versions that {of} has in its rows are brought there as the rows change"
        return effect(Verdict.NEW, why)
    if now.twin in old.stores:
        why = f"{now.twin} had its rows, too, and it gets a changelog of its own, without the rows of before"
        cure = f"keep topology.optimization=single.store.self.join, or have the changelog made: {_rebuild(now.name)}"
        return effect(Verdict.LOST, why, cure, old.stores[now.twin].changelog)
    why = f"{_words(new.outside(now.reads))} was read before the store existed: its earlier records are not in the store"
    return effect(Verdict.EMPTY, why, f"if it must be: {_rebuild(now.name)}", topic)


def _repartition(
    old: Outline,
    new: Outline,
    was: RepartitionOutline,
    renamed: dict[str, str],
) -> TopologyChange:
    """Return the effect on a repartition topic of the old version. `renamed`: see
    `_gone_store`.
    """
    effect = partial(TopologyChange, "repartition topic", was.name)
    now = new.repartitions.get(was.name)
    drain = "let the old version process its records before it stops (stop the producers first)"
    if now is None:
        if not _still_fed(was, new, renamed):
            return effect(
                Verdict.ORPHANED,
                "the new version has none of the stores and topics that were made from it",
            )
        why = "the new version does not read it, and its records are already processed in their sources"
        cure = _KEEP_THE_NAME  # of a join by foreign key
        if was.name.endswith("-repartition"):
            prefix = was.name.removeprefix(f"{old.application_id}-").removesuffix(
                "-repartition"
            )
            cure = (
                f'name the grouping, the join with a table, the repartition() or to_sink() behind it: name="{prefix}"; '
                f'in front of a join of streams write .repartition(name="{prefix}")'
            )
        return effect(Verdict.LOST, why, f"{cure}; or {drain}", was.name)
    keys = schema_comparison.same_format(
        now.key, now.key_schemas, was.key, was.key_schemas
    )
    if not keys or not schema_comparison.same_format(
        now.value,
        now.schemas,
        was.value,
        was.schemas,
    ):
        why = f"its records are read as {now.key} and {now.value}, and were written as {was.key} and {was.value}"
        return effect(
            Verdict.UNREADABLE,
            why,
            f"{drain}, or give it another name",
            was.name,
        )
    if changed := schema_comparison.changed_keys(now, was):
        why = f"{changed}: its records have keys as they were"
        return effect(Verdict.MIXED, why, f"{drain}, or give it another name", was.name)
    if changed := schema_comparison.changed_values(now, was):
        cure = f"{drain}, or give new fields a default, and a field of another type another name"
        return effect(Verdict.UNREADABLE, changed, cure, was.name)
    if old.outside(was.reads) and not old.meets(was.reads, new, now.reads):
        why = f"its records come from {_words(new.outside(now.reads))}, and came from {_words(old.outside(was.reads))}"
        return effect(Verdict.MIXED, why, f"{drain}, or give it another name", was.name)
    if (
        None not in (was.partitions, now.partitions)
        and was.partitions != now.partitions
    ):
        why = f"it is to have {now.partitions} partitions, and has {was.partitions}"
        return effect(
            Verdict.UNREADABLE,
            why,
            "keep partitions=, give it another name, or begin anew (`coopstreams reset`)",
        )
    return effect(Verdict.KEEPS)


def _still_fed(
    was: RepartitionOutline,
    new: Outline,
    renamed: dict[str, str],
) -> bool:
    """Whether the new version still has a store or topic that the repartition topic
    `was` fed.

    If it has none, nobody misses the records that are lost. An external sink or a topic
    that a function chooses has no name, so it counts as still there; so does a
    repartition topic that fed nothing known.
    """
    made = {
        "store": {*new.stores, *renamed},
        "topic": {*new.sinks, *new.repartitions, ""},
    }
    return not was.feeds or any(name in made[kind] for kind, name in was.feeds)


def _positions(old: Outline, new: Outline) -> Iterator[TopologyChange]:
    """Yield the effect on the position in each source topic of either version."""
    effect = partial(TopologyChange, "position")
    for topic in sorted(old.sources):
        if topic in new.sources and (topic in old.unordered) != (
            topic in new.unordered
        ):
            now, then = (
                ("a share group", "the application's group")
                if topic in new.unordered
                else ("the application's group", "a share group")
            )
            yield effect(
                topic,
                Verdict.EMPTY,
                f"{now} reads it, and {then} did: neither knows what the other has done, so it begins at "
                "auto.offset.reset, or where it once was",
                "let the old version process its records before it stops, and set auto.offset.reset=latest for the "
                "first start of the new one; or accept that records are processed again",
            )
        elif topic in new.sources or old.meets([topic], new, new.sources):
            yield effect(topic, Verdict.KEEPS)
        elif topic in new.global_topics:
            yield effect(
                topic,
                Verdict.ORPHANED,
                "every instance reads all of it now, as a global table",
            )
        else:
            yield effect(
                topic,
                Verdict.ORPHANED,
                "no source reads it any more: its unread records stay unprocessed, and the position expires",
            )
    for topic in sorted(new.sources - old.sources):
        if not new.meets([topic], old, old.sources):
            yield effect(
                topic,
                Verdict.NEW,
                "it begins at auto.offset.reset, or where the group once was in it",
            )
