"""The settings of a one-node Kafka for development: pure, a mapping and its text.

One node is broker and controller. Whatever Kafka copies to three brokers by default is kept once, and pools are sized for two cores.
"""

from collections.abc import Mapping
from pathlib import Path


def broker_settings(folder: Path, port: int, controller_port: int, changes: Mapping[str, str]) -> dict[str, str]:
    """Return the server properties of a node that keeps its data in `folder`; `changes` win."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(folder / "log"),
        # A topic is made by who means it: a misspelt name must be an error.
        "auto.create.topics.enable": "false",
        # Records carry the time of their events. By that clock, flights of 2013 would be deleted at once.
        "log.retention.ms": "-1",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Tests of lost members need not wait for the six seconds that a busy cluster wants.
        "group.min.session.timeout.ms": "1000",
        # After a kill, the controller takes the broker back when its old session is over.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "16777216",
    } | dict(changes)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items())
