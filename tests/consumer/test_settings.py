"""The settings of a consumer, checked before anything connects."""

from __future__ import annotations

import pytest

from coopstreams.consumer import CooperativeFetch
from coopstreams.consumer.consumer_settings import ConsumerConfig
from coopstreams.topology.errors import ConfigError, LogError


@pytest.mark.parametrize("name", ["group.id", "group.instance.id"])
@pytest.mark.parametrize("value", ["größe", "a\nb", ""])
def test_an_id_that_no_commit_could_name_is_refused(name: str, value: str) -> None:
    """The first `consume` raised a ValueError."""
    with pytest.raises(ConfigError, match=f"{name} = .*: must be a text"):
        ConsumerConfig.of({"group.id": "g", name: value})


def test_a_session_time_out_that_a_share_group_would_not_obey_is_refused() -> None:
    """The client ignored it: records came back after max.gap.wait.ms."""
    settings = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    with pytest.raises(ConfigError, match=r"session\.timeout\.ms.*max\.gap\.wait\.ms"):
        CooperativeFetch({**settings, "session.timeout.ms": 6000})


@pytest.mark.slow
def test_brokers_that_are_away_are_not_taken_for_too_old_ones() -> None:
    with pytest.raises(LogError, match=r"no Kafka broker at 127\.0\.0\.1:1 answered"):
        CooperativeFetch({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
