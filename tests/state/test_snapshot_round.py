"""Rounds of snapshots by the running application: when one begins and is published, and
which slices are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coopstreams.state.manifest import (
    DamagedManifestError,
    File,
    Manifest,
    Slice,
    StoreSlices,
    manifest_of,
)
from coopstreams.state.published_snapshot import Changelog
from coopstreams.state.snapshot import NOTHING_PUBLISHED, Publication
from coopstreams.state.snapshot_round import (
    PATIENCE_S,
    Act,
    Part,
    PartStore,
    Round,
    Rounds,
    TaskPositions,
    furthest,
    missing,
    of_parts,
    tiled,
)
from coopstreams.topology.keys import GROUPS, WHOLE

NOW = {"counts": Changelog("app-counts-changelog", "id-1", 2)}

slices = st.builds(
    lambda partition, ends, offset: Slice(partition, min(ends), max(ends), offset),
    st.integers(0, 1),
    st.tuples(st.integers(0, 255), st.integers(0, 255)),
    st.integers(0, 9),
)


def groups(found: Sequence[Slice]) -> list[tuple[int, int]]:
    return [
        (each.partition, group)
        for each in found
        for group in range(each.first, each.last + 1)
    ]


def file(name: str) -> File:
    return File("store/counts", name, 1, 1, "", "00", "00")


def part(*found: Slice, topic_id: str = "id-1") -> Part:
    return Part({"counts": PartStore(topic_id, found)})


@given(st.lists(slices))
def test_no_two_slices_have_a_group_and_none_is_left_out_for_one_behind_it(
    found: list[Slice],
) -> None:
    taken = furthest(found)
    assert len(groups(taken)) == len(set(groups(taken)))
    for each in found:
        if each not in taken:
            stronger = [one for one in taken if one.offset >= each.offset]
            assert set(groups([each])) & set(groups(stronger))


@given(st.lists(st.lists(slices, max_size=3).map(lambda found: part(*found))))
def test_what_is_missing_and_what_is_covered_are_all_key_groups(
    parts: list[Part],
) -> None:
    covered = {
        place
        for each in parts
        for store in each.stores.values()
        for place in groups(store.slices)
    }
    assert missing(parts, {"counts": 2}) == 2 * GROUPS - len(covered)
    assert missing(parts, {}) == 0


def test_slices_whose_files_may_be_gone_or_whose_changelog_is_another_are_left_out() -> (
    None
):
    older = Manifest(
        "app",
        "old",
        "running",
        "2026-11-20T00:00:00Z",
        {
            "counts": StoreSlices(
                "app-counts-changelog",
                "id-1",
                2,
                "",
                (Slice(0, 0, 7, 3, files=(file("old/a.sst"),)),),
            )
        },
    )
    new, same, gone = (
        Slice(0, at, at + 7, 5, files=(file(name),))
        for at, name in ((8, "run/b.sst"), (0, "old/a.sst"), (16, "other/c.sst"))
    )
    parts = [part(new, same, gone), part(Slice(1, 0, 7, 9), topic_id="id-0")]
    found = of_parts("run", parts, older, NOW)
    assert sorted(found["counts"], key=lambda each: each.first) == [same, new]
    assert of_parts("run", parts, None, NOW) == {"counts": [new]}
    assert of_parts("run", parts, older, {}) == {}


def at(start: int, end: int) -> Part:
    return Part({}, TaskPositions(0, 0, start, end, {}, {}))


bounds = st.lists(st.integers(1, WHOLE.end), max_size=5, unique=True).map(sorted)


@given(
    bounds,
    st.lists(st.tuples(st.integers(0, WHOLE.end), st.integers(0, WHOLE.end))),
    st.randoms(),
)
def test_parts_of_one_cut_are_found_among_those_of_others_and_never_mixed(
    cut: list[int],
    others: list[tuple[int, int]],
    random: Random,
) -> None:
    starts = [0, *cut]
    ends = [start - 1 for start in cut] + [WHOLE.end]
    whole = [at(*ends) for ends in zip(starts, ends, strict=True)]
    parts = whole + [at(min(each), max(each)) for each in others]
    random.shuffle(parts)
    found = tiled(parts)
    assert found is not None
    reached = -1
    for part in found:
        assert part.at is not None
        assert part.at.start == reached + 1
        reached = part.at.end
    assert reached == WHOLE.end
    if cut and not others:
        assert tiled(parts[1:]) is None


@given(
    st.lists(
        st.tuples(
            st.floats(0, 40),
            st.booleans(),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_a_round_is_published_only_behind_what_it_began_behind_and_rounds_keep_apart(
    history: list[tuple[float, bool, bool, bool, bool]],
) -> None:
    rounds = Rounds(100.0)
    now = 0.0
    last = NOTHING_PUBLISHED
    begun: list[float] = []
    for waited_s, publisher, covered, another, fails in history:
        now += waited_s
        if another:
            last = Publication(last.number + 1, "another")
        behind = rounds.open and rounds.open.behind
        act = rounds.look(
            now, last, 0.0, publisher=publisher, missing=0 if covered else 1
        )
        if not publisher:
            assert (act, rounds.open) == (Act.NOTHING, None)
        if act is Act.PUBLISH:
            assert behind == last.number
            assert covered or now - begun[-1] >= max(PATIENCE_S, 100.0)
            if not fails:
                last = Publication(last.number + 1, "run")
            rounds.ended()
        if act is Act.BEGIN:
            assert rounds.open is None
            rounds.begun(Round("run", last.number), now)
            begun.append(now)
        assert act is not Act.NOTHING or not publisher or not (rounds.open and covered)


def test_a_new_publisher_waits_until_the_snapshot_is_old_enough() -> None:
    last = Publication(3, "run")
    for age_s, due in ((0.0, 100.0), (70.0, 30.0), (500.0, 0.0), (-50.0, 100.0)):
        rounds = Rounds(100.0)

        def look(now: float, rounds: Rounds = rounds, age_s: float = age_s) -> Act:
            return rounds.look(now, last, age_s, publisher=True, missing=0)

        if due:
            assert [look(1000.0), look(999.9 + due)] == [Act.NOTHING] * 2
        assert look(1000.0 + due) is Act.BEGIN


def test_rounds_and_parts_are_read_as_they_were_written_or_refused() -> None:
    begun = Round("run", 7)
    assert Round.from_json(begun.to_json()) == begun
    written = part(Slice(0, 0, 7, 5, 6, 7, (file("run/a.sst"),)))
    assert Part.from_json(written.to_json()) == written
    for data in (b"", written.to_json().replace(b'"offset": 5', b'"offset": 4')):
        with pytest.raises(DamagedManifestError):
            Part.from_json(data)


def test_the_age_of_a_snapshot_counts_from_its_creation() -> None:
    assert manifest_of("app", "run", "running", 1_700_000_000_999).created_ms == (
        1_700_000_000_000
    )
