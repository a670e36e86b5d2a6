"""A backfill on a broker with TLS, users and ACLs: with the ACLs of the application,
and without a secret in its output.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coopstreams.spark import Options, backfill, publish, rebuild
from coopstreams.spark.history.sources import kafka_frame
from coopstreams.topology.errors import ConfigError
from tests.broker.counting import Counting, await_table
from tests.broker.secured import SecuredKafka, printed, secured_kafka
from tests.conftest import download_kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SecuredKafka]:
    """Return a secured broker for the tests of this module."""
    with secured_kafka(
        tmp_path_factory.mktemp("secured"), download_kafka(request)
    ) as kafka:
        yield kafka


def test_a_backfill_and_a_rebuild_need_the_acls_of_the_application(
    secured: SecuredKafka, spark: SparkSession, tmp_path: Path
) -> None:
    counting = Counting.make(secured, partitions=2)
    written = counting.write(f"key-{number % 30}" for number in range(900))
    acls = printed(
        counting.topology, processing_guarantee="exactly_once_v2"
    )  # tasks of a run are transactions
    user = secured.user(counting.application, acls)
    options = Options(ranges=2, work=str(tmp_path / "work"), outputs="topic")
    done = backfill(counting.topology, user, spark=spark, options=options)
    assert done.records == 900
    publish(done, counting.topology, user)
    with counting.app(tmp_path / "state", login=user) as app:
        written += counting.write(["key-1", "new"])
        await_table(app, written)
    place = {"snapshots.dir": str(tmp_path / "snapshots")}
    made = rebuild(counting.topology, user | place, spark=spark)
    assert made.kind == "rebuild"
    assert secured.refusals(counting.application, counting.sink) == set()


def test_a_plan_of_spark_does_not_show_the_password(
    secured: SecuredKafka, spark: SparkSession
) -> None:
    topic = secured.topic("secret")
    user = secured.user("reader", ())
    shown = io.StringIO()
    with redirect_stdout(shown):
        kafka_frame(spark, user, topic, {0: (0, 0)}).explain("extended")
    assert "coopstreams" in shown.getvalue()
    assert user["sasl.password"] not in shown.getvalue()


def test_a_function_for_tokens_is_given_by_name(spark: SparkSession) -> None:
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: ("t", 2e9),
    }
    with pytest.raises(
        ConfigError,
        match=r'oauth_cb: the workers of Spark import it\. Write "module:function"',
    ):
        kafka_frame(
            spark, {"bootstrap.servers": "nowhere:1", **login}, "topic", {0: (0, 0)}
        )
