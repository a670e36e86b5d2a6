"""Plans of a rebuild: the partitions to rebuild, and the slices of the old manifest
that the new one keeps.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from coopstreams import StreamsBuilder, TimeWindows, Topology, serdes
from coopstreams.admin.rebuild import (
    Rebuilder,
    RebuildScope,
    logged,
    to_rebuild,
)
from coopstreams.log.log import TopicSpec
from coopstreams.log.memory.log import MemoryLog
from coopstreams.state.manifest import (
    Manifest,
    Slice,
    StoreSlices,
    manifest_of,
    shape_of,
)
from coopstreams.state.published_snapshot import Changelog
from coopstreams.state.snapshot_round import assembled
from coopstreams.topology.errors import ConfigError, SnapshotError
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.serdes import Serde

ANEW = manifest_of("app", "new", "rebuild", 0)
NOW = {
    "counts": Changelog("app-counts-changelog", "id-1", 2),
    "windows": Changelog("app-windows-changelog", "id-2", 2),
}


def topology(key: Serde[str] = serdes.text) -> Topology:
    """Two stores behind the source, a third behind a repartition topic."""
    builder = StreamsBuilder("app")
    words = builder.stream("words", key=key, value=serdes.text)
    words.group_by_key().count(store="counts")
    words.group_by_key().windowed_by(TimeWindows(minutes=1)).count(store="windows")
    words.group_by(lambda _, word: word, key=serdes.text).count(store="by-word")
    return builder.build()


def older(name: str = "counts", topic_id: str = "id-1", **slices: Slice) -> Manifest:
    store = StoreSlices(
        f"app-{name}-changelog",
        topic_id,
        2,
        shape_of(logged(topology())[name]),
        tuple(slices.values()),
    )
    return Manifest(
        "app",
        "old",
        "backfill",
        "2026-11-20T00:00:00Z",
        {name: store},
        {"words": {0: 5}},
    )


def test_all_stores_of_all_partitions_are_rebuilt_unless_some_are_named() -> None:
    everything = [
        (str(rebuilt.task), rebuilt.stores)
        for rebuilt in to_rebuild(topology(), [2, 3], RebuildScope())
    ]
    assert everything == [
        (f"0_{number}[0..255]", ("counts", "windows")) for number in range(2)
    ] + [(f"1_{number}[0..255]", ("by-word",)) for number in range(3)]
    some = to_rebuild(
        topology(),
        [2, 3],
        RebuildScope(["windows", "by-word"], [0, 2], KeyRange.of_groups(9, 16)),
    )
    assert [(str(rebuilt.task), rebuilt.stores) for rebuilt in some] == [
        ("0_0[8..23]", ("windows",)),
        ("1_0[8..23]", ("by-word",)),
        ("1_2[8..23]", ("by-word",)),
    ]


def test_a_versioned_store_is_rebuilt_with_its_past() -> None:
    builder = StreamsBuilder("app")
    builder.table(
        "prices",
        key=serdes.text,
        value=serdes.text,
        store="prices",
        history=timedelta(hours=1),
    )
    builder.table("names", key=serdes.text, value=serdes.text, store="names")
    wanted = RebuildScope(["prices"])
    assert [
        rebuilt.stores for rebuilt in to_rebuild(builder.build(), [1, 1], wanted)
    ] == [("prices", "prices-history")]


@pytest.mark.parametrize(
    ("first", "last", "widened"),
    [
        (0, 255, WHOLE),
        (8, 15, KeyRange.of_groups(8, 15)),
        (255, 255, KeyRange.of_groups(248, 255)),
    ],
)
def test_a_range_is_widened_to_whole_slices_and_no_further(
    first: int, last: int, widened: KeyRange
) -> None:
    (rebuilt,) = to_rebuild(
        topology(),
        [1, 1],
        RebuildScope(["counts"], None, KeyRange.of_groups(first, last)),
    )
    assert rebuilt.task.key_range == widened


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (RebuildScope(["count"]), "there are by-word, counts, windows"),
        (
            RebuildScope(None, [3, 9]),
            "there is no partition 3, 9; sub-topologies have \\[2, 3\\]",
        ),
    ],
)
def test_what_does_not_exist_is_refused_in_words(
    wanted: RebuildScope, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        to_rebuild(topology(), [2, 3], wanted)


def test_the_new_manifest_keeps_what_still_fits_and_nothing_else() -> None:
    specs = {name: spec for name, spec in logged(topology()).items() if name in NOW}
    new, kept, replaced = Slice(0, 0, 7, 20), Slice(1, 0, 7, 10), Slice(0, 0, 7, 10)
    made = assembled(ANEW, older(a=kept, b=replaced), {"counts": [new]}, specs, NOW)
    assert (made.run, made.kind, made.cut) == ("new", "rebuild", {})
    assert {name: store.slices for name, store in made.stores.items()} == {
        "counts": (new, kept)
    }
    anew = assembled(
        ANEW, older(topic_id="id-0", a=kept), {"windows": [new]}, specs, NOW
    )
    assert {
        name: (store.topic_id, store.slices) for name, store in anew.stores.items()
    } == {"windows": ("id-2", (new,))}
    changed = {
        "counts": logged(
            topology(
                Serde(
                    "latin",
                    lambda text: text.encode("latin-1"),
                    lambda data: data.decode("latin-1"),
                )
            )
        )["counts"]
    }
    assert assembled(ANEW, older(a=kept), {}, changed, NOW).stores == {}
    assert assembled(ANEW, older(a=kept), {}, specs, {}).stores == {}
    assert assembled(ANEW, None, {"counts": [new]}, specs, NOW).stores[
        "counts"
    ].slices == (new,)


def test_a_changelog_that_is_made_anew_meanwhile_does_not_get_the_slices_of_the_other(
    tmp_path: Path,
) -> None:
    log, rebuilt = MemoryLog(), topology()
    names = [f"app-{store}-changelog" for store in logged(rebuilt)]
    log.create_topics(
        [TopicSpec(name, 1) for name in ["words", "app-by-word-repartition", *names]]
    )
    rebuilder = Rebuilder(log, rebuilt, "app", str(tmp_path))
    partitions = rebuilder.to_rebuild(RebuildScope(["counts"]))
    slices = {
        store: made
        for rebuilt in partitions
        for store, made in rebuilder.rebuild(rebuilt).items()
    }
    assert list(rebuilder.publish(slices).stores) == ["counts"]
    log.delete_topics(["app-counts-changelog"])
    log.create_topics([TopicSpec("app-counts-changelog", 1)])
    with pytest.raises(
        SnapshotError,
        match="app-counts-changelog: deleted and made anew during the rebuild",
    ):
        rebuilder.publish(slices)


def test_a_snapshot_of_another_cluster_is_not_replaced_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rebuilt = topology()
    names = [f"app-{store}-changelog" for store in logged(rebuilt)]
    for _ in "one", "other":
        log = MemoryLog()
        log.create_topics(
            [
                TopicSpec(name, 1)
                for name in ["words", "app-by-word-repartition", *names]
            ]
        )
        for _ in range(2):
            rebuilder = Rebuilder(log, rebuilt, "app", str(tmp_path))
            made = [
                rebuilder.rebuild(each)
                for each in rebuilder.to_rebuild(RebuildScope(["counts"]))
            ]
            rebuilder.publish(
                {store: slices for each in made for store, slices in each.items()}
            )
    told = [
        each.getMessage()
        for each in caplog.records
        if "which was published" in each.getMessage()
    ]
    assert len(told) == 1
    assert "followed other topics than app-counts-changelog are now" in told[0]
    assert "Two clusters with one application id need a storage each" in told[0]
