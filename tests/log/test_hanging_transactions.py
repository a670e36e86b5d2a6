"""A hanging transaction on a real broker: ended as it was decided, or refused."""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from rich.console import Console

from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.process import free_port
from coopstreams.group.admin import GroupAdmin
from coopstreams.log.kafka.log import KafkaLog
from coopstreams.log.kafka.writer import KafkaWriter
from coopstreams.log.log import TopicSpec
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.errors import LogError
from tests.conftest import download_kafka
from tests.log.open_transactions import UNVERIFIED, Raw
from tests.log.reading import PATIENCE_S, arrives, read_all, values

pytestmark = pytest.mark.broker

_numbers = itertools.count()


@dataclass
class Setting:
    """A broker, and a transactional id whose last transaction ended."""

    settings: dict[str, str]
    log: KafkaLog
    raw: Raw
    name: str = field(default_factory=lambda: f"hanging-{next(_numbers)}")
    """The name of the transactional id, and of a group."""

    def __post_init__(self) -> None:
        self.told, self.forgotten, self.source = (
            TopicPartition(f"{self.name}-{topic}", 0)
            for topic in ("told", "forgotten", "source")
        )

    def create_topics(self, log: KafkaLog) -> None:
        log.create_topics(
            [TopicSpec(at.topic, 1) for at in (self.told, self.forgotten, self.source)]
        )

    def writer(self) -> KafkaWriter:
        """Take over the id, as a restarted process does."""
        return self.log.writer(
            self.name, lambda: [self.told.topic, self.forgotten.topic]
        )

    def last_transaction(self, *, commit: bool) -> None:
        """End a transaction without its markers in one partition and in the offsets of
        a group.
        """
        writer = self.log.writer(self.name)
        write(writer, self.told, "before")
        if commit:
            writer.commit(PATIENCE_S)
        else:
            writer.abort()
        self.forget([b"first", b"second"])
        self.raw.send_offset(self.name, self.name, self.source, 7)
        writer.close()

    def forget(self, values: list[bytes]) -> None:
        """Write records of a transaction unknown to its coordinator."""
        self.raw.produce(self.name, self.forgotten, values)

    def committed(self) -> int | None:
        """Return the group's offset."""
        with GroupAdmin(self.settings, self.name, timeout_s=30) as group:
            found = group.committed([self.source])[self.source]
        return found and found[0]


@pytest.fixture(scope="module")
def bootstrap(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[str]:
    console, settings = (
        download_kafka(request),
        {"broker.session.timeout.ms": "60000", **UNVERIFIED},
    )
    with KafkaBroker(
        tmp_path_factory.mktemp("unverified"), settings=settings, console=console
    ) as broker:
        yield broker.bootstrap


@pytest.fixture
def setting(bootstrap: str) -> Iterator[Setting]:
    settings = {"bootstrap.servers": bootstrap}
    log, raw = KafkaLog(settings), Raw(bootstrap)
    found = Setting(settings, log, raw)
    found.create_topics(log)
    yield found
    raw.close()
    log.close()


def write(writer: KafkaWriter, partition: TopicPartition, value: str) -> None:
    writer.begin()
    writer.append(
        partition.topic, [b"k"], [value.encode()], [1], partitions=partition.partition
    )
    writer.flush(PATIENCE_S)


@pytest.mark.ci
def test_what_was_committed_is_committed_everywhere_before_its_id_is_taken_over(
    setting: Setting,
) -> None:
    setting.last_transaction(commit=True)
    writer = setting.writer()
    assert setting.committed() == 7
    write(writer, setting.forgotten, "of the next one")
    writer.abort()
    writer.close()
    assert values(read_all(setting.log, setting.forgotten)) == ["first", "second"]


def test_what_was_aborted_is_aborted_everywhere_before_its_id_is_taken_over(
    setting: Setting,
) -> None:
    setting.last_transaction(commit=False)
    writer = setting.writer()
    assert setting.committed() is None
    write(writer, setting.forgotten, "of the next one")
    writer.commit(PATIENCE_S)
    writer.close()
    arrives(setting.log, setting.forgotten, ["of the next one"])


def test_an_id_that_was_initialised_since_had_its_last_transaction_aborted(
    setting: Setting,
) -> None:
    writer = setting.writer()
    write(writer, setting.told, "void")
    setting.raw.init(
        setting.name
    )  # as by a member that ends the transactions of dead members
    setting.forget([b"void"])
    writer.close()
    writer = setting.writer()
    write(writer, setting.forgotten, "counts")
    writer.commit(PATIENCE_S)
    writer.close()
    arrives(setting.log, setting.forgotten, ["counts"])
    assert values(read_all(setting.log, setting.told)) == []


def test_what_hangs_of_an_id_that_nobody_uses_any_more_is_ended_by_others(
    setting: Setting,
) -> None:
    setting.last_transaction(commit=True)
    topics = [setting.told.topic, setting.forgotten.topic]
    setting.log.settle(lambda name: name != setting.name, topics)
    assert values(read_all(setting.log, setting.forgotten)) == [], (
        "of a member that lives"
    )
    setting.log.settle(lambda name: name == setting.name, topics)
    assert values(read_all(setting.log, setting.forgotten)) == ["first", "second"]
    assert setting.committed() == 7


@pytest.mark.slow
def test_who_may_not_finish_it_refuses_with_the_cure(tmp_path: Path) -> None:
    """The application logs in as `app`, which has all ACLs except the one on the
    cluster that the cure needs.
    """
    outer, inner, controller = free_port(), free_port(), free_port()
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_app="secret";'
    settings = {
        **UNVERIFIED,
        "listeners": f"APP://127.0.0.1:{outer},INNER://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"APP://127.0.0.1:{outer},INNER://127.0.0.1:{inner}",
        "listener.security.protocol.map": "APP:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
        "listener.name.app.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.app.plain.sasl.jaas.config": login,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(
        tmp_path,
        port=inner,
        controller_port=controller,
        settings=settings,
        console=Console(quiet=True),
    ):
        root = {"bootstrap.servers": f"127.0.0.1:{inner}"}
        app = {
            "bootstrap.servers": f"127.0.0.1:{outer}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "app",
            "sasl.password": "secret",
        }
        allow(
            root, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP
        )
        log, raw = KafkaLog(app), Raw(root["bootstrap.servers"])
        setting = Setting(app, log, raw)
        setting.create_topics(KafkaLog(root))
        setting.last_transaction(commit=True)
        with pytest.raises(
            LogError,
            match=r"was committed, but .*-forgotten-0 \(from offset 0\).* KAFKA-20734.*--operation ClusterAction",
        ) as raised:
            setting.writer()
        assert not raised.value.retryable
        assert raw.told(setting.name).state == "CompleteCommit"
        allow(
            root,
            ResourceType.BROKER,
            operation=AclOperation.CLUSTER_ACTION,
            name="kafka-cluster",
        )
        setting.writer().close()
        assert values(read_all(log, setting.forgotten)) == ["first", "second"]
        raw.close()
        log.close()


def allow(
    settings: dict[str, str],
    *kinds: ResourceType,
    operation: AclOperation = AclOperation.ALL,
    name: str = "*",
) -> None:
    """Allow `app` this operation on resources of these kinds."""
    acls = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            "User:app",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind in kinds
    ]
    admin = AdminClient({**settings})
    for answer in admin.create_acls(acls).values():
        answer.result(60)
