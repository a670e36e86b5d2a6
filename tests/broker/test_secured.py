"""The main path on a broker with TLS, users and ACLs, as a user with exactly the ACLs
of `coopstreams acls`; and the error for each missing one.
"""

from __future__ import annotations

import logging
import re
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.admin.dead_letters import ahead, replay
from coopstreams.admin.replay_metadata import Wanted
from coopstreams.commit.cluster_policy import Policy, PolicyTopic
from coopstreams.common.acl_errors import Acl, adding
from coopstreams.common.config import Config
from coopstreams.dev import broker_certificates
from coopstreams.instance.restrictions import Restrictions
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.share_consumer import delete_share_group
from coopstreams.preflight.resolution import resolve_topology
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import AccessDeniedError, CoopStreamsError, LogError
from tests.broker.consuming import Orders, poll_until
from tests.broker.counting import Counting, await_table, failure_of, metric
from tests.broker.secured import CONSUMER, ERRORS, SecuredKafka, documented, printed
from tests.broker.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.ci]


def made(secured: SecuredKafka) -> Counting:
    """Return an application with a repartition topic and a store."""
    counting = Counting.make(secured)
    builder = StreamsBuilder(counting.application)
    stream = builder.stream(counting.source, key=serdes.text, value=serdes.raw)
    counts = (
        stream.select_key(lambda key, _: key, key=serdes.text)
        .group_by_key()
        .count(store="counts")
    )
    counts.to_stream().to(counting.sink)
    return replace(counting, topology=builder.build())


def listed(counting: Counting) -> list[Acl]:
    """Return the ACLs of `coopstreams acls` for this application."""
    return printed(counting.topology, processing_guarantee="exactly_once_v2")


def running(
    counting: Counting, folder: Path, user: dict[str, Any], **settings: Any
) -> CoopStreams:
    """Return an instance that runs as this user under exactly-once, not yet running."""
    given = {
        "processing_guarantee": "exactly_once_v2",
        "ranges_per_partition": 2,
        **settings,
    }
    given |= {"repartition_purge_interval_ms": 1000, "connect_timeout_ms": 20_000}
    return counting.app(folder, login=user, **given)


def test_an_application_runs_with_exactly_the_acls_that_the_command_prints(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    """Exactly: the broker refuses it only the search for hanging transactions; and each
    ACL is needed (below).
    """
    counting = made(secured)
    user = secured.user(counting.application, listed(counting))
    for total in (1, 2):
        with running(counting, tmp_path, user) as app:
            counting.write(["a", "b", "a"])
            await_table(app, {"a": 2 * total, "b": total})
    assert secured.refusals(counting.application, counting.sink) == set()


def test_an_application_without_state_or_transactions_runs_with_exactly_the_acls_that_the_command_prints(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    counting = Counting.make(secured)
    builder = StreamsBuilder(counting.application)
    builder.stream(counting.source, key=serdes.text, value=serdes.raw).filter(
        lambda key, _: key != "c"
    ).to(counting.sink)
    passing = replace(counting, topology=builder.build())
    user = secured.user(counting.application, printed(passing.topology))
    with passing.app(tmp_path, login=user, connect_timeout_ms=20_000) as app:
        passing.write(["a", "c", "b"])
        eventually(
            lambda: metric(app, "coopstreams_produced_records_total") == 2,
            60,
            lambda: "nothing was written",
        )
    assert secured.refusals(counting.application, counting.sink) == set()


def test_a_result_that_kafka_refuses_goes_to_the_handler_with_exactly_the_acls_that_the_command_prints(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    counting = Counting.make(secured)
    builder = StreamsBuilder(counting.application)
    stream = builder.stream(
        counting.source,
        key=serdes.text,
        value=serdes.raw,
        timestamp=lambda record: (
            record.timestamp + (86_400_000 if record.key == "ahead" else 0)
        ),
    )
    stream.to(counting.sink)
    passing = replace(counting, topology=builder.build())
    user = secured.user(counting.application, printed(passing.topology))
    with passing.app(
        tmp_path, login=user, production_exception_handler="continue"
    ) as app:
        passing.write(["a", "ahead", "b"])
        eventually(
            lambda: metric(app, "coopstreams_dropped_records_total") == 1,
            60,
            lambda: repr(app._error),
        )


@pytest.mark.slow
def test_a_source_without_an_order_needs_the_acls_of_its_share_group(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    name, source, sink = (
        secured.unique("shared"),
        secured.topic("in"),
        secured.topic("out"),
    )
    builder = StreamsBuilder(name)
    builder.stream(source, key=serdes.text, value=serdes.text, order="none").to(sink)
    topology = builder.build()
    acls = printed(topology)
    for missing in (acl for acl in acls if acl.name == f"{name}-share"):
        user = secured.user(
            f"{name}-{missing.operation}", [acl for acl in acls if acl != missing]
        )
        settings = {**user, "state.dir": str(tmp_path), "connect.timeout.ms": 20_000}
        with pytest.raises(LogError, match=f"(?s)share group {name}-share"):
            CoopStreams(topology, settings).run()
    secured.write(source, [(b"k", b"v")])
    others = [acl for acl in acls if (acl.name, acl.operation) != (sink, "Write")]
    user = secured.user(f"{name}-mute", [*others, Acl("topic", sink, "Describe")])
    for _ in range(6):  # after the fifth delivery the brokers would give the record up
        with pytest.raises(
            AccessDeniedError, match=f"no ACL for Write on the topic {sink}"
        ):
            CoopStreams(
                topology,
                {**user, "state.dir": str(tmp_path), "connect.timeout.ms": 20_000},
            ).run()
    user = secured.user(name, [*acls, Acl("group", f"{name}-share", "Delete")])
    with (
        CoopStreams(topology, {**user, "state.dir": str(tmp_path)}) as app,
        closing(KafkaLog(user)) as cluster,
    ):
        # Until then it may not have joined; and a member that leaves while it joins
        # stays for the brokers' time-out.
        eventually(
            lambda: cluster.end_offset(TopicPartition(sink, 0)) > 0,
            60,
            lambda: f"{app.status()}",
        )
    delete_share_group(user, f"{name}-share")


@pytest.mark.slow
def test_consumers_share_a_partition_with_exactly_the_acls_of_their_page(
    secured: SecuredKafka,
) -> None:
    orders = Orders(secured)
    user = secured.user(
        orders.group, documented(CONSUMER, group=orders.group, source=orders.topic)
    )
    orders.write(200)
    orders.login = user
    consumers = [orders.member(), orders.member()]
    poll_until(lambda: all(consumer.assignment() for consumer in consumers), *consumers)
    for consumer in consumers:
        consumer.commit()
    orders.close()
    assert secured.refusals(orders.group) == set()


@pytest.mark.slow
def test_dead_letters_are_replayed_with_exactly_the_acls_of_their_page(
    secured: SecuredKafka,
) -> None:
    """An ACL for the transactional id of one replay would not fit the next: the one
    that an error names is prefixed.
    """
    dead, source = secured.topic("dead"), secured.topic("in")
    where = {"topic": source.encode(), "partition": b"0", "offset": b"0"}
    why = [(f"__coopstreams.errors.{name}", value) for name, value in where.items()]
    secured.write(dead, [(b"k", b"v")], headers=why)
    acls, who = documented(ERRORS, letters=dead, replayed=source), secured.unique("ann")
    lost = one_of(acls, "transactional id", "-", "Write")
    user = secured.user(who, [acl for acl in acls if acl != lost])
    with closing(KafkaLog(user)) as cluster:
        with pytest.raises(AccessDeniedError) as caught:
            replay(cluster, user, dead, Wanted())
        (command,) = re.findall(r"kafka-acls\.sh .*", str(caught.value))
        assert adding(f"User:{who}", [lost]) == command
        secured.allow(who, [lost])
        assert [letter.value for letter in ahead(cluster, user, dead)] == [b"v"]
        assert replay(cluster, user, dead, Wanted()).written == 1
    # Its consumer asks for the coordinator of a group that it never joins, and does
    # without the answer.
    refused = secured.refusals(who) - {"DESCRIBE Group:LITERAL:coopstreams"}
    assert [one for one in refused if "TransactionalId" not in one] == []


COMMITS = "__individual_commit_offsets"
STOPS = [
    ("topic", "in", "Read"),
    ("topic", "out", "Write"),
    ("topic", "-", "Read"),
    ("topic", "-", "Write"),
    ("topic", COMMITS, "Read"),
    ("topic", COMMITS, "Write"),
    ("group", "", "Read"),
    ("transactional id", "-", "Write"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "operation"),
    [*STOPS, ("topic", "in", "DescribeConfigs"), ("topic", "-", "Create")],
)
def test_an_acl_that_is_missing_at_the_start_is_named(
    secured: SecuredKafka, tmp_path: Path, kind: str, name: str, operation: str
) -> None:
    counting, lost, user = made_without(secured, kind, name, operation)
    counting.write(["a", "b"])
    names_what_is_missing(failure_of(running(counting, tmp_path, user)), counting, lost)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "operation"), STOPS)
def test_an_acl_that_is_taken_away_while_it_runs_is_named(
    secured: SecuredKafka, tmp_path: Path, kind: str, name: str, operation: str
) -> None:
    counting, lost, user = made_without(secured, kind, name, operation)
    secured.allow(counting.application, [lost])
    with pytest.raises(CoopStreamsError) as caught:
        lose(secured, counting, running(counting, tmp_path, user), lost)
    names_what_is_missing(caught.value, counting, lost)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "operation"),
    [
        ("topic", "-", "Delete"),
        ("topic", "-", "DescribeConfigs"),
        ("topic", COMMITS, "DescribeConfigs"),
    ],
)
def test_an_acl_that_it_can_do_without_is_a_warning(
    secured: SecuredKafka,
    tmp_path: Path,
    kind: str,
    name: str,
    operation: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting, lost, user = made_without(secured, kind, name, operation)
    with caplog.at_level(logging.WARNING):
        for total in (1, 2):
            with running(counting, tmp_path / str(total), user) as app:
                counting.write(["a", "b"])
                await_table(app, {"a": total, "b": total})
                eventually(
                    lambda: lost.operation in caplog.text, 60, lambda: caplog.text
                )
    told = [
        record.getMessage()
        for record in caplog.records
        if lost.operation in record.getMessage()
    ]
    print(told)
    assert (
        f"User:{counting.application} (SCRAM-SHA-512) has no ACL for {operation} on the topic"
        in told[0]
    )


def one_of(acls: list[Acl], kind: str, name: str, operation: str) -> Acl:
    """Return the only ACL of this kind and operation whose resource contains this text."""
    (found,) = [
        acl
        for acl in acls
        if (acl.kind, acl.operation) == (kind, operation) and fits(name, acl)
    ]
    return found


def fits(name: str, acl: Acl) -> bool:
    """Whether an ACL matches: prefixed ones by a dash, topics by their names in the
    test.
    """
    return (
        acl.prefixed if name == "-" else not acl.prefixed and acl.name.startswith(name)
    )


def made_without(
    secured: SecuredKafka, kind: str, name: str, operation: str
) -> tuple[Counting, Acl, dict[str, Any]]:
    """Return an application, one ACL that it needs, and a user that has all its other
    ACLs. The user may describe what it may not read or write.
    """
    counting = made(secured)
    lost = one_of(listed(counting), kind, name, operation)
    others = [acl for acl in listed(counting) if acl != lost]
    return (
        counting,
        lost,
        secured.user(
            counting.application, [*others, replace(lost, operation="Describe")]
        ),
    )


def names_what_is_missing(error: BaseException, counting: Counting, lost: Acl) -> None:
    print(type(error).__name__, error)
    assert isinstance(error, CoopStreamsError)
    who = f"User:{counting.application}"
    lacks = re.compile(
        rf"{re.escape(who)} \(SCRAM-SHA-512\) has no ACL for {lost.operation} on (?:the {lost.kind}|one of the topics) "
        rf"([^.]*)\. Allow it: kafka-acls\.sh .* --operation {lost.operation} "
        rf".*--{lost.kind.replace(' ', '-')} {re.escape(lost.name)}"
    )
    found = lacks.search(str(error))
    assert found is not None
    assert lost.name in found[1]
    assert f"--add --allow-principal {who} " in found[0]


def lose(
    secured: SecuredKafka, counting: Counting, app: CoopStreams, lost: Acl
) -> None:
    """Take an ACL from a running application; return its error when it has ended."""
    with app:
        await_table(app, counting.write(["a", "b"]))
        secured.take_away(counting.application, lost)
        counting.write(["a", "c"])
        eventually(
            lambda: app._error is not None, 90, lambda: "it runs on, or stands still"
        )


def test_who_may_not_see_the_policy_is_free(
    secured: SecuredKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting = made(secured)
    with (
        closing(KafkaLog(secured.settings)) as cluster,
        closing(PolicyTopic(cluster)) as policy,
    ):
        policy.set("accept.range.fetch", False, counting.source)
        resolved = resolve_topology(
            cluster,
            counting.topology,
            Config.of(secured.config(tmp_path), counting.application),
        )
        with closing(Restrictions(cluster, lambda: resolved)) as seen:
            seen.look()
            assert not seen.policy.accepts_range_fetch(counting.source)
        policy.set("accept.range.fetch", None, counting.source)
    with (
        caplog.at_level(logging.WARNING),
        closing(KafkaLog(secured.user("nobody", []))) as hidden,
        closing(Restrictions(hidden, lambda: resolved)) as unseen,
    ):
        unseen.look()
        assert unseen.policy == Policy()
    assert caplog.text == ""


def test_a_topic_that_brokers_hide_is_named(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    """Without Describe, brokers answer as if the topic did not exist."""
    counting = made(secured)
    acls = [acl for acl in listed(counting) if acl.name != counting.source]
    error = failure_of(
        running(counting, tmp_path, secured.user(counting.application, acls))
    )
    assert isinstance(error, LogError)
    said = f"User:{counting.application} (SCRAM-SHA-512) has no ACL for Describe, which Read and Write include, on the "
    assert f"{said}topic {counting.source}. Allow it: kafka-acls.sh" in str(error)


def test_a_wrong_password(secured: SecuredKafka, tmp_path: Path) -> None:
    counting = made(secured)
    user = secured.user(counting.application, ()) | {"sasl.password": "xyzzy"}
    error = str(failure_of(running(counting, tmp_path, user)))
    print(error)
    assert (
        f"The brokers do not let in User:{counting.application} (SCRAM-SHA-512): check"
        in error
    )
    assert "xyzzy" not in error


def test_a_broker_that_is_not_trusted(secured: SecuredKafka, tmp_path: Path) -> None:
    counting = made(secured)
    (tmp_path / "other.pem").write_bytes(broker_certificates.authority().certificate)
    user = secured.settings | {"ssl.ca.location": str(tmp_path / "other.pem")}
    error = str(failure_of(running(counting, tmp_path, user)))
    print(error)
    assert "certificate verify failed" in error
    assert "Check ssl.ca.location" in error


def test_a_broker_under_another_name_than_in_its_certificate(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    with another_name(secured, tmp_path) as address:
        counting = made(secured)
        user = secured.settings | {"bootstrap.servers": address}
        error = str(failure_of(running(counting, tmp_path, user)))
    print(error)
    assert "certificate verify failed" in error
    assert "that bootstrap.servers has the names that are in them" in error


@contextmanager
def another_name(secured: SecuredKafka, folder: Path) -> Iterator[str]:
    """Yield the address of a server with a certificate of the same authority for
    another host; it only shakes hands.
    """
    root = broker_certificates.Issued(
        secured.secured.authority.read_bytes(),
        (secured.secured.folder / "ca.key").read_bytes(),
    )
    issued = broker_certificates.issue(root, "broker", ["kafka.example"])
    (folder / "pair.pem").write_bytes(issued.key + issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pair.pem")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                context.wrap_socket(self.request, server_side=True).close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
