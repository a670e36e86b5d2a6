"""The bytes that members exchange: all values survive, equal values give equal bytes,
foreign bytes are refused.
"""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from coopstreams.group.codec import (
    MOST_BYTES,
    VERSION,
    _Info,
    _pack,
    _Task,
    _unpack,
    decode_assignment,
    decode_subscription,
    encode_assignments,
    encode_subscription,
)
from coopstreams.group.members import (
    Assignment,
    Cluster,
    Member,
    MemberInfo,
    MemberState,
    Runs,
    Warmth,
)
from coopstreams.topology.errors import GroupError
from coopstreams.topology.keys import MAX_HASH, KeyRange
from coopstreams.topology.task_id import TaskId

SOURCES = {0: ["orders", "customers"], 1: ["app-by-customer-repartition"]}

ranges = st.one_of(
    st.integers(0, 255).flatmap(
        lambda a: st.integers(a, 255).map(lambda b: KeyRange.of_groups(a, b))
    ),
    st.integers(0, MAX_HASH).flatmap(
        lambda a: st.integers(a, MAX_HASH).map(lambda b: KeyRange(a, b))
    ),
)
tasks = st.builds(TaskId, st.integers(0, 3), st.integers(0, 2000), ranges)
sorted_tasks = st.lists(tasks, max_size=5).map(lambda some: tuple(sorted(some)))
infos = st.builds(
    MemberInfo,
    process=st.text(),
    host=st.text(),
    endpoint=st.none() | st.text(),
    threads=st.integers(1, 64),
    transactional_ids=st.lists(st.text(), max_size=3).map(tuple),
    allow_key_share=st.booleans(),
    ending=st.text(),
    topology=st.lists(
        st.builds(Runs, st.text(), st.integers(0, 2000), st.booleans()), max_size=3
    ).map(tuple),
    rack=st.text(),
    stands_by=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
states = st.builds(
    MemberState,
    infos,
    sorted_tasks,
    st.integers(-1, 1 << 31 - 1),
    sorted_tasks,
    standbys=sorted_tasks,
    warmth=st.none()
    | st.builds(
        Warmth,
        sorted_tasks,
        sorted_tasks,
        st.dictionaries(tasks, st.integers(0, 63), max_size=3).map(
            lambda lags: tuple(sorted(lags.items()))
        ),
    ),
)
clusters = st.builds(
    Cluster,
    members=st.lists(
        st.builds(Member, st.text(), infos, sorted_tasks, sorted_tasks), max_size=3
    ).map(tuple),
    partitions=st.dictionaries(st.integers(0, 9), st.integers(1, 99), max_size=3),
)


@given(states, st.integers(0, 99))
def test_a_subscription_says_what_was_put_in(state: MemberState, nonce: int) -> None:
    assert (
        decode_subscription(encode_subscription(state, nonce, ["t"], SOURCES), "m")
        == state
    )


@pytest.mark.ci
@given(states, st.integers(0, 99))
def test_equal_states_are_equal_bytes_and_another_nonce_is_not(
    state: MemberState, nonce: int
) -> None:
    twin = MemberState(
        replace(state.info),
        state.tasks[::-1],
        state.generation,
        state.target,
        standbys=state.standbys[::-1],
        warmth=state.warmth
        and Warmth(
            state.warmth.heavy[::-1],
            state.warmth.ready[::-1],
            state.warmth.lags[::-1],
        ),
    )
    once = encode_subscription(state, nonce, ["b", "a"], SOURCES)
    assert once == encode_subscription(twin, nonce, ["a", "b", "a"], SOURCES)
    assert once != encode_subscription(state, nonce + 1, ["b", "a"], SOURCES)


@pytest.mark.ci
@given(
    clusters,
    st.dictionaries(st.text(min_size=1), sorted_tasks, min_size=1, max_size=4),
    st.booleans(),
    st.text(),
    st.text(),
)
def test_an_assignment_says_what_was_put_in(
    cluster: Cluster,
    given_: dict[str, tuple[TaskId, ...]],
    settled: bool,
    error: str,
    waits: str,
) -> None:
    assignments = {
        m: Assignment(m, tasks, tasks[::2], settled, cluster, error, waits, tasks[1:])
        for m, tasks in given_.items()
    }
    encoded = encode_assignments(assignments, SOURCES)
    assert {
        m: decode_assignment(data, "leader") for m, data in encoded.items()
    } == assignments


def test_a_member_of_an_older_version_says_nothing_of_its_rows_and_ignores_what_others_say() -> (
    None
):
    class Older(_Info, omit_defaults=True, kw_only=True):
        """A subscription in the form of before."""

        tasks: tuple[_Task, ...] = ()
        target: tuple[_Task, ...] = ()
        nonce: int = 0
        standbys: tuple[_Task, ...] = ()

    held = (TaskId(0, 1, KeyRange.of_groups(0, 99)),)
    state = MemberState(
        MemberInfo("p", stands_by=(0,)),
        held,
        5,
        warmth=Warmth(held, held, ((held[0], 9),)),
    )
    sent = ConsumerProtocolSubscription.decode(
        encode_subscription(state, 7, ["t"], SOURCES)
    )
    read, _ = _unpack(sent.user_data, msgspec.json.Decoder(Older), "m", (VERSION,))
    assert (read.tasks, read.stands_by) == (((0, 1, 0, 99),), (0,))
    sent.user_data = _pack(read)
    assert decode_subscription(bytes(sent.encode()), "m") == replace(state, warmth=None)


def test_kafkas_tools_see_topics_partitions_and_generation() -> None:
    held = (
        TaskId(0, 2, KeyRange.of_groups(0, 99)),
        TaskId(0, 1, KeyRange.of_groups(0, 255)),
        TaskId(1, 1, KeyRange.of_groups(5, 9)),
    )
    state = MemberState(MemberInfo("p"), held, 5)
    wrapper = ConsumerProtocolSubscription.decode(
        encode_subscription(state, 0, ["orders", "__commits"], SOURCES)
    )
    assert (wrapper.topics, wrapper.generation_id) == (["__commits", "orders"], 5)
    assert [(t.topic, t.partitions) for t in wrapper.owned_partitions] == [
        ("app-by-customer-repartition", [1]),
        ("customers", [1, 2]),
        ("orders", [1, 2]),
    ]
    encoded = encode_assignments({"m": Assignment("p", held)}, SOURCES)["m"]
    assert [
        (t.topic, t.partitions)
        for t in ConsumerProtocolAssignment.decode(encoded).assigned_partitions
    ][2] == (
        "orders",
        [1, 2],
    )


def test_the_group_as_a_whole_is_written_once_however_many_members_there_are() -> None:
    """The broker keeps everything in one record of 1 MiB: 100 members of 10 tasks take
    a fraction of that.
    """
    members = tuple(
        Member(
            f"coopstreams-{i:036}", MemberInfo(f"p{i}", "host", f"10.0.0.{i}:8080"), ()
        )
        for i in range(100)
    )
    cluster = Cluster(members, {0: 12})
    sizes = map(
        len,
        encode_assignments(
            {m.id: Assignment(m.info.process, cluster=cluster) for m in members},
            SOURCES,
        ).values(),
    )
    assert sum(sizes) < 300_000


def subscription(user_data: bytes | None) -> bytes:
    return bytes(
        ConsumerProtocolSubscription(
            version=3,
            topics=["t"],
            user_data=user_data,
            owned_partitions=[],
            generation_id=-1,
            rack_id=None,
        ).encode()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"not kafka's protocol at all, whatever it is",
        subscription(None),
        subscription(b"sticky assignor"),
        subscription(b"CS2" + b"not compressed"),
        subscription(b"CS2" + zlib.compress(b"{not json")),
        subscription(b"CS2" + zlib.compress(b'{"process": 5}')),
        subscription(b"CS2" + zlib.compress(b'{"process": "p", "threads": 0}')),
        subscription(b"CS2" + zlib.compress(b'{"process": "p", "tasks": [[0, 0]]}')),
        subscription(
            b"CS2" + zlib.compress(b'{"process": "p", "tasks": [[0, 0, 9, 3]]}')
        ),
    ],
)
def test_a_stranger_in_the_group_is_named(data: bytes) -> None:
    with pytest.raises(
        GroupError,
        match=r"member sarama-7 of this group is not an instance of this application .*application\.id",
    ):
        decode_subscription(data, "sarama-7")


STREAM = zlib.compress(b'{"process": "p"}')
"""A value of ours, as a member sends it."""


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (
            zlib.compress(b'{"process": "p"' + 8 * MOST_BYTES * b" " + b"}"),
            "it decompresses to more than 8 MiB",
        ),
        (
            zlib.compress(b'{"process": "p"}'.ljust(MOST_BYTES + 1)),
            "it decompresses to more than 8 MiB",
        ),
        (
            zlib.compress(b'{"process": "p", "x": ' + 1_000_000 * b"["),
            "maximum recursion depth exceeded",
        ),
        (STREAM[:-1], "the end of its compressed data is missing"),
    ],
    ids=["64-MiB", "8-MiB", "nested", "torn"],
)
def test_a_value_that_is_too_large_too_deep_or_torn_is_refused_at_its_bound(
    stream: bytes, problem: str
) -> None:
    """300 kB from a member were 300 MiB in the leader, and each value that nests ended
    it by another error.
    """
    assert len(stream) < 100_000
    with pytest.raises(GroupError, match=f"member m of this group .*{problem}"):
        decode_subscription(subscription(b"CS2" + stream), "m")
    tracemalloc.start()
    wrapped = bytes(
        ConsumerProtocolAssignment(
            version=3, assigned_partitions=[], user_data=b"CS2" + STREAM + stream
        ).encode()
    )
    with pytest.raises(GroupError, match=f"member m of this group .*{problem}"):
        decode_assignment(wrapped, "m")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * MOST_BYTES


def test_a_value_of_the_most_bytes_is_read() -> None:
    text = b'{"process": "p"}'.ljust(MOST_BYTES)
    state = decode_subscription(subscription(b"CS2" + zlib.compress(text)), "m")
    assert state.info.process == "p"


def test_another_version_is_told_apart_from_a_stranger() -> None:
    with pytest.raises(
        GroupError,
        match=r"member m speaks version b'3' .* this process b'2'.* stop all its processes, then start them",
    ):
        decode_subscription(subscription(b"CS3whatever"), "m")


def test_what_a_member_of_the_version_before_holds_is_understood_and_its_leader_is_not_obeyed() -> (
    None
):
    """Members of version 1 do not announce their topology, and as leaders assign the
    tasks of their own.
    """
    old = b"CS1" + zlib.compress(
        b'{"process":"p","host":"h","threads":2,"tasks":[[0,1,0,127]],"target":[[0,1,0,127]],"nonce":3}'
    )
    state = decode_subscription(subscription(old), "m")
    assert (state.tasks, state.info.topology) == (
        (TaskId(0, 1, KeyRange.of_groups(0, 127)),),
        (),
    )
    given_ = (
        b"CS1"
        + zlib.compress(b'{"process":"p","tasks":[[0,1,0,127]]}')
        + zlib.compress(b"{}")
    )
    wrapped = bytes(
        ConsumerProtocolAssignment(
            version=3, assigned_partitions=[], user_data=given_
        ).encode()
    )
    with pytest.raises(
        GroupError, match=r"member leader speaks version b'1' .* this process b'2'"
    ):
        decode_assignment(wrapped, "leader")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with pytest.raises(GroupError):
            decode(data, "m")
