"""The contract of `coopstreams.state.engine.Engine`, for memory, for disk, and for a
user's engine.
"""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coopstreams.state.engine import Change, Engine
from coopstreams.topology.errors import StateError
from tests.state.conftest import NewEngine

KEY = st.binary(max_size=3)


def rows(
    engine: Engine,
    family: str = "a",
    start: bytes = b"",
    end: bytes | None = None,
    *,
    reverse: bool = False,
) -> list[tuple[bytes, bytes]]:
    return list(engine.scan(family, start, end, reverse=reverse))


@pytest.fixture
def engine(new_engine: NewEngine) -> Engine:
    engine = new_engine()
    engine.create("a")
    engine.create("b")
    return engine


def test_what_is_written_is_read_and_scanned_in_key_order(engine: Engine) -> None:
    engine.write(
        [Change("a", [b"", b"k", b"k\x00", b"\xff\xff"], [b"0", b"", b"2", b"3"])]
    )
    get = engine.getter("a")
    assert [get(key) for key in (b"", b"k", b"k\x00", b"\xff\xff", b"x")] == [
        b"0",
        b"",
        b"2",
        b"3",
        None,
    ]
    assert rows(engine) == [
        (b"", b"0"),
        (b"k", b""),
        (b"k\x00", b"2"),
        (b"\xff\xff", b"3"),
    ]
    assert rows(engine, start=b"k", end=b"\xff") == [(b"k", b""), (b"k\x00", b"2")]
    assert rows(engine, start=b"k", end=b"\xff", reverse=True) == [
        (b"k\x00", b"2"),
        (b"k", b""),
    ]
    assert rows(engine, reverse=True) == rows(engine)[::-1]
    assert (
        rows(engine, start=b"l", end=b"m") == rows(engine, start=b"m", end=b"l") == []
    )


def test_families_are_apart_and_written_together(engine: Engine) -> None:
    engine.write([Change("a", [b"k"], [b"1"]), Change("b", [b"k"], [b"2"])])
    assert (engine.getter("a")(b"k"), engine.getter("b")(b"k")) == (b"1", b"2")
    assert sorted(engine.families()) == ["a", "b"]


def test_a_family_made_again_keeps_its_keys(engine: Engine) -> None:
    engine.write([Change("a", [b"k"], [b"1"])])
    engine.create("a")
    assert rows(engine) == [(b"k", b"1")]


def test_ranges_vanish_before_the_keys_of_the_same_change_are_written(
    engine: Engine,
) -> None:
    high = b"\xff" * 100
    engine.write([Change("a", [b"a", b"b", b"c", b"\xff", high], [b"1"] * 5)])
    engine.write([Change("a", [b"b"], [b"2"], [(b"a", b"c")])])
    assert rows(engine) == [(b"b", b"2"), (b"c", b"1"), (b"\xff", b"1"), (high, b"1")]
    engine.write([Change("a", vanishing=[(b"\xff", None)])])
    assert rows(engine) == [(b"b", b"2"), (b"c", b"1")]


def test_an_iterator_sees_the_moment_at_which_it_was_made(engine: Engine) -> None:
    keys = [b"%04d" % number for number in range(1000)]
    engine.write([Change("a", keys, [b"old"] * 1000)])
    found = engine.scan("a", b"", None)
    engine.write(
        [Change("a", [*keys[:500], b"zz"], [*[None] * 250, *[b"new"] * 250, b"new"])]
    )
    assert list(found) == [(key, b"old") for key in keys]


def test_a_family_that_is_dropped_is_gone_and_its_getter_finds_nothing(
    engine: Engine,
) -> None:
    engine.write([Change("a", [b"k"], [b"1"])])
    get, found = engine.getter("a"), engine.scan("a", b"", None)
    engine.drop("a")
    assert get(b"k") is None
    assert list(found) == [(b"k", b"1")]
    assert engine.families() == ["b"]
    engine.create("a")
    assert rows(engine) == []


def test_a_write_to_a_family_that_does_not_exist_writes_nothing(engine: Engine) -> None:
    with pytest.raises(KeyError):
        engine.write([Change("a", [b"k"], [b"1"]), Change("none", [b"k"], [b"1"])])
    assert rows(engine) == []


def test_a_closed_engine_says_so_instead_of_finding_nothing(engine: Engine) -> None:
    engine.write(
        [Change("a", [b"%04d" % number for number in range(1000)], [b"1"] * 1000)]
    )
    get, found = engine.getter("a"), engine.scan("a", b"", None)
    assert next(found) == (b"0000", b"1")
    engine.close()
    engine.close()
    with pytest.raises(StateError, match="closed"):
        get(b"0000")
    with pytest.raises(StateError, match="closed"):
        list(found)
    with pytest.raises(StateError, match="closed"):
        engine.write([Change("a", [b"k"], [b"1"])])


def test_the_number_of_keys_is_about_right(engine: Engine) -> None:
    engine.write(
        [Change("a", [b"%04d" % number for number in range(1000)], [b"1"] * 1000)]
    )
    assert 900 <= engine.count("a") <= 1100
    assert engine.count("b") == 0


def test_several_threads_write_and_read_at_once(engine: Engine) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            get = engine.getter("a")
            for turn in range(50):
                keys = [bytes([number]) + b"%03d" % key for key in range(20)]
                engine.write(
                    [
                        Change("a", keys, [b"%d" % turn] * 20),
                        Change("b", [bytes([number])], [b"%d" % turn]),
                    ]
                )
                assert {get(key) for key in keys} == {b"%d" % turn}
                assert (
                    len(list(engine.scan("a", bytes([number]), bytes([number + 1]))))
                    == 20
                )
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(rows(engine)) == 80


@pytest.mark.ci
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(KEY, st.none() | st.binary(max_size=2), max_size=8),
            st.none() | st.tuples(KEY, st.none() | KEY),
        ),
        max_size=6,
    ),
    st.tuples(KEY, st.none() | KEY),
)
def test_any_writes_leave_what_they_leave_in_a_dict(
    new_engine: NewEngine,
    writes: list[tuple[dict[bytes, bytes | None], tuple[bytes, bytes | None] | None]],
    bounds: tuple[bytes, bytes | None],
) -> None:
    engine = new_engine()
    engine.create("a")
    model: dict[bytes, bytes] = {}
    for puts, vanishing in writes:
        keys = sorted(puts)
        engine.write(
            [
                Change(
                    "a",
                    keys,
                    [puts[key] for key in keys],
                    [vanishing] if vanishing else [],
                )
            ]
        )
        if vanishing:
            start, end = vanishing
            model = {
                key: value
                for key, value in model.items()
                if key < start or (end is not None and key >= end)
            }
        for key in keys:
            value = puts[key]
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
    assert rows(engine) == sorted(model.items())
    start, end = bounds
    within = sorted(
        (key, value)
        for key, value in model.items()
        if key >= start and (end is None or key < end)
    )
    assert rows(engine, start=start, end=end) == within
    assert rows(engine, start=start, end=end, reverse=True) == within[::-1]
    engine.close()
