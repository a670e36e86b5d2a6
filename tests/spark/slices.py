"""The content of a snapshot's slices, decoded without the code that restores them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from coopstreams.spark.spark_task import TaskResult
from coopstreams.state import layout
from coopstreams.state.sst import read_sst
from coopstreams.topology.graph.topology import Topology
from coopstreams.topology.keys import key_hash
from coopstreams.topology.stores import StoreSpec


def changelogs_of(
    topology: Topology, folder: Path, results: Iterable[TaskResult]
) -> dict[str, dict[bytes, tuple[bytes, int]]]:
    """Return, for each store, value and timestamp by changelog key. No key may occur
    twice.
    """
    specs = {spec.name: spec for part in topology.subtopologies for spec in part.stores}
    found: dict[str, dict[bytes, tuple[bytes, int]]] = {name: {} for name in specs}
    for result in results:
        for name, slices in result.slices.items():
            for file in (file for each in slices for file in each.files):
                _add(
                    specs[name],
                    folder / topology.application_id / file.name,
                    found[name],
                )
    return found


def _add(spec: StoreSpec, path: Path, rows: dict[bytes, tuple[bytes, int]]) -> None:
    for key, value in read_sst(path):
        assert key[0] == key_hash(layout.plain_key(spec, key[1:])) >> layout.GROUP_SHIFT
        record = layout.changelog_key(spec.kind, key[1:])
        assert record not in rows
        rows[record] = layout.unpack(value)
