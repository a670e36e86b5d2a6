"""Kafka's jars: downloaded once, a failure says why and spoils nothing."""

from pathlib import Path

import pytest
from rich.console import Console

from coopstreams.dev.jars import KAFKA, kafka_jars, proxy_options
from coopstreams.dev.java import find_java
from coopstreams.topology.errors import DevError

NOBODY = "http://127.0.0.1:9/"


def test_without_a_network_the_error_has_the_cause_and_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPSTREAMS_CACHE", str(tmp_path))
    with pytest.raises(DevError) as raised:
        kafka_jars(find_java(), Console(quiet=True), NOBODY)
    message = str(raised.value)
    assert f"Apache Kafka {KAFKA} could not be downloaded from {NOBODY}" in message
    assert "Connection refused" in message
    assert "HTTPS_PROXY" in message
    assert not (tmp_path / f"kafka-{KAFKA}").exists()


def test_jars_that_are_there_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOPSTREAMS_CACHE", str(tmp_path))
    jars = tmp_path / f"kafka-{KAFKA}"
    jars.mkdir()
    assert kafka_jars(find_java(), Console(quiet=True), NOBODY) == jars


def test_the_proxy_of_the_environment_is_told_to_java() -> None:
    environment = {"https_proxy": "http://proxy.example:3128", "NO_PROXY": "localhost, .example.org"}
    assert proxy_options(environment) == ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128", "-Dhttp.nonProxyHosts=localhost|*.example.org"]
    assert proxy_options({}) == []
