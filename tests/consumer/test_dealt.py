"""What a batch that the broker has dealt goes through: each record is handed out once, and finished once, or given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.consumer.cooperative_fetch import Dealt
from coopstreams.log.kafka.share import AcquiredRecord


def records(count: int) -> list[AcquiredRecord]:
    return [AcquiredRecord("work", 0, offset, None, b"", 1, None, 1) for offset in range(count)]


def test_a_record_is_finished_once_and_not_after_it_was_given_up() -> None:
    dealt = Dealt()
    batch = records(4)
    dealt.take(batch)
    assert dealt.hand_out(3) == batch[:3]
    assert dealt.finish(batch[0], done=True)
    assert not dealt.finish(batch[0], done=True)
    assert not dealt.finish(batch[3], done=True), "it is not out yet"
    assert dealt.give_up() == batch[1:]
    assert not dealt.finish(batch[1], done=True), "it is somebody else's"
    assert dealt.finished() == [(batch[0], True)]
    assert dealt.empty


def test_a_record_of_an_earlier_delivery_is_not_this_one() -> None:
    dealt = Dealt()
    (old,), (new,) = records(1), records(1)
    dealt.take([old])
    dealt.hand_out(1)
    dealt.give_up()
    dealt.take([new])
    dealt.hand_out(1)
    assert not dealt.finish(old, done=True)
    assert dealt.finish(new, done=False)
    assert dealt.finished() == [(new, False)]


@given(st.integers(0, 20), st.lists(st.tuples(st.sampled_from(["hand out", "done", "release", "tell"]), st.integers(0, 20))))
def test_every_record_is_finished_or_given_up(count: int, does: list[tuple[str, int]]) -> None:
    dealt, batch = Dealt(), records(count)
    dealt.take(batch)
    out: list[AcquiredRecord] = []
    told: list[AcquiredRecord] = []
    for step, n in does:
        if step == "hand out":
            out += dealt.hand_out(n)
        elif step == "tell":
            told += [record for record, _ in dealt.finished()]
        elif out:
            assert dealt.finish(out.pop(n % len(out)), done=step == "done")
    assert dealt.idle == (count == len(told) + len(out) + len(rest := [record for record, _ in dealt.finished()]))
    left = dealt.give_up()
    assert sorted(record.offset for record in [*told, *rest, *left]) == list(range(count))
    assert dealt.empty
