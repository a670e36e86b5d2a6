"""Global tables in a backfill: each task reads their topics up to the cut before its
first record, as an instance does.

Invariant: all tasks of a run see the same rows, those at the cut in the plan. The wall
clock of a global store's processor stays at 0, as for any processor in a backfill.
Turned down: Spark's broadcast (missing in Spark Connect; the rows would go through the
driver), and a task that follows the topic while it works (live, the order between a
global table and the records is random; a random order cannot be reproduced).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coopstreams.spark.history.arrow_rows import columns_of
from coopstreams.spark.history.kafka_source import KafkaParts, read_options
from coopstreams.state.global_table import GlobalRows
from coopstreams.state.global_updates import rows_of
from coopstreams.topology.columns import TopicPartition
from coopstreams.topology.failures import OnFailure
from coopstreams.topology.graph.nodes import Function, GlobalTable

Cut = Mapping[str, Mapping[int, tuple[int, int]]]


def read_rows(
    settings: Mapping[str, Any],
    tables: Sequence[GlobalTable],
    cut: Cut,
    on_failure: OnFailure,
    extractor: Function | None,
) -> dict[str, GlobalRows]:
    """Return the rows of global tables at the cut, by store. `on_failure` handles
    records that the serde cannot read.

    Raises:
        LogError: a topic has lost records since the cut was taken, or a transaction is
        open below it.
    """
    found = {table.store.name: rows_of(table, lambda: 0, extractor) for table in tables}
    for table in tables:
        bounds = {
            TopicPartition(table.topic, number): each
            for number, each in cut[table.topic].items()
        }
        parts = KafkaParts(read_options(settings, bounds))
        for part in parts.partitions():
            for rows in parts.read(part):
                source = TopicPartition(
                    table.topic, rows.column("partition")[0].as_py()
                )
                found[table.store.name].apply(
                    source,
                    columns_of(rows, rows.column("offset").to_pylist()),
                    on_failure,
                )
    return found
