"""coopstreams: stateful stream processing on Kafka, in which several shared tasks own
key ranges of one partition.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coopstreams.common.config import Config
    from coopstreams.common.extractors import (
        fail_on_invalid_timestamp,
        log_and_skip_on_invalid_timestamp,
        use_partition_time_on_invalid_timestamp,
        wallclock_timestamp,
    )
    from coopstreams.instance.coop_streams import CoopStreams
    from coopstreams.query.client import AsyncQueryClient, QueryClient
    from coopstreams.sinks.postgres import PostgresSink
    from coopstreams.state.engine import Change, Engine
    from coopstreams.tasks.lifecycle import (
        RestoreListener,
        StreamsState,
        StreamThreadExceptionResponse,
    )
    from coopstreams.topology import errors, serdes
    from coopstreams.topology.aggregates import (
        AggregateFunction,
        count,
        count_distinct,
        first,
        last,
        max_,
        mean,
        min_,
        quantile,
        sum_,
        top_,
    )
    from coopstreams.topology.calls import CircuitBreaker, Retry
    from coopstreams.topology.compile.processor_stores import (
        KeyValueStore,
        SessionStore,
        VersionedStore,
        WindowStore,
    )
    from coopstreams.topology.dsl.branches import BranchedKStream
    from coopstreams.topology.dsl.builder import StreamsBuilder
    from coopstreams.topology.dsl.cogrouped import CogroupedKStream
    from coopstreams.topology.dsl.global_tables import GlobalKTable
    from coopstreams.topology.dsl.grouped import KGroupedStream, KGroupedTable
    from coopstreams.topology.dsl.kstream import KStream
    from coopstreams.topology.dsl.ktable import KTable
    from coopstreams.topology.dsl.materialized import Materialized
    from coopstreams.topology.dsl.topology_builder import TopologyBuilder
    from coopstreams.topology.dsl.windowed import (
        SessionWindowedKStream,
        TimeWindowedKStream,
    )
    from coopstreams.topology.errors import QueryError
    from coopstreams.topology.external_sinks import (
        ExternalSink,
        SinkPartition,
        SinkRecord,
        SinkSession,
    )
    from coopstreams.topology.failures import Failure
    from coopstreams.topology.fields import (
        aggregate,
        coalesce,
        concat,
        field,
        key,
        left,
        lit,
        right,
        row,
        value,
        when,
    )
    from coopstreams.topology.graph.topology import Topology
    from coopstreams.topology.join_windows import JoinWindows
    from coopstreams.topology.keys import partition_of
    from coopstreams.topology.processors import (
        CallContext,
        OwnRow,
        Processor,
        ProcessorContext,
        Punctuation,
        RecordMetadata,
        key_value_store,
        session_store,
        versioned_store,
        window_store,
    )
    from coopstreams.topology.records import Record, TimestampedRecord
    from coopstreams.topology.serdes import Serde, Windowed
    from coopstreams.topology.suppression import until_time_limit, until_window_closes
    from coopstreams.topology.windows import (
        SessionWindows,
        SlidingWindows,
        TimeWindows,
        UnlimitedWindows,
        Windows,
    )

__all__ = [
    "AggregateFunction",
    "AsyncQueryClient",
    "BranchedKStream",
    "CallContext",
    "Change",
    "CircuitBreaker",
    "CogroupedKStream",
    "Config",
    "CoopStreams",
    "Engine",
    "ExternalSink",
    "Failure",
    "GlobalKTable",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeyValueStore",
    "Materialized",
    "OwnRow",
    "PostgresSink",
    "Processor",
    "ProcessorContext",
    "Punctuation",
    "QueryClient",
    "QueryError",
    "Record",
    "RecordMetadata",
    "RestoreListener",
    "Retry",
    "Serde",
    "SessionStore",
    "SessionWindowedKStream",
    "SessionWindows",
    "SinkPartition",
    "SinkRecord",
    "SinkSession",
    "SlidingWindows",
    "StreamThreadExceptionResponse",
    "StreamsBuilder",
    "StreamsState",
    "TimeWindowedKStream",
    "TimeWindows",
    "TimestampedRecord",
    "Topology",
    "TopologyBuilder",
    "UnlimitedWindows",
    "VersionedStore",
    "WindowStore",
    "Windowed",
    "Windows",
    "aggregate",
    "coalesce",
    "concat",
    "count",
    "count_distinct",
    "errors",
    "fail_on_invalid_timestamp",
    "field",
    "first",
    "key",
    "key_value_store",
    "last",
    "left",
    "lit",
    "log_and_skip_on_invalid_timestamp",
    "max_",
    "mean",
    "min_",
    "partition_of",
    "quantile",
    "right",
    "row",
    "serdes",
    "session_store",
    "sum_",
    "top_",
    "until_time_limit",
    "until_window_closes",
    "use_partition_time_on_invalid_timestamp",
    "value",
    "versioned_store",
    "wallclock_timestamp",
    "when",
    "window_store",
]


_HOME = {
    name: module
    for module, names in {
        "coopstreams.common.config": "Config",
        "coopstreams.common.extractors": "fail_on_invalid_timestamp log_and_skip_on_invalid_timestamp "
        "use_partition_time_on_invalid_timestamp wallclock_timestamp",
        "coopstreams.instance.coop_streams": "CoopStreams",
        "coopstreams.sinks.postgres": "PostgresSink",
        "coopstreams.state.engine": "Change Engine",
        "coopstreams.tasks.lifecycle": "RestoreListener StreamThreadExceptionResponse StreamsState",
        "coopstreams.topology.aggregates": "AggregateFunction count count_distinct first last max_ mean min_ quantile sum_ "
        "top_",
        "coopstreams.topology.calls": "CircuitBreaker Retry",
        "coopstreams.topology.compile.processor_stores": "KeyValueStore SessionStore VersionedStore WindowStore",
        "coopstreams.topology.dsl.branches": "BranchedKStream",
        "coopstreams.topology.dsl.builder": "StreamsBuilder",
        "coopstreams.topology.dsl.cogrouped": "CogroupedKStream",
        "coopstreams.topology.dsl.global_tables": "GlobalKTable",
        "coopstreams.topology.dsl.grouped": "KGroupedStream KGroupedTable",
        "coopstreams.topology.dsl.kstream": "KStream",
        "coopstreams.topology.dsl.ktable": "KTable",
        "coopstreams.topology.dsl.materialized": "Materialized",
        "coopstreams.topology.dsl.topology_builder": "TopologyBuilder",
        "coopstreams.topology.dsl.windowed": "SessionWindowedKStream TimeWindowedKStream",
        "coopstreams.topology.errors": "QueryError",
        "coopstreams.topology.failures": "Failure",
        "coopstreams.topology.fields": "aggregate coalesce concat field key left lit right row value when",
        "coopstreams.topology.graph.topology": "Topology",
        "coopstreams.topology.join_windows": "JoinWindows",
        "coopstreams.topology.keys": "partition_of",
        "coopstreams.topology.processors": "CallContext OwnRow Processor ProcessorContext Punctuation "
        "RecordMetadata key_value_store session_store versioned_store window_store",
        "coopstreams.topology.records": "Record TimestampedRecord",
        "coopstreams.topology.serdes": "Serde Windowed",
        "coopstreams.topology.external_sinks": "ExternalSink SinkPartition SinkRecord SinkSession",
        "coopstreams.topology.suppression": "until_time_limit until_window_closes",
        "coopstreams.topology.windows": "SessionWindows SlidingWindows TimeWindows UnlimitedWindows Windows",
    }.items()
    for name in names.split()
}
"""The module of each public name, imported when the name is first used. So building or
testing a topology loads no Kafka client, and a command handles Ctrl-C before it has
imported anything.
"""


def __getattr__(name: str) -> Any:
    if name in ("AsyncQueryClient", "QueryClient"):
        try:
            from coopstreams.query import client
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{name} needs the extra `http` ({error}): pip install 'coopstreams[http]'",
                name=error.name,
            ) from error
        return getattr(client, name)
    if name in ("errors", "serdes"):
        return importlib.import_module(f"coopstreams.topology.{name}")
    if name in _HOME:
        found = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
