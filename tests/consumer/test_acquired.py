"""The records of a delivered batch: each is handed out once, and finished once or given
up.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coopstreams.consumer.cooperative_fetch import Acquired
from coopstreams.log.kafka.share_consumer import AcquiredRecord


def records(count: int) -> list[AcquiredRecord]:
    return [
        AcquiredRecord("work", 0, offset, None, b"", 1, None, 1)
        for offset in range(count)
    ]


def test_a_record_is_finished_once_and_not_after_it_was_given_up() -> None:
    acquired = Acquired()
    batch = records(4)
    acquired.take(batch)
    assert acquired.hand_out(3) == batch[:3]
    assert acquired.finish(batch[0], done=True)
    assert not acquired.finish(batch[0], done=True)
    assert not acquired.finish(batch[3], done=True), "it is not out yet"
    assert acquired.give_up() == batch[1:]
    assert not acquired.finish(batch[1], done=True), "it is somebody else's"
    assert acquired.finished() == [(batch[0], True)]
    assert acquired.empty


def test_a_record_of_an_earlier_delivery_is_not_this_one() -> None:
    acquired = Acquired()
    (old,), (new,) = records(1), records(1)
    acquired.take([old])
    acquired.hand_out(1)
    acquired.give_up()
    acquired.take([new])
    acquired.hand_out(1)
    assert not acquired.finish(old, done=True)
    assert acquired.finish(new, done=False)
    assert acquired.finished() == [(new, False)]


@given(
    st.integers(0, 20),
    st.lists(
        st.tuples(
            st.sampled_from(["hand out", "done", "release", "tell"]), st.integers(0, 20)
        )
    ),
)
def test_every_record_is_finished_or_given_up(
    count: int, does: list[tuple[str, int]]
) -> None:
    acquired, batch = Acquired(), records(count)
    acquired.take(batch)
    out: list[AcquiredRecord] = []
    told: list[AcquiredRecord] = []
    for step, n in does:
        if step == "hand out":
            out += acquired.hand_out(n)
        elif step == "tell":
            told += [record for record, _ in acquired.finished()]
        elif out:
            assert acquired.finish(out.pop(n % len(out)), done=step == "done")
    assert acquired.idle == (
        count
        == len(told)
        + len(out)
        + len(rest := [record for record, _ in acquired.finished()])
    )
    left = acquired.give_up()
    assert sorted(record.offset for record in [*told, *rest, *left]) == list(
        range(count)
    )
    assert acquired.empty
