"""Metrics in the format of Prometheus."""

from __future__ import annotations

from typing import get_type_hints

from prometheus_client.parser import text_string_to_metric_families

from coopstreams.common.metrics import Metrics
from coopstreams.status.reasons import HEALTH_CODES, HealthCode, Reason
from coopstreams.topology.keys import WHOLE, KeyRange
from coopstreams.topology.task_id import TaskId

LOW, HIGH = (
    TaskId(0, 0, KeyRange.of_groups(0, 127)),
    TaskId(0, 0, KeyRange.of_groups(128, 255)),
)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_threads_report_is_what_prometheus_reads() -> None:
    metrics = Metrics("words", "i-1")
    metrics.consumed(LOW, "lines", 10)
    metrics.processed(LOW, 7)
    metrics.processed(LOW, 3)
    metrics.produced(LOW, "counts", 4)
    metrics.dropped(LOW, "windowed", "late", 2)
    metrics.dead_lettered(LOW, 3)
    metrics.dead_lettered(None)
    metrics.lag(LOW, "lines", 5)
    metrics.restored(LOW, "counts-store", 100, remaining=50)
    metrics.committed(0, 0.004)
    metrics.committed(0, 1.5)
    metrics.latency(0, 0.02)
    metrics.aborted(1)
    metrics.rebalanced(8)
    metrics.tasks({"running": 2, "restoring": 1})
    metrics.answered("/v1/stores", 200, 0.01)
    read = samples(metrics)
    task, part = ("task", "0_0[0..127]"), ("subtopology", "0")
    assert read["coopstreams_consumed_records_total", (part, ("topic", "lines"))] == 10
    assert read["coopstreams_processed_records_total", (part,)] == 10
    assert read["coopstreams_produced_records_total", (part, ("topic", "counts"))] == 4
    assert (
        read[
            "coopstreams_dropped_records_total",
            (("node", "windowed"), ("reason", "late"), part),
        ]
        == 2
    )
    assert read["coopstreams_dead_letters_total", (part,)] == 3
    assert read["coopstreams_dead_letters_total", (("subtopology", "global"),)] == 1
    assert (
        read[
            "coopstreams_record_e2e_latency_seconds_bucket",
            (("le", "0.025"), ("subtopology", "0")),
        ]
        == 1
    )
    assert read["coopstreams_lag_records", (task, ("topic", "lines"))] == 5
    assert (
        read["coopstreams_restored_records_total", (("store", "counts-store"), part)]
        == 100
    )
    assert (
        read["coopstreams_restore_remaining_records", (("store", "counts-store"), task)]
        == 50
    )
    assert read["coopstreams_commits_total", (("thread", "0"),)] == 2
    assert (
        read[
            "coopstreams_commit_latency_seconds_bucket",
            (("le", "0.005"), ("thread", "0")),
        ]
        == 1
    )
    assert read["coopstreams_commit_latency_seconds_count", (("thread", "0"),)] == 2
    assert read["coopstreams_aborts_total", (("thread", "1"),)] == 1
    assert read["coopstreams_rebalances_total", ()] == 1
    assert read["coopstreams_generation", ()] == 8
    assert read["coopstreams_tasks", (("state", "running"),)] == 2
    assert (
        read[
            "coopstreams_http_requests_total",
            (("route", "/v1/stores"), ("status", "200")),
        ]
        == 1
    )
    assert (
        read[
            "coopstreams_instance_info", (("application", "words"), ("instance", "i-1"))
        ]
        == 1
    )


def test_a_task_that_closes_takes_its_gauges_along_and_no_count() -> None:
    metrics = Metrics("words", "i-1")
    for task in (LOW, HIGH):
        metrics.processed(task, 1)
        metrics.lag(task, "lines", 9)
        metrics.restored(task, "counts", 1)
    metrics.task_closed(LOW)
    metrics.task_closed(TaskId(5, 5, WHOLE))
    labels = {dict(labels).get("task") for _, labels in samples(metrics)} - {None}
    assert labels == {"0_0[128..255]"}
    assert (
        samples(metrics)["coopstreams_processed_records_total", (("subtopology", "0"),)]
        == 2
    )
    metrics.processed(LOW, 2)
    assert (
        samples(metrics)["coopstreams_processed_records_total", (("subtopology", "0"),)]
        == 4
    )


def test_a_gauge_that_is_set_while_its_task_closes_is_shown_when_it_is_set_again() -> (
    None
):
    """The watcher may set a lag while the control thread closes the task, and the task
    may be opened again.
    """
    metrics = Metrics("words", "i-1")

    class Closing(TaskId):
        def __str__(self) -> str:
            if not shown:
                shown.append("")
                metrics.lag(task, "lines", 8)
            return "closing"

    shown, task = [""], Closing(0, 0, WHOLE)
    metrics.lag(task, "lines", 9)
    shown.clear()
    metrics.task_closed(task)
    metrics.lag(task, "lines", 7)
    assert (
        samples(metrics)[
            "coopstreams_lag_records", (("task", "closing"), ("topic", "lines"))
        ]
        == 7
    )


def test_states_without_tasks_are_zero_and_instances_share_nothing() -> None:
    one, other = Metrics("words", "i-1"), Metrics("words", "i-2")
    one.tasks({"running": 3})
    one.tasks({"closing": 1})
    assert samples(one)["coopstreams_tasks", (("state", "running"),)] == 0
    assert samples(one)["coopstreams_tasks", (("state", "closing"),)] == 1
    assert samples(other)["coopstreams_tasks", (("state", "closing"),)] == 0


def test_every_code_that_a_reason_can_have_is_a_series() -> None:
    """The type check refuses a reason with another code."""
    assert get_type_hints(Reason)["code"] == HealthCode
    metrics = Metrics("words", "i-1")
    metrics.health(dict.fromkeys(HEALTH_CODES, 2))
    read = samples(metrics)
    assert {
        read["coopstreams_health_reasons", (("code", code),)] for code in HEALTH_CODES
    } == {2}
