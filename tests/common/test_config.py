"""Settings: their sources, which source wins, and the errors for invalid ones."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from coopstreams import CoopStreams, StreamsBuilder, serdes
from coopstreams.common.config import SETTINGS, Config, http_values
from coopstreams.common.setting_sources import settings_of
from coopstreams.consumer.consumer_settings import ConsumerConfig
from coopstreams.topology.errors import ConfigError

KAFKA = {"bootstrap.servers": "kafka:9092"}


def test_the_later_source_wins_and_each_fills_in_what_the_others_leave_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        'bootstrap.servers = "file:1"\ninstance = 1\n[commit]\ninterval.ms = 10\n[sasl]\nmechanism = "PLAIN"\n'
    )
    environment = {
        "COOPSTREAMS_INSTANCE": "2",
        "COOPSTREAMS_COMMIT_INTERVAL_MS": "20",
        "COOPSTREAMS_CACHE": "/somewhere",
        "PATH": "/bin",
    }
    settings = settings_of(file, environment, {"instance": 3, "state.dir": None})
    assert settings == {
        "bootstrap.servers": "file:1",
        "instance": 3,
        "commit.interval.ms": "20",
        "sasl.mechanism": "PLAIN",
    }
    config = Config.of(settings, "app")
    assert (config["instance"], config.commit_interval_s, config["state.dir"]) == (
        3,
        0.02,
        "coopstreams-state",
    )
    assert config.client == {
        "bootstrap.servers": "file:1",
        "sasl.mechanism": "PLAIN",
        "consumer.group.id": "app",
    }


def test_a_config_has_every_setting() -> None:
    config = Config.of(KAFKA, "app")
    assert set(config.values) == set(SETTINGS)
    assert config["application.id"] == "app"
    assert Config.of({**KAFKA, "application.id": "mine"})["application.id"] == "mine"


def test_the_application_id_is_the_topologys() -> None:
    same = Config.of({**KAFKA, "application.id": "app"}, "app")
    assert Config.of(same, "app") is same
    for settings in ({**KAFKA, "application.id": "mine"}, Config.of(KAFKA, "mine")):
        with pytest.raises(
            ConfigError,
            match=r'"mine", but the topology was built as "app".*Leave the setting out, or .*StreamsBuilder\("mine"\)',
        ):
            Config.of(settings, "app")


@pytest.mark.parametrize(
    ("guarantee", "interval_s"), [("exactly_once_v2", 0.1), ("at_least_once", 1.0)]
)
def test_the_commit_interval_follows_the_guarantee_unless_it_is_given(
    guarantee: str, interval_s: float
) -> None:
    settings = {**KAFKA, "processing.guarantee": guarantee}
    assert Config.of(settings).commit_interval_s == interval_s
    assert Config.of(settings).exactly_once == (guarantee == "exactly_once_v2")
    assert Config.of({**settings, "commit.interval.ms": 250}).commit_interval_s == 0.25


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"comit.interval.ms": 1},
            '; did you mean "commit.interval.ms"? Settings of one client',
        ),
        ({"isolation.level": "x"}, "carry its prefix: consumer., producer., admin."),
        (
            {"commit.interval.ms": "soon"},
            "commit.interval.ms = 'soon': must be a whole number of at least 1",
        ),
        ({"commit.interval.ms": 0}, "a whole number of at least 1"),
        ({"commit.interval.ms": 1.5}, "a whole number of at least 1"),
        (
            {"commit.interval.ms": True},
            "commit.interval.ms = True: must be a whole number of at least 1",
        ),
        (
            {"commit.interval.ms": None},
            "commit.interval.ms = None: must be a whole number of at least 1",
        ),
        ({"commit.interval.ms": [1]}, "must be a whole number of at least 1"),
        ({"num.stream.threads": 65}, "at least 1 and at most 64"),
        ({"ranges.per.partition": 257}, "at most 256"),
        (
            {"processing.guarantee": "exactly_once"},
            "one of at_least_once, exactly_once_v2",
        ),
        ({"bootstrap.servers": ""}, "a text that is not empty"),
        ({"bootstrap.servers": ["a:1", "b:1"]}, "a text that is not empty"),
        *(
            (
                {"bootstrap.servers": wrong},
                "HOST:PORT of the brokers, separated by commas",
            )
            for wrong in (
                "localhost:port",
                "a:1,b:",
                "a:0",
                "a:65536",
                "a b:1",
                "a:1,",
                "::1:9092",
                "$(KAFKA):9092",
            )
        ),
        *(
            ({"application.server": wrong}, "HOST:PORT, or http(s)://HOST:PORT")
            for wrong in (
                "http//bad host",
                "host",
                "host:http",
                "host:0",
                "ftp://host:1",
                "$(POD).app:80",
                "http://",
            )
        ),
        ({"ensure.explicit.internal.resource.naming": "maybe"}, "true or false"),
        ({"http.listen": "8080"}, "HOST:PORT"),
        ({"http.listen": "host:http"}, "HOST:PORT"),
        ({"heartbeat.interval.ms": 4000}, "at most a third of session.timeout.ms"),
        (
            {"processing.exception.handler": "dead-letter"},
            "errors.dead.letter.queue.topic.name is not set",
        ),
        (
            {"processing.guarantee": "exactly_once_v2", "commit.interval.ms": 8000},
            "at most half of transaction.timeout.ms",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of(KAFKA | settings)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        *(
            {"bootstrap.servers": right}
            for right in (
                "kafka",
                "SASL_SSL://kafka_1:9092, b.c:1",
                "[::1]:9092",
                "10.0.0.1:1",
            )
        ),
        *(
            {"application.server": right}
            for right in (
                "a-0.b:8080",
                "[fe80::1%eth0]:80",
                "https://host",
                "http://h:1/state",
            )
        ),
    ],
)
def test_an_address_is_taken_as_it_is_given(settings: dict[str, str]) -> None:
    checked = Config.of(KAFKA | settings)
    assert {name: checked[name] for name in settings} == settings


@pytest.mark.parametrize("checked", [Config.of, http_values])
@pytest.mark.parametrize(
    ("value", "says"),
    [("x", "must be"), ("${file:/no/such}", "the file cannot be read")],
)
def test_an_error_names_where_its_setting_was_given_last(
    tmp_path: Path,
    checked: Callable[[Mapping[str, Any]], object],
    value: str,
    says: str,
) -> None:
    file, name, variable = (
        tmp_path / "settings.toml",
        "http.max.connections",
        "COOPSTREAMS_HTTP_MAX_CONNECTIONS",
    )
    file.write_text(f'bootstrap.servers = "kafka:1"\n{name} = "{value}"')
    shown = value if "$" in value else repr(value)
    for environment, flags, where in (
        ({}, {}, str(file)),
        ({variable: value}, {}, f"the environment variable {variable}"),
        ({variable: "8"}, {name: value}, "the command line"),
    ):
        with pytest.raises(ConfigError) as caught:
            checked(settings_of(file, environment, flags))
        assert str(caught.value).startswith(f"{name} = {shown} (from {where}): {says}")


def test_an_unknown_setting_of_the_environment_is_named_as_it_is_there() -> None:
    """Kubernetes makes `COOPSTREAMS_PORT` for a Service that is named coopstreams."""
    given = settings_of(None, {"COOPSTREAMS_PORT": "tcp://10.0.0.1:80"}, KAFKA)
    with pytest.raises(
        ConfigError,
        match=r'unknown setting "port" \(from the environment variable COOPSTREAMS_PORT\)',
    ):
        Config.of(given)


def test_without_brokers_it_says_how_to_name_them_or_start_one() -> None:
    with pytest.raises(ConfigError, match="coopstreams dev"):
        Config.of({})


@pytest.mark.parametrize(
    ("text", "read"),
    [("true", True), ("True", True), (True, True), ("false", False), (False, False)],
)
def test_truth_is_read_as_toml_and_the_environment_write_it(
    text: Any, read: bool
) -> None:
    assert (
        Config.of({**KAFKA, "ensure.explicit.internal.resource.naming": text})[
            "ensure.explicit.internal.resource.naming"
        ]
        is read
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read the configuration file"),
        (b"a = ", "is not TOML"),
        (b'a = "\xff"', "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "settings.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        settings_of(file, {}, {})
    assert str(file) in str(caught.value)


NESTED = """
bootstrap.servers = "kafka:9092"
consumer.fetch.wait.max.ms = 20

[commit]
interval.ms = 250

[sasl]
mechanism = "PLAIN"
username = "me"
password = "secret"

[security]
protocol = "SASL_PLAINTEXT"
"""


def test_the_dictionary_of_a_toml_file_has_the_settings_of_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(NESTED)
    of_file = Config.of(settings_of(file, {}, {}), "app")
    read = tomllib.loads(NESTED)
    assert Config.of(read, "app") == of_file
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serdes.text).to("out")
    assert CoopStreams(builder.build(), read).config == of_file
    assert of_file["commit.interval.ms"] == 250


def test_a_consumer_takes_the_dictionary_of_a_toml_file_too() -> None:
    read = tomllib.loads(f'group.id = "g"\n{NESTED}\n[session]\ntimeout.ms = 7000\n')
    taken = ConsumerConfig.of(read)
    assert taken["session.timeout.ms"] == 7000
    assert taken.client["sasl.mechanism"] == "PLAIN"


def test_a_name_in_a_table_is_checked_like_any_other() -> None:
    with pytest.raises(ConfigError, match=r'unknown setting "commit.intervall.ms"'):
        Config.of({**KAFKA, "commit": {"intervall": {"ms": 1}}}, "app")


def test_the_id_of_a_static_member_names_the_process() -> None:
    def static(pattern: str, host: str, instance: int = 0) -> str | None:
        settings = {
            "bootstrap.servers": "kafka:9092",
            "group.instance.id": pattern,
            "instance": instance,
        }
        return Config.of(settings, "app").static_member(host)

    assert Config.of({"bootstrap.servers": "k:9092"}, "app").static_member("h") is None
    assert static("{host}", "orders-0") == "orders-0"
    assert static("w-{ordinal}-{instance}", "orders-12", 3) == "w-12-3"
    with pytest.raises(ConfigError, match=r'"orders" ends without one'):
        static("w-{ordinal}", "orders")
    for wrong in ("", "{hots}", "a b", "ü", "x" * 250, "{", "{0}"):
        with pytest.raises(ConfigError, match=r"group\.instance\.id"):
            static(wrong, "orders-0")
