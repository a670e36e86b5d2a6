"""The development broker: starts, is reused, stops, and survives the faults of tests."""

import shutil
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from coopstreams.dev.broker import KafkaBroker, cluster_id
from coopstreams.dev.process import BrokerProcess, answers, record, recorded, wait_until
from coopstreams.topology.errors import DevError
from tests.conftest import Kafka

pytestmark = pytest.mark.broker
BrokerFactory = Callable[..., KafkaBroker]


def topics(bootstrap: str) -> set[str]:
    return set(
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        .list_topics(timeout=60)
        .topics
    )


def make_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)


def test_the_shared_broker_makes_topics_with_names_of_their_own(kafka: Kafka) -> None:
    first, second = (
        kafka.topic("same", partitions=3),
        kafka.topic("same", cleanup_policy="compact"),
    )
    assert first != second
    assert {first, second} <= topics(kafka.bootstrap)


def test_a_topic_nobody_made_is_not_made_by_asking_for_it(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
    admin.list_topics("never-made", timeout=60)
    assert "never-made" not in topics(kafka.bootstrap)


def test_a_running_broker_is_used_as_it_is(shared_broker: KafkaBroker) -> None:
    second = KafkaBroker(shared_broker.folder, console=Console(quiet=True))
    assert second.start() is False
    assert second.bootstrap == shared_broker.bootstrap
    assert second.running == shared_broker.running


def test_another_port_than_the_running_one_is_an_error(
    shared_broker: KafkaBroker,
) -> None:
    with pytest.raises(DevError, match=r"already runs on .* at port"):
        KafkaBroker(shared_broker.folder, port=1, console=Console(quiet=True)).start()


def test_settings_reach_the_broker(shared_broker: KafkaBroker) -> None:
    assert (
        "log.cleaner.backoff.ms=1000"
        in (shared_broker.folder / "server.properties").read_text().splitlines()
    )
    assert "log.cleaner.backoff.ms = 1000" in shared_broker.log_file.read_text()


@pytest.mark.slow
def test_a_broker_that_another_process_has_stopped_is_no_longer_there(
    broker_of_own: BrokerFactory,
) -> None:
    first = broker_of_own()
    assert KafkaBroker(first.folder, console=Console(quiet=True)).stop() is True
    assert first.running is None
    assert first.stop() is False


@pytest.mark.slow
def test_topics_and_address_outlive_stop_kill_and_pause(
    broker_of_own: BrokerFactory,
) -> None:
    broker = broker_of_own()
    address = broker.bootstrap
    make_topic(address, "kept")

    broker.restart()
    assert (broker.bootstrap, "kept" in topics(address)) == (address, True)

    broker.kill()
    assert broker.running is None
    assert broker.start() is True
    assert (broker.bootstrap, "kept" in topics(address)) == (address, True)

    broker.pause()
    port = int(address.rpartition(":")[2])
    assert not answers(port, timeout_s=0.5)
    broker.resume()
    assert wait_until(lambda: answers(port), 60)
    broker.pause()
    assert broker.stop() is True  # even if it is paused
    assert broker.running is None


@pytest.mark.slow
def test_the_record_of_a_process_that_is_gone_does_not_count(
    broker_of_own: BrokerFactory,
) -> None:
    broker = broker_of_own()
    left = recorded(broker.folder)
    assert left is not None
    broker.kill()
    # 1 is alive on every machine, and is not a broker
    record(broker.folder, BrokerProcess(1, left.port, left.controller_port))
    assert broker.running is None
    assert broker.stop() is False
    assert broker.start() is True


def test_a_port_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(DevError, match=f"port {port} is in use by another program"):
            KafkaBroker(tmp_path, port=port, console=Console(quiet=True)).start()


def test_settings_of_another_broker_are_not_written_over(
    broker_of_own: BrokerFactory, tmp_path: Path
) -> None:
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/var/lib/kafka\n")
    with pytest.raises(DevError, match=r"server\.properties is not of coopstreams dev"):
        broker_of_own(tmp_path)
    assert config.read_text() == "log.dirs=/var/lib/kafka\n"


@pytest.mark.ci
def test_a_broker_that_ends_at_once_says_why(
    broker_of_own: BrokerFactory, tmp_path: Path
) -> None:
    with pytest.raises(DevError, match=r"num\.io\.threads"):
        broker_of_own(tmp_path, num_io_threads="none")


def test_a_broker_without_security_does_not_become_a_secured_one(
    shared_broker: KafkaBroker, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    shutil.copy(shared_broker.folder / "log" / "meta.properties", tmp_path / "log")
    with pytest.raises(
        DevError, match="has the data of a broker without security, which has no users"
    ):
        KafkaBroker(tmp_path, console=Console(quiet=True), secure=True).start()


@pytest.mark.slow  # downloads another Kafka
def test_a_folder_that_a_newer_kafka_wrote_is_refused_with_the_cure(
    broker_of_own: BrokerFactory,
) -> None:
    newer = broker_of_own(version="4.3.0")
    newer.stop()
    with pytest.raises(
        DevError,
        match=r"4\.2\.1 ended while it started: .*A newer Kafka wrote .*: delete it, or use another folder",
    ):
        broker_of_own(newer.folder)


def test_an_address_before_the_first_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DevError, match="no broker was started"):
        _ = KafkaBroker(tmp_path).bootstrap


def test_a_cluster_id_never_looks_like_an_option() -> None:
    """One random id in 64 would begin with a dash, and the storage tool would refuse
    it.
    """
    assert cluster_id(uuid.UUID(bytes=b"\xf8" + bytes(15))).startswith("_")
