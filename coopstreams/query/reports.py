"""The state of an instance and its group, as plain values for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from coopstreams.common.metrics import Totals
from coopstreams.query.backend import (
    FailureStatus,
    Health,
    Owner,
    Peer,
    Placement,
    Reason,
    Status,
    StoreInfo,
    TaskStatus,
)
from coopstreams.query.formats import show_key
from coopstreams.query.router import KeyLocation, owner_of
from coopstreams.topology.keys import key_group
from coopstreams.topology.task_id import TaskId

Report = dict[str, Any]


def metadata(
    placement: Placement, stores: Mapping[str, StoreInfo], status: Status
) -> Report:
    """Return the instances with their tasks and key ranges.

    Whether an instance is ready, and the states and lags of its tasks, are known of
    this one only, and null of others.
    """
    own = {task.task: task for task in status.tasks}
    kept = _stores_by_subtopology(stores.values())

    def task(instance: Peer, id_: TaskId) -> Report:
        known = own.get(id_) if instance.id == placement.here else None
        return _task_place(id_) | {
            "stores": kept.get(id_.subtopology, []),
            "state": None if known is None else known.state,
            "lag": None if known is None else _lag(known),
        }

    return {
        "application": status.application,
        "generation": placement.generation,
        "here": placement.here,
        "share_groups": [
            {
                "subtopology": share.subtopology,
                "group": share.group,
                "topics": share.topics,
            }
            for share in status.shares
        ],
        "instances": [
            {
                "id": instance.id,
                "url": instance.url,
                "ready": status.health.ready if instance.id == placement.here else None,
                "tasks": [task(instance, id_) for id_ in sorted(instance.tasks)],
            }
            for instance in sorted(
                placement.instances, key=lambda instance: instance.id
            )
        ],
    }


def key_metadata(
    placement: Placement, store: StoreInfo, key: bytes, at: KeyLocation
) -> Report:
    """Return the location and owner of a key; `owner` is null while it has none."""
    owner = owner_of(placement, store, at)
    return {
        "store": store.name,
        "key": show_key(store.key, key),
        "partition": at.partition,
        "key_hash": str(at.hash),
        "key_group": key_group(at.hash),
        "generation": placement.generation,
        "owner": None if owner is None else _owner(owner),
    }


def store_list(
    stores: Mapping[str, StoreInfo],
    sizes: Mapping[str, int] | None,
    unreachable: Iterable[str],
) -> Report:
    """Return the stores; `unreachable` instances are missing from the sizes. None: they
    were not counted.
    """
    return {
        "stores": [
            {
                "name": store.name,
                "kind": store.kind,
                "subtopology": store.subtopology,
                "partitions": store.partitions,
                "key": store.key.name,
                "value": store.value.name,
                "window_ms": store.window_ms,
                "approximate_entries": None
                if sizes is None
                else sizes.get(store.name, 0),
                "misplaced": list(store.misplaced),
            }
            for store in sorted(stores.values(), key=lambda store: store.name)
        ],
        "unreachable": sorted(unreachable),
    }


def health(report: Health) -> Report:
    """Return whether an instance is well, with the reasons why not."""
    return {
        "live": report.live,
        "ready": report.ready,
        "reasons": [_reason(reason) for reason in report.reasons],
    }


def instance_status(placement: Placement, url: str | None, status: Status) -> Report:
    """Return the status of this instance."""
    return {
        "id": placement.here,
        "url": url,
        "state": status.state,
        "generation": placement.generation,
        "uptime_s": round(status.uptime_s, 1),
        **health(status.health),
        "tasks": [
            _task(task) for task in sorted(status.tasks, key=lambda task: task.task)
        ],
        "details": dict(status.details),
        "totals": _totals(status.totals),
        "failures": [_failure(failure) for failure in status.failures],
        "shares": [
            asdict(share) | {"dropped": _dropped(share.dropped)}
            for share in status.shares
        ],
    }


def unreachable_status(instance: Peer, error: Exception) -> Report:
    """Return the last assignment's tasks of an instance that does not answer."""
    return {
        "id": instance.id,
        "url": instance.url,
        "state": "unreachable",
        "live": False,
        "ready": False,
        "reasons": [{"code": "unreachable", "message": str(error), "task": None}],
        "tasks": [
            _task_place(task) | {"state": None} for task in sorted(instance.tasks)
        ],
    }


def _task(status: TaskStatus) -> Report:
    return _task_place(status.task) | {
        "state": status.state,
        "epoch": status.epoch,
        "processed": status.processed,
        "rate": round(status.rate, 1),
        "written": dict(status.written),
        "dropped": _dropped(status.dropped),
        "dead_letters": status.dead_letters,
        "calls": status.calls
        and asdict(status.calls) | {"oldest_s": round(status.calls.oldest_s, 1)},
        "hot": [
            {"key_group": group, "share": round(share, 3)}
            for group, share in status.hot
        ],
        "stream_time": status.stream_time,
        "behind_ms": status.behind_ms,
        "lag": _lag(status),
        "shared": not status.task.key_range.is_whole,
        "sources": [
            {
                "topic": source.source.topic,
                "partition": source.source.partition,
                "position": source.position,
                "committed": source.committed,
                "end": source.end,
                "lag": source.lag,
                "stream_time": source.stream_time,
                "silent_s": source.silent_s and round(source.silent_s, 1),
            }
            for source in status.sources
        ],
        "restore": [
            asdict(restore) | {"rate": round(restore.rate, 1)}
            for restore in status.restore
        ],
        "download": [
            asdict(download) | {"rate": round(download.rate, 1)}
            for download in status.download
        ],
    }


def _dropped(counts: Mapping[tuple[str, str], int]) -> list[Report]:
    return [
        {"node": node, "reason": reason, "records": count}
        for (node, reason), count in sorted(counts.items())
        if count
    ]


def _failure(failure: FailureStatus) -> Report:
    return {
        "at": failure.at,
        "task": None if failure.task is None else str(failure.task),
        "node": failure.node,
        "phase": failure.phase,
        "topic": failure.source.topic,
        "partition": failure.source.partition,
        "offset": failure.offset,
        "error": failure.error,
        "answer": failure.answer,
    }


def _totals(totals: Totals) -> Report:
    def listed(counts: Mapping[tuple[str, ...], int], *names: str) -> list[Report]:
        return [
            dict(zip(names, labels, strict=True)) | {"records": n}
            for labels, n in sorted(counts.items())
            if n
        ]

    return {
        "commits": totals.commits,
        "commit_seconds": round(totals.commit_seconds, 6),
        "aborts": totals.aborts,
        "failed_stream_threads": totals.failed_stream_threads,
        "consumed": listed(totals.consumed, "subtopology", "topic"),
        "produced": listed(totals.produced, "subtopology", "topic"),
        "dropped": listed(totals.dropped, "subtopology", "node", "reason"),
        "dead_letters": listed(totals.dead_letters, "subtopology"),
    }


def _task_place(task: TaskId) -> Report:
    return {
        "id": str(task),
        "subtopology": task.subtopology,
        "partition": task.partition,
        "key_range": str(task.key_range),
    }


def _lag(status: TaskStatus) -> int | None:
    """Return the sum over the sources; None if one of them is unknown."""
    lags = [source.lag for source in status.sources]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if lags and len(known) == len(lags) else None


def _owner(owner: Owner) -> Report:
    return {
        "id": owner.instance.id,
        "url": owner.instance.url,
        "task": str(owner.task),
        "key_range": str(owner.task.key_range),
    }


def _reason(reason: Reason) -> Report:
    return {
        "code": reason.code,
        "message": reason.message,
        "task": None if reason.task is None else str(reason.task),
    }


def _stores_by_subtopology(stores: Iterable[StoreInfo]) -> dict[int, list[str]]:
    kept: dict[int, list[str]] = {}
    for store in sorted(stores, key=lambda store: store.name):
        if store.subtopology is not None:
            kept.setdefault(store.subtopology, []).append(store.name)
    return kept
